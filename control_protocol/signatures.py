"""Signs a sink's messages, and tells genuine ones from others (rule LOG-4).

A sealed message is the plain one behind a header: four bytes that name the form, the key's id, and
the HMAC-SHA-256 of topic id, sink and message. Without a key nothing is sealed.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from headgate.control_protocol.identifiers import SinkName, TopicId

KEY_CHARACTERS_MIN = 32
"""Shorter keys could be guessed from one message; 32 hexadecimal digits hold 128 bits."""

_FORM = b"HGS\x01"
_ID_BYTES = 8
_MAC_BYTES = hashlib.sha256().digest_size
SEAL_BYTES = len(_FORM) + _ID_BYTES + _MAC_BYTES


@dataclass(frozen=True, slots=True)
class Sealed:
    """Holds a sealed message, taken apart and not yet verified."""

    key_id: bytes
    mac: bytes
    message: bytes


def split_signed_message(message: bytes) -> Sealed | None:
    """Return the parts of a sealed message; ``None`` when it is not sealed."""
    if not message.startswith(_FORM) or len(message) < SEAL_BYTES:
        return None
    mac_at = len(_FORM) + _ID_BYTES
    return Sealed(message[len(_FORM) : mac_at], message[mac_at:SEAL_BYTES], message[SEAL_BYTES:])


@dataclass(frozen=True, slots=True)
class Keys:
    """Holds a sink's secret keys: the first one signs, each of them is accepted."""

    texts: tuple[str, ...] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        return bool(self.texts)

    def sign_if_keyed(self, message: bytes, sink: SinkName, topic_id: TopicId) -> bytes:
        """Return the message behind its header; without a key, as it is."""
        if not self.texts:
            return message
        key = self.texts[0]
        return _FORM + _key_id(key) + _message_mac(key, message, sink, topic_id) + message

    def is_genuine(self, sealed: Sealed, sink: SinkName, topic_id: TopicId) -> bool:
        """Return whether somebody with one of the keys wrote it, for this sink and topic."""
        return any(
            hmac.compare_digest(sealed.key_id, _key_id(key))
            and hmac.compare_digest(sealed.mac, _message_mac(key, sealed.message, sink, topic_id))
            for key in self.texts
        )


def _key_id(key: str) -> bytes:
    """Return a name for the key that reveals nothing of it."""
    return hmac.digest(key.encode(), b"headgate control key id", "sha256")[:_ID_BYTES]


def _message_mac(key: str, message: bytes, sink: SinkName, topic_id: TopicId) -> bytes:
    """Sign each part behind its length: no two different triples look alike."""
    signed = hmac.new(key.encode(), b"headgate control event", "sha256")
    for part in (topic_id.encode(), sink.encode(), message):
        signed.update(len(part).to_bytes(8, "big"))
        signed.update(part)
    return signed.digest()
