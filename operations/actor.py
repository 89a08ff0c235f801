"""Identifies who issues a command, for commit records and notices."""

from __future__ import annotations

import getpass
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from headgate.control_protocol.events import Notice, NoticeKind
from headgate.control_protocol.identifiers import Sender
from headgate.control_protocol.record import OPERATOR
from headgate.sink.agreement import agreed, fingerprint
from headgate.sink.departure import say
from headgate.sink.settings import SinkSettings

_ACTOR: ContextVar[str] = ContextVar("actor", default="")
_CHARS_MAX = 200
_ANSWER_MS = 8_000
"""Processes leave because of this notice when the sink is stopped, so it gets more patience."""


@contextmanager
def acting(actor: str) -> Iterator[None]:
    """Name somebody other than this process's user, within this context."""
    before = _ACTOR.set(actor[:_CHARS_MAX])
    try:
        yield
    finally:
        _ACTOR.reset(before)


def actor() -> str:
    """Return who acts: the user of this process, unless somebody else was named."""
    if named := _ACTOR.get():
        return named
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"[:_CHARS_MAX]


def tell(settings: SinkSettings, what: str) -> None:
    """Announce on the control topic what was done, by whom, and with which sink file; best effort.

    For people, and for those that wait for a start (P11).
    """
    sender = Sender(OPERATOR, uuid.uuid4().hex[:12])
    digest = fingerprint(dict(agreed(settings)))
    notice = Notice(NoticeKind.ASKED, text=what, actor=actor(), configuration=digest)
    say(settings, sender, notice, answer_ms=_ANSWER_MS)
