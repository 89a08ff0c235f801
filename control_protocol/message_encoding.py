"""Encodes messages as Avro's single objects: envelopes of the control topic, and others' records.

``C3 01``, the schema's fingerprint (8 bytes, CRC-64-AVRO), the body. Schemas come from this
package, never from a message. Every array item of our schemas takes at least one byte and no schema
is recursive, so the cap on a message's length also bounds the work and the memory that a hostile
one can cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from io import BytesIO

import fastavro

from headgate.control_protocol.event_codec import Form, envelope_from_form, envelope_to_form
from headgate.control_protocol.events import PROTOCOL_VERSION, Envelope
from headgate.control_protocol.identifiers import Sender, SinkName, TopicId
from headgate.control_protocol.signatures import Keys, split_signed_message
from headgate.schemas import MessageSchema, control_schemas

MESSAGE_BYTES_MAX = 900 * 1024
"""Below the 1 MiB that a broker accepts by default, with room for its own framing."""

_MAGIC = b"\xc3\x01"
_HEADER_BYTES = 10
_BEGINNING_BYTES_MAX = 1024
_BEGINNING = fastavro.parse_schema(
    {
        "type": "record",
        "name": "headgate.Beginning",
        "fields": [{"name": "version", "type": "int"}, {"name": "sink", "type": "string"}],
    }
)
_UP_TO_SENDER = fastavro.parse_schema(
    {
        "type": "record",
        "name": "headgate.UpToSender",
        "fields": [
            {"name": "version", "type": "int"},
            {"name": "sink", "type": "string"},
            {"name": "epoch", "type": "long"},
            {"name": "transaction", "type": "long"},
            {"name": "member", "type": "string"},
            {"name": "incarnation", "type": "string"},
        ],
    }
)


class SkipReason(StrEnum):
    """Says why a message on the control topic is not for this version of headgate."""

    TOO_LONG = "too-long"
    NOT_OURS = "not-ours"
    UNKNOWN_SCHEMA = "unknown-schema"
    OTHER_VERSION = "other-version"
    UNDECODABLE = "undecodable"
    OTHER_SINK = "other-sink"
    UNSIGNED = "unsigned"
    WRONGLY_SIGNED = "wrongly-signed"
    SIGNED = "signed"
    OTHER_SENDER = "other-sender"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Says that a message is passed over; ``detail`` is for a person's log."""

    reason: SkipReason
    detail: str = ""


class AvroMessages:
    """Reads and writes messages of some schemas, each with the field ``version``."""

    def __init__(self, schemas: Iterable[MessageSchema], version: int) -> None:
        self._version = version
        self._by_name = {
            schema.name: (_MAGIC + schema.fingerprint, fastavro.parse_schema(schema.definition))
            for schema in schemas
        }
        self._by_header = {header: (name, s) for name, (header, s) in self._by_name.items()}

    def message_prefix_of_schema(self, schema_name: str) -> bytes:
        """Return the first bytes of each message of this schema."""
        return self._by_name[schema_name][0]

    def serialize(self, schema_name: str, form: Form) -> bytes:
        header, schema = self._by_name[schema_name]
        body = BytesIO()
        body.write(header)
        fastavro.schemaless_writer(body, schema, form)
        return body.getvalue()

    def parse(self, message: bytes) -> tuple[str, Form] | Skipped:
        """Return the schema's name and the record; never raises, whatever the bytes."""
        if len(message) > MESSAGE_BYTES_MAX:
            return Skipped(SkipReason.TOO_LONG, f"{len(message)} bytes")
        if message[:2] != _MAGIC:
            return Skipped(SkipReason.NOT_OURS)
        known = self._by_header.get(message[:_HEADER_BYTES])
        if known is None:
            return Skipped(SkipReason.UNKNOWN_SCHEMA, message[2:_HEADER_BYTES].hex())
        name, schema = known
        body = BytesIO(message[_HEADER_BYTES:])
        try:
            form = fastavro.schemaless_reader(body, schema, None)
        except UNREADABLE as problem:
            return skipped_as_undecodable(name, problem)
        if form["version"] != self._version:
            return Skipped(SkipReason.OTHER_VERSION, f"protocol version {form['version']}")
        if body.read(1):
            return Skipped(SkipReason.UNDECODABLE, f"{name}: more bytes than its schema has")
        return name, form


UNREADABLE = (EOFError, IndexError, OverflowError, ValueError)
"""What fastavro raises on foreign bytes: an early end, no such branch, invalid text; and our own
checks of what a record holds."""


def skipped_as_undecodable(schema_name: str, problem: Exception) -> Skipped:
    """Return that a message of this schema holds nothing that can be."""
    return Skipped(SkipReason.UNDECODABLE, f"{schema_name}: {type(problem).__name__} {problem}")


_EVENTS = AvroMessages(control_schemas(), PROTOCOL_VERSION)
_STATUS = _EVENTS.message_prefix_of_schema("write-status")


def encode_envelope(envelope: Envelope) -> bytes:
    """Return the envelope as one message.

    Raises ``ValueError`` when it is longer than ``MESSAGE_BYTES_MAX`` (statuses never are when
    ``split_status`` has split them), or holds what ``decode_envelope`` would refuse:
    nobody would ever hear it, and it would be repeated for ever.
    """
    name, form = envelope_to_form(envelope)
    envelope_from_form(name, form)
    message = _EVENTS.serialize(name, form)
    if len(message) > MESSAGE_BYTES_MAX:
        raise ValueError(
            f"sink {envelope.sink}: a {name} of {len(message)} bytes does not fit into a control"
            f" message ({MESSAGE_BYTES_MAX} bytes)"
        )
    return message


def encoded_size_bytes(envelope: Envelope) -> int:
    """Return the length of its message; unlike ``encode_envelope``, accept any content."""
    return len(_EVENTS.serialize(*envelope_to_form(envelope)))


def decode_envelope(message: bytes) -> Envelope | Skipped:
    """Return the envelope in a message, or why there is none; never raises, whatever the bytes."""
    parsed = _EVENTS.parse(message)
    if isinstance(parsed, Skipped):
        return parsed
    try:
        return envelope_from_form(*parsed)
    except UNREADABLE as problem:
        return skipped_as_undecodable(parsed[0], problem)


def sink_in_message(message: bytes) -> str | None:
    """Return the sink that a message names, from its first fields alone; ``None`` if it is foreign.

    Every schema begins with the version and the sink, in other versions of headgate, too.
    """
    if len(message) > MESSAGE_BYTES_MAX or message[:2] != _MAGIC:
        return None
    beginning = BytesIO(message[_HEADER_BYTES : _HEADER_BYTES + _BEGINNING_BYTES_MAX])
    try:
        form = fastavro.schemaless_reader(beginning, _BEGINNING, None)
    except UNREADABLE:
        return None
    return str(form["sink"])


# Writes one sink's events as messages of the control topic, and reads them again (rule LOG-4).
#
# A message begins with its sink: another sink's is passed over before its seal is checked and its
# body decoded, so that others' messages cost next to nothing.


REFUSED = (SkipReason.UNSIGNED, SkipReason.WRONGLY_SIGNED, SkipReason.SIGNED)
"""Messages of this very sink that were not believed: a person should hear of them."""


REPORTED = (*REFUSED, SkipReason.OTHER_VERSION)
"""Those, and messages of this sink that participants of another version wrote."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Encodes for one sink, and reads what is meant for it; without a name it reads that of all
    sinks, and checks no seal.

    With ``statuses_of``, it passes over the statuses of every other sender (LOG-2).
    """

    sink: SinkName | None = None
    keys: Keys = field(default_factory=Keys)
    statuses_of: Sender | None = None

    def encode_and_sign_if_keyed(self, envelope: Envelope, topic_id: TopicId) -> bytes:
        """Return the message, unsigned without keys.

        Raises ``ValueError`` as ``encode_envelope``.
        """
        return self.keys.sign_if_keyed(encode_envelope(envelope), envelope.sink, topic_id)

    def verify_and_decode(self, message: bytes, topic_id: TopicId) -> Envelope | Skipped:
        """Return the envelope, or why it is passed over; raises nothing.

        Without a ``sink`` it verifies nothing.
        """
        sealed = split_signed_message(message)
        plain = sealed.message if sealed else message
        named = sink_in_message(plain)
        if named is None:
            return decode_envelope(plain)  # returns the reason
        if self.sink is None:
            return decode_envelope(plain)
        if named != self.sink:
            return Skipped(SkipReason.OTHER_SINK)
        if self.statuses_of is not None and _is_status_of_other_sender(plain, self.statuses_of):
            return Skipped(SkipReason.OTHER_SENDER)
        if sealed is None:
            return (
                Skipped(SkipReason.UNSIGNED) if self.keys else _decode_message_of_this_sink(plain)
            )
        if not self.keys:
            return Skipped(SkipReason.SIGNED, "control.key is not set here")
        if not self.keys.is_genuine(sealed, self.sink, topic_id):
            return Skipped(SkipReason.WRONGLY_SIGNED)
        return _decode_message_of_this_sink(plain)


def _is_status_of_other_sender(message: bytes, own_sender: Sender) -> bool:
    """Return whether the message is anybody else's status, from its first fields."""
    if not message.startswith(_STATUS):
        return False
    beginning = BytesIO(message[_HEADER_BYTES : _HEADER_BYTES + _BEGINNING_BYTES_MAX])
    try:
        form = fastavro.schemaless_reader(beginning, _UP_TO_SENDER, None)
    except UNREADABLE:
        return False  # decoding it says what is wrong with it
    return (form["member"], form["incarnation"]) != (own_sender.member, own_sender.incarnation)


def _decode_message_of_this_sink(message: bytes) -> Envelope | Skipped:
    """Decode a message of this sink: in a form that is unknown here, another version wrote it."""
    found = decode_envelope(message)
    if isinstance(found, Skipped) and found.reason is SkipReason.UNKNOWN_SCHEMA:
        return Skipped(SkipReason.OTHER_VERSION, f"event form {found.detail}")
    return found
