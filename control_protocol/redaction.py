"""Keeps secrets out of texts: libraries' messages may hold what they were configured with."""

from __future__ import annotations

import base64
import functools
import json
import re
from dataclasses import dataclass, field, replace
from typing import TypeVar

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import Event, Settlement, WriteStatus

MASK = "***"
REASON_CHARACTERS_MAX = 4_000
"""The limit of a reason that travels: a driver's message may be as long as its input."""

_URL_PASSWORD = re.compile(
    r"(?<=://)([^/@:\s\[]*):(?!@|\d{1,5}[/\"'\\])"  # a port, not a password
    r"(?:(?!://)[^/@\s])*(?:/(?:(?!://)[^@\s\"'<>])*)?"  # of the next URL in a list nothing
    r"(?:@[^@/?#\s\"'<>]+)*@"  # to the host's own, not to one in its path
)
"""SQLAlchemy takes a password with slashes, as base64 has them."""
_HEADER = re.compile(
    r"(?i)(\b(?:authorization|access_token|refresh_token|client_secret)\b[\"']{0,2}\s*[:=]\s*[\"']?"
    r"(?:(?:basic|bearer|digest|token)\s+)?)[^\s\"',;}]{8,}"
)
_SCHEME = re.compile(r"(?i)\b((?:basic|bearer)\s+)(?=[A-Za-z._~+/=-]*\d)[A-Za-z0-9._~+/=-]{12,}")
"""Tokens that a server sent back: this process may have got them from another server, so that no
setting holds them."""
_TOKEN_WORDS = ("authorization", "token", "client_secret", "basic", "bearer")
"""In small letters: of these, each of both expressions needs one."""

_SECRET_LENGTH_MIN = 4
"""Shorter values are not searched for in texts: masking every "1" would hide the message."""

_Error = TypeVar("_Error", bound=HeadgateError)


@dataclass(frozen=True, slots=True)
class Redaction:
    """Masks ``secrets``, and passwords inside URLs. Picklable; its ``repr`` shows none."""

    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    def __call__(self, text: str) -> str:
        for form in _secret_spellings(self.secrets):
            if form in text:
                text = text.replace(form, MASK)
        text = with_url_password_masked(text)
        if text.isascii() and not any(word in text.lower() for word in _TOKEN_WORDS):
            return text  # searching for what is hardly ever there costs a bad record the most
        return _SCHEME.sub(rf"\1{MASK}", _HEADER.sub(rf"\1{MASK}", text))

    def redact_in_place(self, error: _Error) -> _Error:
        """Redact the error in place and return it."""
        error.message, error.hint = self(error.message), self(error.hint)
        error.args = tuple(self(a) if isinstance(a, str) else a for a in error.args)
        return error

    def redact_event(self, event: Event) -> Event:
        """Return the event fit to travel: reasons are redacted, and bounded."""
        if isinstance(event, WriteStatus) and (event.failure is not None or event.troubles):
            failure = event.failure and self(event.failure)[:REASON_CHARACTERS_MAX]
            troubles = {
                table: self(why)[:REASON_CHARACTERS_MAX] for table, why in event.troubles.items()
            }
            return replace(event, failure=failure, troubles=troubles)
        if isinstance(event, Settlement) and event.reason:
            return replace(event, reason=self(event.reason)[:REASON_CHARACTERS_MAX])
        return event


@functools.lru_cache(maxsize=64)
def _secret_spellings(secrets: frozenset[str]) -> tuple[str, ...]:
    """Return what to search for, the longest first: secrets as they are, and as servers get them.

    A client sends user and password in Base64, forms and URLs escape some characters, and so does
    the JSON of an answer; an error of ours may quote a value as Python does.
    """
    found: set[str] = set()
    for secret in secrets:
        if len(secret) < _SECRET_LENGTH_MIN:
            continue
        plain = secret.encode()
        for encoded in (base64.b64encode(plain), base64.urlsafe_b64encode(plain)):
            found |= {encoded.decode(), encoded.decode().rstrip("=")}
        escaped = "".join(c if c.isalnum() or c in "-._~" else _percent_encode(c) for c in secret)
        found |= {secret, escaped, escaped.replace("%20", "+"), json.dumps(secret)[1:-1]}
        found.add(repr(secret)[1:-1])
    return tuple(sorted(found, key=lambda form: (-len(form), form)))


def _percent_encode(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def to_printable_line(text: str) -> str:
    """Return it on one line, without terminal control characters: people see strangers' words."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text)


def with_url_password_masked(text: str) -> str:
    """Mask the password in ``scheme://user:password@host``."""
    return _URL_PASSWORD.sub(rf"\1:{MASK}@", text) if "://" in text else text
