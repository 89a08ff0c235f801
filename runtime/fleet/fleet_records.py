"""Defines what stands on a fleet's two topics: specs in slots, and what workers see (FLEET-1).

The fleet's topic has a partition per slot; key: a sink, or ``SINK#2`` for its second participant;
value: a ``SinkSpec`` or a ``Removal``. Its state topic has one partition; keys ``sink/SLOT/KEY``
and ``worker/NAME``; values ``ObservedSink`` and ``ObservedWorker``. The slot is in the key, for a
worker that a sink leaves would otherwise remove what the one that it goes to has just told.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from headgate.control_protocol.event_codec import dataclass_codec
from headgate.control_protocol.identifiers import SinkName, TopicId
from headgate.control_protocol.message_encoding import (
    MESSAGE_BYTES_MAX,
    UNREADABLE,
    AvroMessages,
    Skipped,
    SkipReason,
    skipped_as_undecodable,
)
from headgate.control_protocol.signatures import Keys, split_signed_message
from headgate.runtime.fleet.sink_life import DesiredState, LifeState
from headgate.schemas import fleet_schemas

RECORDS_VERSION = 1
REVISION_CHARACTERS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """Says what a person wants of the sink ``key``, in the slot that it is placed in.

    ``number`` counts up over all specs of the fleet: of a sink's specs in two slots the higher
    one counts (FLEET-2). ``restarts`` counts up with each start that a person wants. ``pinned``: a
    person moved it here, so the balancer leaves it.
    """

    version: int = RECORDS_VERSION
    key: str
    slot: int
    number: int
    state: DesiredState = DesiredState.RUNNING
    file: str
    memory_mib: int = 0
    restarts: int = 0
    pinned: bool = False
    moved_ms: int = 0
    actor: str = ""
    time_ms: int = 0

    @property
    def revision(self) -> str:
        """Return a hash of the file: what runs is compared by it with what is wanted."""
        return revision_of(self.file.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Says that nobody wants ``key`` in this slot any longer: a tombstone that can be signed
    (FLEET-3).
    """

    version: int = RECORDS_VERSION
    key: str
    slot: int
    number: int
    actor: str = ""
    time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Asks a worker to give its slots to the others, in this start of it; said in each slot it has.

    The next start takes slots again, so nothing has to be undone after the maintenance.
    """

    version: int = RECORDS_VERSION
    worker: str
    incarnation: str
    slot: int
    number: int
    actor: str = ""
    time_ms: int = 0

    @property
    def key(self) -> str:
        return f"{_WORKER}{self.worker}"


FleetCommand = SinkSpec | Removal | Drain
"""What a person says on the fleet's topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSink:
    """Says what a worker sees of a sink. Times are spans up to the record: no clock is compared.

    ``number``: of the spec that it follows; ``revision``: of the file that its process works with,
    empty without one. ``code`` and ``text``: the error that ended it, or why it is not started.
    ``restarts``: processes that ended unasked since the worker started. What nobody knows is
    ``None``.
    """

    version: int = RECORDS_VERSION
    key: str
    slot: int
    worker: str
    incarnation: str
    state: LifeState
    for_ms: int = 0
    number: int = 0
    revision: str = ""
    pid: int = 0
    doing: str = ""
    code: str = ""
    text: str = ""
    tries: int = 0
    next_try_in_ms: int | None = None
    restarts: int = 0
    memory_bytes: int | None = None
    cpu_ms: int | None = None
    cpu_permille: int | None = None
    leads: bool | None = None
    partitions: int | None = None
    lag_records: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedWorker:
    """Shows that a worker lives. ``incarnation`` is new for every start of it."""

    version: int = RECORDS_VERSION
    worker: str
    incarnation: str
    release: str = ""
    slots: tuple[int, ...] = ()
    for_ms: int = 0
    leaving: bool = False
    processes: int = 0
    cores: int = 0
    memory_bytes: int | None = None
    refused: int = 0


def revision_of(content: bytes) -> str:
    """Return what names this content of a sink file."""
    return hashlib.sha256(content).hexdigest()[:REVISION_CHARACTERS]


# ------------------------------------------------------------------------------------------ keys

_PARTICIPANT = "#"
_SINK, _WORKER = "sink/", "worker/"


def sink_of_key(key: str) -> SinkName:
    """Return the sink that a spec's key names: that of ``SINK#2`` is ``SINK``."""
    return SinkName(key.partition(_PARTICIPANT)[0])


def key_of_participant(sink: SinkName, number: int) -> str:
    """Return the key of a sink's participant; the first one has the sink's name."""
    return sink if number == 1 else f"{sink}{_PARTICIPANT}{number}"


def state_topic_key_of(value: ObservedSink | ObservedWorker) -> str:
    """Return the key that a worker's record has on the state topic."""
    if isinstance(value, ObservedWorker):
        return f"{_WORKER}{value.worker}"
    return f"{_SINK}{value.slot}/{value.key}"


# ------------------------------------------------------------------------------------- messages

_MESSAGES = AvroMessages(fleet_schemas(), RECORDS_VERSION)
_NAMES: dict[type, str] = {
    SinkSpec: "wish",
    Removal: "removal",
    Drain: "drain",
    ObservedSink: "sink",
    ObservedWorker: "worker",
}
_KINDS: dict[str, Any] = {name: kind for kind, name in _NAMES.items()}


def _encode(value: Any) -> bytes:
    kind: Any = type(value)
    name = _NAMES[kind]
    message = _MESSAGES.serialize(name, dataclass_codec(kind).write(value))
    if len(message) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a {name} of {len(message)} bytes; at most {MESSAGE_BYTES_MAX} fit")
    return message


def _decode_or_skip(message: bytes) -> FleetCommand | ObservedSink | ObservedWorker | Skipped:
    parsed = _MESSAGES.parse(message)
    if isinstance(parsed, Skipped):
        return parsed
    name, form = parsed
    try:
        decoded: FleetCommand | ObservedSink | ObservedWorker = dataclass_codec(_KINDS[name]).read(
            form
        )
    except UNREADABLE as problem:
        return skipped_as_undecodable(name, problem)
    return decoded


_NO_ID = TopicId("")
UNSIGNED_TOMBSTONE = Skipped(SkipReason.UNSIGNED, "a tombstone")


@dataclass(frozen=True, slots=True)
class CommandWire:
    """Writes and reads what stands on the fleet's topic, signed where there are keys (FLEET-3)."""

    keys: Keys = field(default_factory=Keys)
    topic_id: TopicId = _NO_ID

    def encode(self, value: FleetCommand) -> bytes | None:
        """Return the record's value. A removal that nobody can sign is Kafka's tombstone."""
        if isinstance(value, Removal) and not self.keys:
            return None
        return self.keys.sign_if_keyed(_encode(value), SinkName(value.key), self.topic_id)

    def decode(self, key: str, slot: int, message: bytes | None) -> FleetCommand | Skipped:
        """Return what a record says, or why it is not believed; raises nothing."""
        if message is None:
            if self.keys:
                return UNSIGNED_TOMBSTONE
            return Removal(key=key, slot=slot, number=0)
        sealed = split_signed_message(message)
        if sealed is None and self.keys:
            return Skipped(SkipReason.UNSIGNED)
        if sealed and not self.keys:
            return Skipped(SkipReason.SIGNED, "fleet.key is not set here")
        if sealed and not self.keys.is_genuine(sealed, SinkName(key), self.topic_id):
            return Skipped(SkipReason.WRONGLY_SIGNED)
        found = _decode_or_skip(sealed.message if sealed else message)
        if isinstance(found, Skipped):
            return found
        if not isinstance(found, FleetCommand):
            return Skipped(SkipReason.NOT_OURS, "a state among specs")
        if (found.key, found.slot) != (key, slot):
            return Skipped(SkipReason.OTHER_SINK, f"it is of {found.key} in slot {found.slot}")
        return found


def encode_observed(value: ObservedSink | ObservedWorker) -> bytes:
    """Return the value of a record on the state topic."""
    return _encode(value)


def decode_observed(key: str, message: bytes) -> ObservedSink | ObservedWorker | Skipped:
    """Return what a worker says under this key of the state topic; raises nothing."""
    found = _decode_or_skip(message)
    if isinstance(found, FleetCommand):
        return Skipped(SkipReason.NOT_OURS, "a spec among states")
    if not isinstance(found, Skipped) and state_topic_key_of(found) != key:
        return Skipped(SkipReason.OTHER_SINK, f"it is of {state_topic_key_of(found)}")
    return found
