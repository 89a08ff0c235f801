"""Lets a call that takes long say that it goes on, to whoever watches the thread that makes it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

_NOTE: ContextVar[Callable[[], None]] = ContextVar("headgate_progress", default=lambda: None)


def set_progress_callback_of_thread(note: Callable[[], None]) -> None:
    """Call ``note`` from now on whenever this thread says that it goes on.

    No other thread inherits it: what goes on elsewhere does not excuse a call that hangs here.
    """
    _NOTE.set(note)


def note_call_progress() -> None:
    """Say that this thread's call goes on; nothing is done where nobody watches the thread."""
    _NOTE.get()()
