"""Writes the commit record as summary properties of the snapshot under the tag, and reads it
(TABLE-2).

Every key begins with ``headgate.<sink>.``. A person can read the values, ``offsets`` too while it
is short: per topic its id and runs of next offsets, each run under its first partition::

    {"orders": {"id": "kS0b...", "offsets": {"0": [1042, 998, 1007]}}}

Beyond ``PLAIN_CHARS_MAX`` the same JSON is deflated and written as ``zlib:<base64>``, because
metadata files repeat the summary of every snapshot. So are the pending commits, the expired ones,
the secondary and the suspended tables. A field is written by its declared type, under its own name
unless ``_KEYS`` has an older one, and left out where it is the default. Records of version 1 are
read as well.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, get_type_hints

from headgate.control_protocol.commit_record import (
    COHORTS_VERSION,
    FORMAT_VERSION,
    GOING_BACK_VERSION,
    KEY_COUNTS,
    UNNAMED,
    CommitRecord,
    KeyCounts,
    PartitionCohorts,
    PendingCommit,
    Replayed,
    Suspended,
    cohorts_to_text,
    parse_cohorts,
)
from headgate.control_protocol.errors import RecordUnreadable
from headgate.control_protocol.identifiers import (
    Epoch,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets

VERSIONS_READ = (1, FORMAT_VERSION, GOING_BACK_VERSION, COHORTS_VERSION)
PARTITIONS_MAX = 100_000
OFFSETS_INFLATED_BYTES_MAX = 21 * PARTITIONS_MAX
OFFSETS_CHARS_MAX = OFFSETS_INFLATED_BYTES_MAX
OFFSET_MAX = 2**63 - 1
PARTITION_MAX = 2**31 - 1
PENDING_COMMITS_MAX = 20_000
"""The most that one text names; a coordinator begins again before there are more (PENDING-7)."""
TEXT_BYTES_MAX = 1_000 * PENDING_COMMITS_MAX

_VERSION = "version"
_REQUIRED = (
    _VERSION,
    "group-id",
    "epoch",
    "transaction",
    "coordinator",
    "incarnation",
    "offsets",
    "records",
    "quarantined",
    "skipped",
    "paused",
)
_KEYS = {
    "transaction.epoch": "epoch",
    "transaction.number": "transaction",
    "coordinator.member": "coordinator",
    "coordinator.incarnation": "incarnation",
    "primary": "lead",
    "secondary": "follower",
    "secondaries": "followers",
    "pending_commits": "debts",
    "expired": "lapsed",
    "suspended": "parked",
    "cohorts": "generations",
    "size_bytes": "bytes",
}
"""What fields are called in the table where that is not our name for them."""
_APART = ("sink", "offsets", "topic_ids", "replayed")
"""Fields of the record that share a property, need several, or none."""
_LEFT_OUT = ("deletes", *KEY_COUNTS)
"""What an object of JSON may lack. ``deletes`` is there only for key files: an older version
refuses to read a record that has it."""

_IN_WORDS = {int: "natural number", str: "text", bool: "truth value"}
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


class _Codec(NamedTuple):
    """Turns values into text and back: ``read`` raises ``ValueError`` for any other text."""

    write: Callable[[Any], str]
    read: Callable[[str], Any]


def claim_marker_property(sink: SinkName) -> str:
    """Return the table property that the first claim sets: the tag existed once (rule TABLE-4)."""
    return f"headgate.{sink}.claimed"


def key_columns_property(sink: SinkName) -> str:
    """Return the table property in which the first claim of a keyed table stores its key
    (KEY-1)."""
    return f"headgate.{sink}.key"


def on_delete_property(sink: SinkName) -> str:
    """Return the table property that stores what deletes do to rows, unless they always removed
    them (KEY-13)."""
    return f"headgate.{sink}.on-delete"


def maintenance_property(sink: SinkName) -> str:
    """Return the summary property of a snapshot by which the sink maintains its table
    (COMPACTION-1)."""
    return f"headgate.{sink}.maintenance"


def expired_before_property(sink: SinkName) -> str:
    """Return the property that says below which time rows have expired: of a snapshot, or the
    newest of the table (EXPIRY-1)."""
    return f"headgate.{sink}.expired-before"


def expired_rows_property(sink: SinkName) -> str:
    """Return the property that counts expired rows: of a snapshot, or of the table."""
    return f"headgate.{sink}.expired-rows"


def expired_before_ms(sink: SinkName, properties: Mapping[str, str]) -> int | None:
    """Return the value of ``expired_before_property``; ``None`` if it is missing, or no number."""
    text = properties.get(expired_before_property(sink), "")
    return int(text) if _NUMBER.fullmatch(text) else None


def expired_row_count(sink: SinkName, properties: Mapping[str, str]) -> int:
    """Return the value of ``expired_rows_property``; 0 if it is missing or is not a count."""
    return _row_count_or_zero(properties, expired_rows_property(sink))


def deleted_rows_property(sink: SinkName) -> str:
    """Return the property that counts rows deleted by people: of a snapshot, or of the table."""
    return f"headgate.{sink}.deleted-rows"


def deleted_row_count(sink: SinkName, properties: Mapping[str, str]) -> int:
    """Return the value of ``deleted_rows_property``; 0 if it is missing or is not a count."""
    return _row_count_or_zero(properties, deleted_rows_property(sink))


def _row_count_or_zero(properties: Mapping[str, str], name: str) -> int:
    text = properties.get(name, "")
    return int(text) if text.isdecimal() else 0


def encode_record(record: CommitRecord) -> dict[str, str]:
    """Return the record as snapshot summary properties.

    Raises ``ValueError`` for what ``decode_record`` would refuse: more than ``PARTITIONS_MAX``
    partitions or ``PENDING_COMMITS_MAX`` pending commits, or names that make these texts too long.
    """
    if len(record.offsets) > PARTITIONS_MAX:
        raise ValueError(f"a commit record names at most {PARTITIONS_MAX} partitions")
    values = {
        _VERSION: str(_record_version_needed(record)),
        "offsets": _offsets_to_text(record.offsets, record.topic_ids),
    }
    for leaf in _LEAVES:
        value = leaf.of(record)
        if leaf.key in _REQUIRED or not _is_omitted_unless_required(value):
            values[leaf.key] = _CODECS[leaf.type].write(value)
    if record.replayed:
        values["replayed"] = _offsets_to_text(record.replayed.offsets, record.replayed.topic_ids)
        if expired := record.replayed.expired:
            values["reread-epoch"] = str(expired.epoch)
            values["reread-transaction"] = str(expired.number)
    return {_property_name(record.sink, name): value for name, value in values.items()}


def decode_record(sink: SinkName, summary: Mapping[str, str]) -> CommitRecord | None:
    """Return the sink's record in a snapshot summary, ``None`` when it has none there.

    Raises ``RecordUnreadable``, naming the key, for anything that ``encode_record`` does not write.
    """
    if not holds_record(sink, summary):
        return None
    properties = _Properties(sink, summary)
    version = properties.read(_VERSION, _parse_natural)
    if version not in VERSIONS_READ:
        raise properties.unreadable_error(
            _VERSION, f"is {version}, this headgate reads {VERSIONS_READ[-1]}", "upgrade headgate"
        )
    values = {
        leaf.path: properties.read(leaf.key, _CODECS[leaf.type].read)
        for leaf in _LEAVES
        if leaf.key in _REQUIRED or leaf.key in properties
    }
    values["sink"] = sink
    values["offsets"], values["topic_ids"] = properties.read("offsets", _parse_offsets)
    values["replayed"] = _read_replayed(properties)
    if "followers" not in properties and "quarantine" in properties:  # version 1
        values["secondaries"] = {UNNAMED: properties.read("quarantine", str)}
    record: CommitRecord = _build_dataclass(CommitRecord, values)
    return record


def _record_version_needed(record: CommitRecord) -> int:
    if record.cohorts:
        return COHORTS_VERSION
    return FORMAT_VERSION if record.going_back is None else GOING_BACK_VERSION


def holds_record(sink: SinkName, summary: Mapping[str, str]) -> bool:
    """Return whether the sink wrote into the summary, readable or not."""
    return any(_property_name(sink, name) in summary for name in _REQUIRED)


def _read_replayed(properties: _Properties) -> Replayed | None:
    if "replayed" not in properties:
        return None
    offsets, topic_ids = properties.read("replayed", _parse_offsets)
    if "reread-epoch" not in properties:
        return Replayed(offsets, topic_ids)
    epoch, number = (
        properties.read(f"reread-{n}", _parse_natural) for n in ("epoch", "transaction")
    )
    return Replayed(offsets, topic_ids, TransactionId(Epoch(epoch), TransactionNumber(number)))


def topic_ids_if_readable(sink: SinkName, summary: Mapping[str, str]) -> Mapping[str, TopicId]:
    """Return the topics of another sink; none where this version cannot read its record."""
    try:
        record = decode_record(sink, summary)
    except RecordUnreadable:
        return {}
    return record.topic_ids if record else {}


def sink_in_summary(summary: Mapping[str, str]) -> SinkName | None:
    """Return the name of the sink whose commit record, or maintenance, a summary carries."""
    for key in summary:
        prefix, _, rest = key.partition(".")
        name, _, property_name = rest.partition(".")
        if prefix == "headgate" and property_name in ("epoch", "maintenance"):
            return SinkName(name)
    return None


def _property_name(sink: SinkName, name: str) -> str:
    return f"headgate.{sink}.{name}"


class _NotOne(ValueError):
    """Says that a text is none of its kind; the message follows "is"."""


class _Properties:
    """Reads one sink's properties in a summary; every error names the property."""

    def __init__(self, sink: SinkName, summary: Mapping[str, str]) -> None:
        self._sink = sink
        self._summary = summary

    def __contains__(self, name: str) -> bool:
        return _property_name(self._sink, name) in self._summary

    def unreadable_error(self, name: str, problem: str, hint: str = "") -> RecordUnreadable:
        where = f"the snapshot property {_property_name(self._sink, name)}"
        return RecordUnreadable(
            f"sink {self._sink}: {where} {problem}",
            hint or "was the snapshot's summary written or edited by another program?",
        )

    def read(self, name: str, parse: Callable[[str], Any]) -> Any:
        """Return what ``parse`` makes of the text."""
        text = self._summary.get(_property_name(self._sink, name))
        if not isinstance(text, str):
            raise self.unreadable_error(name, "is missing" if text is None else "is no text")
        try:
            return parse(text)
        except _NotOne as problem:
            raise self.unreadable_error(name, f"is {problem}") from None
        except (ValueError, RecursionError) as problem:
            raise self.unreadable_error(name, f"is malformed: {problem}") from problem


# ------------------------------------------------------------------------- fields by declared type


class _Leaf(NamedTuple):
    """Describes a field of a dataclass, or of one inside it, and what it is called in the table."""

    path: str
    key: str
    type: Any
    of: Callable[[Any], Any]


@cache
def _field_types(kind: Any) -> Mapping[str, Any]:
    return {
        name: getattr(hint, "__supertype__", hint) for name, hint in get_type_hints(kind).items()
    }


def _is_nested_dataclass(hint: Any) -> bool:
    return is_dataclass(hint)


@cache
def _leaf_fields(kind: Any, prefix: str = "") -> tuple[_Leaf, ...]:
    leaves: list[_Leaf] = []
    for name, hint in _field_types(kind).items():
        path = f"{prefix}{name}"
        if _is_nested_dataclass(hint):
            leaves += _leaf_fields(hint, f"{path}.")
        else:
            key = _KEYS.get(path, name.replace("_", "-"))
            leaves.append(_Leaf(path, key, hint, attrgetter(path)))
    return tuple(leaves)


def _build_dataclass(kind: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Return the dataclass with these values of its leaves, by path, else with its defaults."""
    made = {}
    for name, hint in _field_types(kind).items():
        path = f"{prefix}{name}"
        if path in values:
            made[name] = values[path]
        elif _is_nested_dataclass(hint):
            made[name] = _build_dataclass(hint, values, f"{path}.")
    return kind(**made)


def _to_json_object(value: Any) -> dict[str, Any]:
    """Return the dataclass as an object of JSON."""
    kind: Any = type(value)
    form = {leaf.key: leaf.of(value) for leaf in _leaf_fields(kind)}
    if not form.get("deletes", True):
        del form["deletes"]
    return form


def _from_json_object(kind: Any, form: object) -> Any:
    """Return the dataclass of an object of JSON that has its fields, each of its type."""
    leaves = {leaf.key: leaf for leaf in _leaf_fields(kind)}
    if not isinstance(form, dict) or not leaves.keys() - _LEFT_OUT <= form.keys() <= leaves.keys():
        raise ValueError(f"other fields than {', '.join(leaves)}: {str(form)[:80]}")
    for key, value in form.items():
        declared = leaves[key].type
        # bool is an int, in Python and so in JSON's answers
        if type(value) is not declared or (declared is int and not 0 <= value <= OFFSET_MAX):
            raise ValueError(f"its {key} is no {_IN_WORDS[declared]}: {str(value)[:40]}")
    return _build_dataclass(kind, {leaves[key].path: value for key, value in form.items()})


def _list_codec(kind: Any, what: str) -> _Codec:
    """Return the codec of so many dataclasses, in their order, as one text."""

    def encode_items(values: Collection[Any]) -> str:
        text = json.dumps([_to_json_object(each) for each in values], separators=(",", ":"))
        if len(values) > PENDING_COMMITS_MAX or len(text) > TEXT_BYTES_MAX:  # json writes ASCII
            raise ValueError(
                f"{len(values)} {what} in {len(text)} characters, at most "
                f"{PENDING_COMMITS_MAX} in {TEXT_BYTES_MAX} are read"
            )
        return compress_text_if_long(text)

    def decode_items(text: str) -> tuple[Any, ...]:
        forms = json.loads(decompress_text(text, TEXT_BYTES_MAX))
        if not isinstance(forms, list) or len(forms) > PENDING_COMMITS_MAX:
            raise ValueError(f"no list of at most {PENDING_COMMITS_MAX} {what}")
        return tuple(_from_json_object(kind, form) for form in forms)

    return _Codec(encode_items, decode_items)


def _parse_number(text: str) -> int:
    if not _NUMBER.fullmatch(text) or abs(int(text)) > OFFSET_MAX:
        raise _NotOne(f"no number: {text[:40]!r}")
    return int(text)


def _parse_natural(text: str) -> int:
    number = _parse_number(text)
    if number < 0:
        raise _NotOne(f"negative: {number}")
    return number


def _parse_flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise _NotOne(f"neither true nor false: {text[:40]!r}")
    return text == "true"


def _parse_secondaries(text: str) -> Mapping[str, str]:
    form = json.loads(decompress_text(text, TEXT_BYTES_MAX))
    if not isinstance(form, dict) or not all(isinstance(uuid, str) for uuid in form.values()):
        raise ValueError("no secondary tables with their UUIDs")
    return form


def _is_omitted_unless_required(value: Any) -> bool:
    """Return whether no property is written for the value of a field that need not have one."""
    return value is None or value is False or value in ((), {})  # 0 is written, as any number


def _to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


_TEXT = _Codec(str, str)
_CODECS: dict[Any, _Codec] = {
    str: _TEXT,
    str | None: _TEXT,
    TopicId | None: _TEXT,
    int: _Codec(str, _parse_natural),
    int | None: _Codec(str, _parse_number),
    bool: _Codec(lambda value: "true" if value else "false", _parse_flag),
    Mapping[str, str]: _Codec(
        lambda value: compress_text_if_long(_to_json(dict(value))), _parse_secondaries
    ),
    tuple[PendingCommit, ...]: _list_codec(PendingCommit, "pending commits"),
    tuple[Suspended, ...]: _list_codec(Suspended, "suspended tables"),
    KeyCounts | None: _Codec(
        lambda value: _to_json(_to_json_object(value)),
        lambda text: _from_json_object(KeyCounts, json.loads(text)),
    ),
    PartitionCohorts: _Codec(cohorts_to_text, parse_cohorts),
}
_LEAVES = tuple(leaf for leaf in _leaf_fields(CommitRecord) if leaf.path not in _APART)


# --------------------------------------------------------------------------------------- offsets


def _offsets_to_text(offsets: Offsets, topic_ids: Mapping[str, TopicId]) -> str:
    topics: dict[str, dict[str, object]] = {
        topic: {"id": topic_id} for topic, topic_id in topic_ids.items()
    }
    for topic, runs in _offset_runs_by_topic(offsets).items():
        topics.setdefault(topic, {})["offsets"] = runs
    text = _to_json(topics)
    if len(text) > OFFSETS_INFLATED_BYTES_MAX:  # ASCII, as json writes it
        raise ValueError(f"{len(text)} characters, at most {OFFSETS_INFLATED_BYTES_MAX} are read")
    return compress_text_if_long(text)


def _offset_runs_by_topic(offsets: Offsets) -> dict[str, dict[int, list[int]]]:
    """Join the offsets of neighbouring partitions, per topic, under the first of them."""
    topics: dict[str, dict[int, list[int]]] = {}
    previous: TopicPartition | None = None
    run: list[int] = []
    for at in sorted(offsets):
        if previous is None or (at.topic, at.partition - 1) != (previous.topic, previous.partition):
            run = topics.setdefault(at.topic, {}).setdefault(at.partition, [])
        run.append(offsets[at])
        previous = at
    return topics


def _parse_offsets(text: str) -> tuple[Offsets, dict[str, TopicId]]:
    topics = json.loads(decompress_text(text, OFFSETS_INFLATED_BYTES_MAX))
    if not isinstance(topics, dict):
        raise ValueError("no topics")  # noqa: TRY004 - one answer to everything malformed
    offsets: dict[TopicPartition, int] = {}
    topic_ids: dict[str, TopicId] = {}
    for topic, state in topics.items():
        if not isinstance(state, dict) or not state.keys() <= {"id", "offsets"}:
            raise ValueError(f"topic {topic!r} has not just an id and offsets")
        if "id" in state:
            if not isinstance(state["id"], str):
                raise ValueError(f"topic {topic!r} has an id that is no text")
            topic_ids[topic] = TopicId(state["id"])
        _parse_partition_runs(topic, state.get("offsets", {}), offsets)
    return Offsets(offsets), topic_ids


def _parse_partition_runs(topic: str, runs: object, into: dict[TopicPartition, int]) -> None:
    if not isinstance(runs, dict):
        raise ValueError(f"topic {topic!r} has no runs of offsets")  # noqa: TRY004 - as above
    for first, run in runs.items():
        if not _NUMBER.fullmatch(first) or not isinstance(run, list):
            raise ValueError(f"topic {topic!r} has a run without a first partition or a list")
        for partition, offset in enumerate(run, start=int(first)):
            at = TopicPartition(topic, partition)
            # bool is an int, in Python and so in JSON's answers
            if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                raise ValueError(f"{at} has no offset: {str(offset)[:40]}")
            if not 0 <= partition <= PARTITION_MAX or at in into:
                raise ValueError(f"{at} is named twice, or no partition")
            if len(into) == PARTITIONS_MAX:
                raise ValueError(f"more than {PARTITIONS_MAX} partitions")
            into[at] = offset


# Long texts in the properties of a snapshot: compressed, and bounded when read again.


PLAIN_CHARS_MAX = 2_000

_DEFLATED = "zlib:"


def compress_text_if_long(text: str) -> str:
    """Return the text as it is while it is short, else deflated, as ``zlib:<base64>``."""
    if len(text) <= PLAIN_CHARS_MAX:
        return text
    return _DEFLATED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def decompress_text(text: str, bytes_max: int) -> str:
    """Return what was packed. Raises ``ValueError`` for more than ``bytes_max`` bytes of it."""
    if len(text) > bytes_max:
        raise ValueError(f"{len(text)} characters, at most {bytes_max} are read")
    if not text.startswith(_DEFLATED):
        return text
    try:
        deflated = base64.b64decode(text[len(_DEFLATED) :], validate=True)
    except binascii.Error as problem:
        raise ValueError(f"no base64: {problem}") from problem
    inflater = zlib.decompressobj()
    try:
        inflated_bytes = inflater.decompress(deflated, bytes_max)
    except zlib.error as problem:
        raise ValueError(f"not deflated: {problem}") from problem
    if not inflater.eof or inflater.unused_data:
        raise ValueError(f"not one deflated text of at most {bytes_max} bytes")
    return inflated_bytes.decode()


# What a ledger remembers about the tables that it has filled, beyond one epoch (rule LEDGER-2).
#
# Each is a property of the ledger, named after the table, with the table's UUID. The commit that
# first decides rows for a table sets it, so that decision and memory are one. Snapshots do not
# repeat it, as they would a part of the record, and no catalog has to store one value for a
# thousand tables.


def filled_table_property(sink: SinkName, table: str) -> str:
    """Return the name of the ledger's property for a table."""
    return f"{_filled_table_property_prefix(sink)}{table}"


def filled_table_uuids(sink: SinkName, properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the UUIDs of the tables that the sink has filled, by their names."""
    prefix = _filled_table_property_prefix(sink)
    return {
        name.removeprefix(prefix): uuid
        for name, uuid in properties.items()
        if name.startswith(prefix)
    }


def is_filled_table_property(name: str) -> bool:
    """Return whether this is such a property, of any sink."""
    return name.startswith("headgate.") and name.split(".")[2:3] == ["filled"]


def filled_properties_to_set(record: CommitRecord, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the additional properties that a commit of this record sets.

    Secondary tables that the record names by UUID need none.
    """
    pending = {
        filled_table_property(record.sink, pending_commit.table): pending_commit.secondary
        for pending_commit in record.pending_commits
        if pending_commit.manifest and pending_commit.table not in record.secondaries
    }
    return {name: uuid for name, uuid in pending.items() if properties.get(name) != uuid}


def filled_properties_to_remove(
    sink: SinkName,
    tables: Collection[str],
    set_by_commit: Collection[str],
    properties: Collection[str],
) -> list[str]:
    """Return the properties that a commit removes: of these tables, unless it sets them."""
    names = {filled_table_property(sink, table) for table in tables}
    return sorted((names & set(properties)) - set(set_by_commit))


def uuids_of_filled_tables_after(
    record: CommitRecord, before: Mapping[str, str], forgets: Collection[str]
) -> Mapping[str, str]:
    """Return the UUIDs of the tables that the sink has filled once a commit of this record landed.

    ``before`` are those until then; for tables that keep all of them together.
    """
    sink = record.sink
    known = {filled_table_property(sink, name): uuid for name, uuid in before.items()}
    added = filled_properties_to_set(record, known)
    gone = filled_properties_to_remove(sink, forgets, added, known)
    kept = {name: uuid for name, uuid in known.items() if name not in gone}
    return filled_table_uuids(sink, {**kept, **added})


def _filled_table_property_prefix(sink: SinkName) -> str:
    return f"headgate.{sink}.filled."
