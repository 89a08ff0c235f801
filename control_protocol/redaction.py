"""Texts without secrets: what foreign libraries say may hold what they were configured with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TypeVar

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import Event, Settlement, WriteStatus

MASK = "***"
REASON_CHARACTERS_MAX = 4_000
"""Of a reason that travels: what a driver says may be as long as what it was given."""

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
        """The same error, redacted in place."""
        error.message, error.hint = self(error.message), self(error.hint)
        error.args = tuple(self(a) if isinstance(a, str) else a for a in error.args)
        return error

    def of_event(self, event: Event) -> Event:
        """The event as it may travel: reasons are redacted, and bounded."""
        if isinstance(event, WriteStatus) and (event.failure is not None or event.troubles):
            failure = event.failure and self(event.failure)[:REASON_CHARACTERS_MAX]
            troubles = {table: self(why) for table, why in event.troubles.items()}
            return replace(event, failure=failure, troubles=troubles)
        if isinstance(event, Settlement) and event.reason:
            return replace(event, reason=self(event.reason)[:REASON_CHARACTERS_MAX])
        return event


def printable(text: str) -> str:
    """On one line, and without what a terminal obeys: strangers' words are shown to people."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text)


def without_url_password(text: str) -> str:
    """``scheme://user:password@host`` with the password masked."""
    return _URL_PASSWORD.sub(rf"\1:{MASK}@", text)
