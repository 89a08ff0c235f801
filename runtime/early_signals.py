"""Notes signals that come while a long-running command still imports what it runs.

Without it, SIGTERM would end the process as if it had been killed. This module imports next to
nothing, so that it can be the first thing that such a command does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading

_ENDS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)

_usual: dict[int, Any] = {}
_noted: list[int] = []


def catch_signals() -> None:
    """Note SIGINT and SIGTERM from now on; a second one has its usual effect."""
    for number in _ENDS:
        if signal.getsignal(number) not in (signal.SIG_IGN, _note_signal):
            _usual[number] = signal.signal(number, _note_signal)


def handler_before_catch(number: int) -> Any:
    """Return the signal's handler as if nothing had been caught."""
    found = signal.getsignal(number)
    return _usual[number] if found is _note_signal else found


def take_over_signals(handler: Callable[[int, Any], None], signals: Sequence[int] = _ENDS) -> None:
    """Let ``handler`` handle the signals, beginning with what came already."""
    for number in signals:
        signal.signal(number, handler)
    came = list(_noted)
    _noted.clear()
    for number in came:
        handler(number, None)


@contextmanager
def stop_set_by_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGINT and SIGTERM set the event in the body; a second one has its usual effect.

    Only the main thread may handle signals: in another one nothing is done.
    """
    import threading
    from queue import SimpleQueue

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Set in the handler, the event would block for ever where the signal came within a wait for it:
    # its lock is not reentrant, and such a queue is.
    came: SimpleQueue[int] = SimpleQueue()
    before = {number: handler_before_catch(number) for number in _ENDS}

    def ask_to_stop(number: int, _: object) -> None:
        signal.signal(number, before[number])
        came.put(number)

    def set_when_asked() -> None:
        while came.get():
            stop.set()

    setter = threading.Thread(target=set_when_asked, name="headgate-signals", daemon=True)
    take_over_signals(ask_to_stop)
    if not came.empty():  # before this: then nothing shall begin, and nobody waits yet
        stop.set()
    setter.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        came.put(0)
        setter.join()


def restore_and_resend_signals() -> None:
    """Let the signals have their usual effect again, also those that came already."""
    for number in _ENDS:
        if signal.getsignal(number) is _note_signal:
            signal.signal(number, _usual[number])
    came = list(_noted)
    _noted.clear()
    for number in came:
        os.kill(os.getpid(), number)


def _note_signal(number: int, _: object) -> None:
    if _noted:
        signal.signal(number, _usual[number])
        os.kill(os.getpid(), number)
    _noted.append(number)
