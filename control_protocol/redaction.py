"""Texts without secrets: messages of foreign libraries may hold what they were configured with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TypeVar

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import Event, Settlement, WriteStatus

MASK = "***"
REASON_CHARACTERS_MAX = 4_000
"""The limit of a reason that travels: a driver's message may be as long as its input."""

_URL_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):([^/@\s]+)@")
_SECRET_LENGTH_MIN = 4
"""Shorter values are not searched for in texts: masking every "1" would hide the message."""

_Error = TypeVar("_Error", bound=HeadgateError)


@dataclass(frozen=True, slots=True)
class Redaction:
    """Masks ``secrets``, and passwords inside URLs. Picklable; its ``repr`` shows none."""

    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    def __call__(self, text: str) -> str:
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= _SECRET_LENGTH_MIN:
                text = text.replace(secret, MASK)
        return without_url_password(text)

    def of_error(self, error: _Error) -> _Error:
        """Redact the error in place and return it."""
        error.message, error.hint = self(error.message), self(error.hint)
        error.args = tuple(self(a) if isinstance(a, str) else a for a in error.args)
        return error

    def of_event(self, event: Event) -> Event:
        """Return the event fit to travel: reasons are redacted, and bounded."""
        if isinstance(event, WriteStatus) and (event.failure is not None or event.troubles):
            failure = event.failure and self(event.failure)[:REASON_CHARACTERS_MAX]
            troubles = {table: self(why) for table, why in event.troubles.items()}
            return replace(event, failure=failure, troubles=troubles)
        if isinstance(event, Settlement) and event.reason:
            return replace(event, reason=self(event.reason)[:REASON_CHARACTERS_MAX])
        return event


def printable(text: str) -> str:
    """Return it on one line, without terminal control characters: people see strangers' words."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text)


def without_url_password(text: str) -> str:
    """Mask the password in ``scheme://user:password@host``."""
    return _URL_PASSWORD.sub(rf"\1:{MASK}@", text)
