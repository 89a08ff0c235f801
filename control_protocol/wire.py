"""Writes one sink's events as messages of the control topic, and reads them again (rule G4).

A message begins with its sink: another sink's is passed over before its seal is checked and its
body decoded, so that others' messages cost next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.control_protocol import codec
from headgate.control_protocol.codec import Skipped, SkipReason
from headgate.control_protocol.events import Envelope
from headgate.control_protocol.identifiers import SinkName, TopicId
from headgate.control_protocol.seal import Keys, taken_apart

REFUSED = (SkipReason.UNSIGNED, SkipReason.WRONGLY_SIGNED, SkipReason.SIGNED)
"""Messages of this very sink that were not believed: a person should hear of them."""


TOLD = (*REFUSED, SkipReason.OTHER_VERSION)
"""Those, and messages of this sink that participants of another version wrote."""


@dataclass(frozen=True, slots=True)
class Wire:
    """One sink's view of the topic; without a name, that of all sinks, which checks no seal."""

    sink: SinkName | None = None
    keys: Keys = field(default_factory=Keys)

    def written(self, envelope: Envelope, topic_id: TopicId) -> bytes:
        """Return the message. ``ValueError`` as ``codec.encode``."""
        return self.keys.sealed(codec.encode(envelope), envelope.sink, topic_id)

    def read(self, message: bytes, topic_id: TopicId) -> Envelope | Skipped:
        """Return the envelope, or why it is passed over; raises nothing."""
        sealed = taken_apart(message)
        plain = sealed.message if sealed else message
        named = codec.sink_of(plain)
        if named is None:
            return codec.decode(plain)  # returns the reason
        if self.sink is None:
            return codec.decode(plain)
        if named != self.sink:
            return Skipped(SkipReason.OTHER_SINK)
        if sealed is None:
            return Skipped(SkipReason.UNSIGNED) if self.keys else _understood(plain)
        if not self.keys:
            return Skipped(SkipReason.SIGNED, "control.key is not set here")
        if not self.keys.genuine(sealed, self.sink, topic_id):
            return Skipped(SkipReason.WRONGLY_SIGNED)
        return _understood(plain)


def _understood(message: bytes) -> Envelope | Skipped:
    """Decode a message of this sink: in a form that is unknown here, another version wrote it."""
    found = codec.decode(message)
    if isinstance(found, Skipped) and found.reason is SkipReason.UNKNOWN_SCHEMA:
        return Skipped(SkipReason.OTHER_VERSION, f"event form {found.detail}")
    return found
