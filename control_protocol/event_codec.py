"""Turns events into the dictionaries of their Avro schemas and back, each field by its type.

A schema has the fields of its class, in any order and under the same names, but for three things: a
few names on the wire are older than ours; a sender and an offset range stand in their owner's
record; values per partition are grouped by topic, since names are long and partitions many. The way
back checks every range: the rest of the program may trust the shape of what it builds, and it
raises nothing but ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from headgate.control_protocol.columns import Struct, struct_from_json, struct_to_json_without_ids
from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    EndCommit,
    Envelope,
    Event,
    Notice,
    PartitionPresence,
    Pause,
    Presence,
    Proposal,
    Resume,
    StartCommit,
    Tables,
    WriteStatus,
    WrittenRange,
)
from headgate.control_protocol.identifiers import Sender, TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets

Form = dict[str, Any]
"""A record of an Avro schema, as fastavro takes and gives it."""

PARTITION_MAX = 2**31 - 1
NUMBER_MAX = 2**62 - 1
"""The limit of every number: it can still be counted up, for Avro and the table hold twice it."""
PARTS_MAX = 1024
NAME_CHARACTERS_MAX = 4_000
SENDER_CHARACTERS_MAX = 500

_SCHEMA_NAMES: dict[type[Event], str] = {
    StartCommit: "start-commit",
    EndCommit: "end-commit",
    WriteStatus: "write-status",
    AckCommit: "ack-commit",
    AbortCommit: "abort-commit",
    Presence: "presence",
    Pause: "pause",
    Resume: "resume",
    Notice: "notice",
    Proposal: "proposal",
    Tables: "tables",
}
_EVENTS: dict[str, Any] = {name: kind for kind, name in _SCHEMA_NAMES.items()}
_WIRE_NAMES = {"suspended": "parked", "written": "claims"}
"""Fields whose names in the schemas are older than ours."""
_LIST_NAMES = {WrittenRange: "claims", PartitionPresence: "partitions"}
"""What the schemas call the values of one topic."""
_INLINE = (Sender, OffsetRange)
"""Their fields stand in the record of what has them."""
_ANY_NUMBER = frozenset(
    {"version", "time_ms", "max_timestamp_ms", "valid_through_ms", "snapshot_id"}
)
"""Of all other numbers a negative one is absurd."""

_Value = TypeVar("_Value")


class Codec(NamedTuple):
    """Turns values into forms of their Avro schema with ``write``, and back with ``read``."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def envelope_to_form(envelope: Envelope) -> tuple[str, Form]:
    """Return the name of the event's schema, and the record to write with it."""
    form: Form = dataclass_codec(Envelope).write(envelope)
    event = form.pop("event")
    kind: Any = type(event)
    return _SCHEMA_NAMES[kind], form | dataclass_codec(kind).write(event)


def envelope_from_form(schema_name: str, form: Form) -> Envelope:
    """Return the envelope of a record read with the named schema; ``ValueError`` if absurd."""
    event: Event = dataclass_codec(_EVENTS[schema_name]).read(form)
    envelope: Envelope = dataclass_codec(Envelope).read({**form, "event": event})
    _require_plausible(envelope.sender, event)
    return envelope


def _require_plausible(sender: Sender, event: Event) -> None:
    """Raise ``ValueError`` for what no type forbids.

    Names are of bounded length, because they are remembered, and answers repeat them (LOG-6).
    """
    if max(len(sender.member), len(sender.incarnation)) > SENDER_CHARACTERS_MAX:
        raise ValueError(f"a sender of more than {SENDER_CHARACTERS_MAX} characters")
    match event:
        case StartCommit(tables=()):
            raise ValueError("a START without a table")
        case WriteStatus(part=part, parts=parts, tables=tables):
            if not part < parts <= PARTS_MAX:
                raise ValueError(f"a status cannot have a part {part} of {parts}")
            if len({(table.table, table.uuid) for table in tables}) < len(tables):
                raise ValueError("a table is named twice")
        case Proposal(table=table, raw=raw) if max(len(table), len(raw)) > NAME_CHARACTERS_MAX:
            raise ValueError(f"a table's name of more than {NAME_CHARACTERS_MAX} characters")


# ------------------------------------------------------------------------------ by declared type


def _identity(value: Any) -> Any:
    return value


_SAME = Codec(_identity, _identity)


@cache
def dataclass_codec(kind: Any) -> Codec:
    """Return the codec of a dataclass; built once, from the declared types of its fields."""
    hints = get_type_hints(kind)
    inline = [(name, dataclass_codec(hint)) for name, hint in hints.items() if hint in _INLINE]
    own = [
        (name, _WIRE_NAMES.get(name, name), *_field_codec(name, hint))
        for name, hint in hints.items()
        if hint not in _INLINE
    ]

    # Calls of ``_identity`` are spared, for a status has many fields that need no change.
    def write(value: Any) -> Form:
        form: Form = {
            wire_name: getattr(value, name) if change is _identity else change(getattr(value, name))
            for name, wire_name, change, _ in own
        }
        for name, codec in inline:
            form |= codec.write(getattr(value, name))
        return form

    def read(form: Form) -> Any:
        values = {
            name: form[wire_name] if change is _identity else change(form[wire_name])
            for name, wire_name, _, change in own
        }
        for name, codec in inline:
            values[name] = codec.read(form)
        return kind(**values)

    return Codec(write, read)


def _field_codec(name: str, hint: Any) -> Codec:
    return _SAME if name in _ANY_NUMBER or name == "event" else _type_codec(hint)


def _type_codec(hint: Any) -> Codec:
    hint = getattr(hint, "__supertype__", hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):  # that of a NewType is the older one
        write, read = _type_codec(next(each for each in args if each is not NoneType))
        return Codec(_letting_none_pass(write), _letting_none_pass(read))
    if origin is tuple:
        write, read = _type_codec(args[0])
        return Codec(lambda values: [*map(write, values)], lambda forms: tuple(map(read, forms)))
    if origin is frozenset:
        return Codec(_partitions_to_form, _partitions_from_form)
    if origin is Mapping:
        return (
            _partition_map_codec(args[1]) if args[0] is TopicPartition else Codec(dict, _identity)
        )
    if issubclass(hint, Enum):
        return Codec(lambda value: value.value, hint)
    known = {
        **dict.fromkeys((str, bool, bytes), _SAME),
        int: Codec(_identity, _require_natural),
        Offsets: Codec(_offsets_to_form, _offsets_from_form),
        Struct: Codec(struct_to_json_without_ids, struct_from_json),
    }
    return known.get(hint) or dataclass_codec(hint)


def _letting_none_pass(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return (
        _identity if change is _identity else lambda value: None if value is None else change(value)
    )


def _require_natural(value: int) -> int:
    if not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{value} where only natural numbers up to {NUMBER_MAX} are possible")
    return value


# ---------------------------------------------------------------------------------- per partition


def _build_partition(topic: str, partition: int) -> TopicPartition:
    if not 0 <= partition <= PARTITION_MAX:
        raise ValueError(f"topic {topic!r} cannot have a partition {partition}")
    return TopicPartition(topic, partition)


def _group_by_topic(values: Mapping[TopicPartition, _Value]) -> dict[str, dict[int, _Value]]:
    topics: dict[str, dict[int, _Value]] = {}
    for at in sorted(values):
        topics.setdefault(at.topic, {})[at.partition] = values[at]
    return topics


def _dict_requiring_unique_keys(
    pairs: Iterable[tuple[TopicPartition, _Value]],
) -> dict[TopicPartition, _Value]:
    """Build a dictionary; refuse a partition named twice, for either could be meant."""
    values: dict[TopicPartition, _Value] = {}
    for at, value in pairs:
        if at in values:
            raise ValueError(f"{at} is named twice")
        values[at] = value
    return values


def _partition_map_codec(kind: Any) -> Codec:
    (write, read), list_name = dataclass_codec(kind), _LIST_NAMES[kind]

    def form_of(values: Mapping[TopicPartition, Any]) -> list[Form]:
        return [
            {"topic": topic, list_name: [{"partition": n, **write(v)} for n, v in each.items()]}
            for topic, each in _group_by_topic(values).items()
        ]

    def values_of(topics: list[Form]) -> dict[TopicPartition, Any]:
        return _dict_requiring_unique_keys(
            (_build_partition(topic["topic"], form["partition"]), read(form))
            for topic in topics
            for form in topic[list_name]
        )

    return Codec(form_of, values_of)


def _offsets_to_form(offsets: Offsets) -> list[Form]:
    return [
        {"topic": topic, "partitions": list(next_), "offsets": list(next_.values())}
        for topic, next_ in _group_by_topic(offsets).items()
    ]


def _offsets_from_form(topics: list[Form]) -> Offsets:
    return Offsets(
        _dict_requiring_unique_keys(
            (_build_partition(form["topic"], partition), _require_natural(offset))
            for form in topics
            for partition, offset in zip(form["partitions"], form["offsets"], strict=True)
        )
    )


def _partitions_to_form(partitions: frozenset[TopicPartition]) -> list[Form]:
    topics = _group_by_topic(dict.fromkeys(partitions))
    return [{"topic": topic, "partitions": list(numbers)} for topic, numbers in topics.items()]


def _partitions_from_form(topics: list[Form]) -> frozenset[TopicPartition]:
    return frozenset(
        _build_partition(form["topic"], number) for form in topics for number in form["partitions"]
    )
