"""Makes a store or catalog call that may hang in its own thread, and gives it up in time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from headgate.control_protocol.current_sink import bound_to_current_sink

_Answer = TypeVar("_Answer")


def call_with_timeout(seconds: float, what: str, call: Callable[[], _Answer]) -> _Answer:
    """Return what the call returns; raise ``TimeoutError`` if it takes longer."""
    answer: list[_Answer] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised by who waits
            failure.append(error)

    thread = threading.Thread(
        target=bound_to_current_sink(run), name="headgate-store-call", daemon=True
    )
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not answer:
        raise TimeoutError(f"{what}: no answer within {seconds:.0f} s")
    return answer[0]
