"""Does work beside the coordinator, in a thread that commits wake and never wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from headgate.control_protocol.current_sink import bound_to_current_sink

JOIN_S = 2.0
"""A call that takes longer ends by itself later, and nothing follows it."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long the thread waits: when it failed, when nobody wakes it, and between two rounds."""

    again_s: float = 10.0
    refresh_s: float = 3_600.0
    between_s: float = 0.0


class WokenThread:
    """Calls ``work`` when it is woken; again soon when that returns ``False``.

    It starts when it is created. ``work`` asks ``is_ending`` where it waits; ``at_end`` is called
    once, in the thread, when it is closed, and never in the middle of ``work``.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], bool],
        pauses: Pauses | None = None,
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        self._work = work
        self._at_end = at_end
        self._pauses = pauses or Pauses()
        self._woken = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=bound_to_current_sink(self._run), name=name)
        self._thread.daemon = True
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def is_ending(self) -> bool:
        return self._ending.is_set()

    def close(self) -> None:
        """End the thread."""
        self._ending.set()
        self._woken.set()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._woken.wait(self._pauses.refresh_s)
            self._woken.clear()
            if self._ending.is_set():
                break
            if self._work():
                self._ending.wait(self._pauses.between_s)
            else:
                self._ending.wait(self._pauses.again_s)
                self._woken.set()
        self._at_end()
