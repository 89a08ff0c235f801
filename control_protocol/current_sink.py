"""Knows the sink for which a thread works, where a process has several.

Log lines and counters from anywhere below, libraries included, can then be told apart by sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

_SINK: ContextVar[str | None] = ContextVar("headgate_sink", default=None)


def current_sink() -> str | None:
    """Return the sink for which this thread works, if it works for one alone."""
    return _SINK.get()


@contextmanager
def working_for_sink(sink: str) -> Iterator[None]:
    """Let this thread work for one sink meanwhile."""
    before = _SINK.set(sink)
    try:
        yield
    finally:
        _SINK.reset(before)


def bound_to_current_sink(work: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap ``work`` for another thread, so that it works for the sink of the calling thread."""
    sink = _SINK.get()

    def run_in_context(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        _SINK.set(sink)
        return work(*args, **kwargs)

    return run_in_context
