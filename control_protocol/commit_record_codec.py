"""The commit record as summary properties of the snapshot under the tag (rule T2).

Every key begins with ``headgate.<sink>.``. A person can read the values, ``offsets`` too while it
is short: per topic its id and runs of next offsets, each run under its first partition::

    {"orders": {"id": "kS0b...", "offsets": {"0": [1042, 998, 1007]}}}

Beyond ``PLAIN_CHARS_MAX`` the same JSON is deflated and written as ``zlib:<base64>``; metadata
files repeat the summary of every snapshot, so its size is delivered many times over. So it is with
``pending_commits``, ``expired``, ``suspended`` and ``secondaries`` (``pending_commits_codec``).
Records of version 1 are read as well.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from headgate.control_protocol.commit_record import (
    FORMAT_VERSION,
    GENERATIONS_VERSION,
    GOING_BACK_VERSION,
    UNNAMED,
    CommitRecord,
    KeyCounts,
    PendingCommit,
    Replayed,
    Suspended,
    generations_of,
    generations_text,
)
from headgate.control_protocol.errors import RecordUnreadable
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets

# Long texts in the properties of a snapshot: compressed, and bounded when read again.


PLAIN_CHARS_MAX = 2_000

_DEFLATED = "zlib:"


def packed(text: str) -> str:
    """Return the text as it is while it is short, else deflated, as ``zlib:<base64>``."""
    if len(text) <= PLAIN_CHARS_MAX:
        return text
    return _DEFLATED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def inflated(text: str, bytes_max: int) -> str:
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


# Pending commits, secondary tables and suspended tables as texts of the primary table's record;
# short ones are legible.


PENDING_COMMITS_MAX = 20_000
"""The most that one text names; a coordinator begins again before there are more (D7)."""
TEXT_BYTES_MAX = 1_000 * PENDING_COMMITS_MAX
NUMBER_MAX = 2**63 - 1

_NUMBERS = ("epoch", "transaction", "bytes", "rows", "since-ms")
_DELETES = "deletes"
"""Set only for pending commits of key files: an older version refuses to read such a record."""
_TEXTS = ("coordinator", "incarnation", "follower", "table", "manifest")


def pending_commits_text(pending_commits: Iterable[PendingCommit]) -> str:
    """Return the pending commits as one text, in their order.

    Raises ``ValueError`` for what could not be read again: more than ``PENDING_COMMITS_MAX``, or
    long texts.
    """
    forms = [
        {
            "epoch": pending_commit.transaction.epoch,
            "transaction": pending_commit.transaction.number,
            "coordinator": pending_commit.coordinator.member,
            "incarnation": pending_commit.coordinator.incarnation,
            "follower": pending_commit.secondary,
            "table": pending_commit.table,
            "manifest": pending_commit.manifest,
            "bytes": pending_commit.size_bytes,
            "rows": pending_commit.rows,
            "since-ms": pending_commit.since_ms,
            **({_DELETES: pending_commit.deletes} if pending_commit.deletes else {}),
        }
        for pending_commit in pending_commits
    ]
    text = json.dumps(forms, separators=(",", ":"))
    if len(forms) > PENDING_COMMITS_MAX or len(text) > TEXT_BYTES_MAX:  # ASCII, as json writes it
        raise ValueError(
            f"{len(forms)} pending commits in {len(text)} characters, at most "
            f"{PENDING_COMMITS_MAX} in "
            f"{TEXT_BYTES_MAX} are read"
        )
    return packed(text)


def pending_commits_of(text: str) -> tuple[PendingCommit, ...]:
    """Return the pending commits of a text. Raises ``ValueError`` for anything that is not written
    here."""
    forms = json.loads(inflated(text, TEXT_BYTES_MAX))
    if not isinstance(forms, list) or len(forms) > PENDING_COMMITS_MAX:
        raise ValueError(f"no list of at most {PENDING_COMMITS_MAX} pending commits")
    return tuple(_pending_commit(form) for form in forms)


def secondaries_of(text: str) -> Mapping[str, str]:
    """Return UUIDs by the names of tables. Raises ``ValueError``."""
    form = json.loads(inflated(text, TEXT_BYTES_MAX))
    if not isinstance(form, dict) or not all(isinstance(uuid, str) for uuid in form.values()):
        raise ValueError("no secondary tables with their UUIDs")
    return form


def suspended_text(tables: Iterable[Suspended]) -> str:
    """Return the suspended tables as one text."""
    forms = [
        {"table": p.table, "why": p.why, "since-ms": p.since_ms, "resuming": p.resuming}
        for p in tables
    ]
    return packed(json.dumps(forms, separators=(",", ":")))


def suspended_of(text: str) -> tuple[Suspended, ...]:
    """Return the suspended tables of a text. Raises ``ValueError``."""
    forms = json.loads(inflated(text, TEXT_BYTES_MAX))
    kinds = {"table": str, "why": str, "since-ms": int, "resuming": bool}
    whole = isinstance(forms, list) and all(
        isinstance(form, dict)
        and {name: type(value) for name, value in form.items()} == kinds
        and 0 <= form["since-ms"] <= NUMBER_MAX
        for form in forms
    )
    if not whole:
        raise ValueError("no suspended tables")
    return tuple(Suspended(f["table"], f["why"], f["since-ms"], f["resuming"]) for f in forms)


def _pending_commit(form: Any) -> PendingCommit:
    if not isinstance(form, dict) or form.keys() - {_DELETES} != {*_NUMBERS, *_TEXTS}:
        raise ValueError("a pending commit that has other fields")
    for name in form.keys() - {*_TEXTS}:
        # bool is an int, in Python and so in JSON's answers
        if type(form[name]) is not int or not 0 <= form[name] <= NUMBER_MAX:
            raise ValueError(f"a pending commit whose {name} is no number: {str(form[name])[:40]}")
    if not all(isinstance(form[name], str) for name in _TEXTS):
        raise ValueError("a pending commit with a text that is none")
    return PendingCommit(
        transaction=TransactionId(Epoch(form["epoch"]), TransactionNumber(form["transaction"])),
        coordinator=Sender(form["coordinator"], form["incarnation"]),
        secondary=form["follower"],
        table=form["table"],
        manifest=form["manifest"],
        size_bytes=form["bytes"],
        rows=form["rows"],
        since_ms=form["since-ms"],
        deletes=form.get(_DELETES, 0),
    )


VERSIONS_READ = (1, FORMAT_VERSION, GOING_BACK_VERSION, GENERATIONS_VERSION)
PARTITIONS_MAX = 100_000
OFFSETS_INFLATED_BYTES_MAX = 21 * PARTITIONS_MAX
OFFSETS_CHARS_MAX = OFFSETS_INFLATED_BYTES_MAX
OFFSET_MAX = 2**63 - 1
PARTITION_MAX = 2**31 - 1

_VERSION = "version"
_KEYS_REQUIRED = (
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
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_Parsed = TypeVar("_Parsed")


def marker_property(sink: SinkName) -> str:
    """Return the table property that the first claim sets: the tag existed once (rule T5)."""
    return f"headgate.{sink}.claimed"


def key_property(sink: SinkName) -> str:
    """Return the table property in which the first claim of a keyed table stores its key (U1)."""
    return f"headgate.{sink}.key"


def maintenance_property(sink: SinkName) -> str:
    """Return the summary property of a snapshot by which the sink maintains its table (T8)."""
    return f"headgate.{sink}.maintenance"


def deleted_property(sink: SinkName) -> str:
    """Return the property that counts rows deleted by people: of a snapshot, or of the table."""
    return f"headgate.{sink}.deleted-rows"


def deleted_rows(sink: SinkName, properties: Mapping[str, str]) -> int:
    """Return the value of ``deleted_property``; 0 if it is missing or is not a count."""
    text = properties.get(deleted_property(sink), "")
    return int(text) if text.isdecimal() else 0


def encode(record: CommitRecord) -> dict[str, str]:
    """Return the record as snapshot summary properties.

    Raises ``ValueError`` for what ``decode`` would refuse: more than ``PARTITIONS_MAX`` partitions
    or ``PENDING_COMMITS_MAX`` pending commits, or names that make these texts too long.
    """
    if len(record.offsets) > PARTITIONS_MAX:
        raise ValueError(f"a commit record names at most {PARTITIONS_MAX} partitions")
    values = {
        _VERSION: str(_version(record)),
        "group-id": record.group_id,
        "epoch": str(record.transaction.epoch),
        "transaction": str(record.transaction.number),
        "coordinator": record.coordinator.member,
        "incarnation": record.coordinator.incarnation,
        "offsets": _encode_offsets(record.offsets, record.topic_ids),
        "records": str(record.records),
        "quarantined": str(record.quarantined),
        "skipped": str(record.skipped),
        "paused": "true" if record.paused else "false",
    }
    if record.valid_through_ms is not None:
        values["valid-through-ms"] = str(record.valid_through_ms)
    optional = {
        "control-topic": record.control_topic,
        "control-topic-id": record.control_topic_id,
        "command": record.command,
        "actor": record.actor,
        "stopped": "true" if record.stopped else None,
        "lead": record.primary,
        "routing": record.routing,
        "followers": packed(_json(dict(record.secondaries))) if record.secondaries else None,
        "debts": pending_commits_text(record.pending_commits) if record.pending_commits else None,
        "lapsed": pending_commits_text(record.expired) if record.expired else None,
        "parked": suspended_text(record.suspended) if record.suspended else None,
        "keys": _json(asdict(record.keys)) if record.keys else None,
        "going-back": record.going_back,
        "replayed": _encode_offsets(record.replayed.offsets, record.replayed.topic_ids)
        if record.replayed
        else None,
        "generations": generations_text(record.generations) if record.generations else None,
    }
    if record.replayed and (expired := record.replayed.expired):
        optional |= {"reread-epoch": str(expired.epoch), "reread-transaction": str(expired.number)}
    values |= {name: value for name, value in optional.items() if value is not None}
    return {_key(record.sink, name): value for name, value in values.items()}


def _version(record: CommitRecord) -> int:
    if record.generations:
        return GENERATIONS_VERSION
    return FORMAT_VERSION if record.going_back is None else GOING_BACK_VERSION


def holds_record(sink: SinkName, summary: Mapping[str, str]) -> bool:
    """Return whether the sink wrote into the summary, readable or not."""
    return _Fields(sink, summary).any()


def decode(sink: SinkName, summary: Mapping[str, str]) -> CommitRecord | None:
    """Return the sink's record in a snapshot summary, ``None`` when it has none there.

    Raises ``RecordUnreadable``, naming the key, for anything that ``encode`` does not write.
    """
    fields = _Fields(sink, summary)
    if not fields.any():
        return None
    version = fields.number(_VERSION)
    if version not in VERSIONS_READ:
        raise fields.unreadable(
            _VERSION, f"is {version}, this headgate reads {VERSIONS_READ[-1]}", "upgrade headgate"
        )
    offsets, topic_ids = _decode_offsets(fields, "offsets")
    topic_id = fields.optional_text("control-topic-id")
    return CommitRecord(
        sink=sink,
        group_id=fields.text("group-id"),
        transaction=TransactionId(
            Epoch(fields.number("epoch")), TransactionNumber(fields.number("transaction"))
        ),
        coordinator=Sender(fields.text("coordinator"), fields.text("incarnation")),
        offsets=offsets,
        topic_ids=topic_ids,
        records=fields.number("records"),
        quarantined=fields.number("quarantined"),
        skipped=fields.number("skipped"),
        valid_through_ms=fields.optional_number("valid-through-ms"),
        paused=fields.flag("paused"),
        control_topic=fields.optional_text("control-topic"),
        control_topic_id=TopicId(topic_id) if topic_id is not None else None,
        command=fields.optional_text("command"),
        actor=fields.optional_text("actor"),
        stopped=fields.optional_flag("stopped"),
        primary=fields.optional_text("lead"),
        secondaries=_secondaries(fields),
        pending_commits=fields.parsed("debts", pending_commits_of, ()),
        expired=fields.parsed("lapsed", pending_commits_of, ()),
        routing=fields.optional_text("routing"),
        suspended=fields.parsed("parked", suspended_of, ()),
        keys=_key_counts(fields),
        going_back=fields.optional_text("going-back"),
        replayed=_replayed(fields),
        generations=fields.parsed("generations", generations_of, {}),
    )


def _replayed(fields: _Fields) -> Replayed | None:
    if fields.optional_text("replayed") is None:
        return None
    offsets, topic_ids = _decode_offsets(fields, "replayed")
    if fields.optional_text("reread-epoch") is None:
        return Replayed(offsets, topic_ids)
    epoch, number = fields.number("reread-epoch"), fields.number("reread-transaction")
    expired = TransactionId(Epoch(epoch), TransactionNumber(number))
    return Replayed(offsets, topic_ids, expired)


def _secondaries(fields: _Fields) -> Mapping[str, str]:
    before = fields.optional_text("quarantine")
    return fields.parsed("followers", secondaries_of, {} if before is None else {UNNAMED: before})


def _key_counts(fields: _Fields) -> KeyCounts | None:
    text = fields.optional_text("keys")
    if text is None:
        return None
    try:
        counts = KeyCounts(**json.loads(text))
    except (ValueError, TypeError, RecursionError) as problem:
        raise fields.unreadable("keys", f"is malformed: {problem}") from problem
    if any(type(n) is not int or not 0 <= n <= OFFSET_MAX for n in asdict(counts).values()):
        raise fields.unreadable("keys", f"has what is no count: {text[:80]}")
    return counts


def topics_of(sink: SinkName, summary: Mapping[str, str]) -> Mapping[str, TopicId]:
    """Return the topics of another sink; none where this version cannot read its record."""
    try:
        record = decode(sink, summary)
    except RecordUnreadable:
        return {}
    return record.topic_ids if record else {}


def sink_of(summary: Mapping[str, str]) -> SinkName | None:
    """Return the name of the sink whose commit record, or maintenance, a summary carries."""
    for key in summary:
        prefix, _, rest = key.partition(".")
        name, _, property_name = rest.partition(".")
        if prefix == "headgate" and property_name in ("epoch", "maintenance"):
            return SinkName(name)
    return None


def _key(sink: SinkName, name: str) -> str:
    return f"headgate.{sink}.{name}"


class _Fields:
    """One sink's properties in a summary; every error names the property."""

    def __init__(self, sink: SinkName, summary: Mapping[str, str]) -> None:
        self._sink = sink
        self._summary = summary

    def any(self) -> bool:
        return any(_key(self._sink, name) in self._summary for name in _KEYS_REQUIRED)

    def unreadable(self, name: str, problem: str, hint: str = "") -> RecordUnreadable:
        return RecordUnreadable(
            f"sink {self._sink}: the snapshot property {_key(self._sink, name)} {problem}",
            hint or "was the snapshot's summary written or edited by another program?",
        )

    def text(self, name: str) -> str:
        value = self._summary.get(_key(self._sink, name))
        if not isinstance(value, str):
            raise self.unreadable(name, "is missing" if value is None else "is no text")
        return value

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if _key(self._sink, name) in self._summary else None

    def parsed(self, name: str, parse: Callable[[str], _Parsed], missing: _Parsed) -> _Parsed:
        """Return what ``parse`` makes of the text; ``missing`` where there is none."""
        text = self.optional_text(name)
        try:
            return missing if text is None else parse(text)
        except (ValueError, RecursionError) as problem:
            raise self.unreadable(name, f"is malformed: {problem}") from problem

    def signed(self, name: str) -> int:
        text = self.text(name)
        if not _NUMBER.fullmatch(text) or abs(int(text)) > OFFSET_MAX:
            raise self.unreadable(name, f"is no number: {text[:40]!r}")
        return int(text)

    def number(self, name: str) -> int:
        value = self.signed(name)
        if value < 0:
            raise self.unreadable(name, f"is negative: {value}")
        return value

    def optional_number(self, name: str) -> int | None:
        return self.signed(name) if _key(self._sink, name) in self._summary else None

    def optional_flag(self, name: str) -> bool:
        return _key(self._sink, name) in self._summary and self.flag(name)

    def flag(self, name: str) -> bool:
        text = self.text(name)
        if text not in ("true", "false"):
            raise self.unreadable(name, f"is neither true nor false: {text[:40]!r}")
        return text == "true"


# --------------------------------------------------------------------------------------- offsets


def _encode_offsets(offsets: Offsets, topic_ids: Mapping[str, TopicId]) -> str:
    topics: dict[str, dict[str, object]] = {
        topic: {"id": topic_id} for topic, topic_id in topic_ids.items()
    }
    for topic, runs in _runs(offsets).items():
        topics.setdefault(topic, {})["offsets"] = runs
    text = _json(topics)
    if len(text) > OFFSETS_INFLATED_BYTES_MAX:  # ASCII, as json writes it
        raise ValueError(f"{len(text)} characters, at most {OFFSETS_INFLATED_BYTES_MAX} are read")
    return packed(text)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _runs(offsets: Offsets) -> dict[str, dict[int, list[int]]]:
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


def _decode_offsets(fields: _Fields, name: str) -> tuple[Offsets, dict[str, TopicId]]:
    try:
        text = inflated(fields.text(name), OFFSETS_INFLATED_BYTES_MAX)
        return _parse_topics(json.loads(text))
    except (ValueError, RecursionError) as problem:
        raise fields.unreadable(name, f"is malformed: {problem}") from problem


def _parse_topics(topics: object) -> tuple[Offsets, dict[str, TopicId]]:
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
        _parse_runs(topic, state.get("offsets", {}), offsets)
    return Offsets(offsets), topic_ids


def _parse_runs(topic: str, runs: object, into: dict[TopicPartition, int]) -> None:
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


# What a ledger remembers about the tables that it has filled, beyond one epoch (rule N5).
#
# Each is a property of the ledger, named after the table, with the table's UUID. The commit that
# first has pending rows to a table sets it, so that decision and memory are one. Snapshots do not
# repeat it, as they would a part of the record, and no catalog has to store one value for a
# thousand tables.


def filled_property(sink: SinkName, table: str) -> str:
    """Return the name of the ledger's property for a table."""
    return f"{_prefix(sink)}{table}"


def filled_of(sink: SinkName, properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the UUIDs of the tables that the sink has filled, by their names."""
    prefix = _prefix(sink)
    return {
        name.removeprefix(prefix): uuid
        for name, uuid in properties.items()
        if name.startswith(prefix)
    }


def is_filled_property(name: str) -> bool:
    """Return whether this is such a property, of any sink."""
    return name.startswith("headgate.") and name.split(".")[2:3] == ["filled"]


def newly_filled(record: CommitRecord, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the additional properties that a commit of this record sets.

    Secondary tables that the record names by UUID need none.
    """
    pending = {
        filled_property(record.sink, pending_commit.table): pending_commit.secondary
        for pending_commit in record.pending_commits
        if pending_commit.manifest and pending_commit.table not in record.secondaries
    }
    return {name: uuid for name, uuid in pending.items() if properties.get(name) != uuid}


def forgotten(
    sink: SinkName, tables: Collection[str], set_now: Collection[str], properties: Collection[str]
) -> list[str]:
    """Return the properties that a commit removes: of these tables, unless it sets them."""
    names = {filled_property(sink, table) for table in tables}
    return sorted((names & set(properties)) - set(set_now))


def filled_after(
    record: CommitRecord, before: Mapping[str, str], forgets: Collection[str]
) -> Mapping[str, str]:
    """Return the UUIDs of the tables that the sink has filled once a commit of this record landed.

    ``before`` are those until then; for tables that keep all of them together.
    """
    sink = record.sink
    known = {filled_property(sink, name): uuid for name, uuid in before.items()}
    added = newly_filled(record, known)
    gone = forgotten(sink, forgets, added, known)
    kept = {name: uuid for name, uuid in known.items() if name not in gone}
    return filled_of(sink, {**kept, **added})


def _prefix(sink: SinkName) -> str:
    return f"headgate.{sink}.filled."
