"""A signal may come while its thread waits for the very event that it is to set."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from headgate.runtime import early_signals, process

ENDS = (signal.SIGINT, signal.SIGTERM)


class Waited(threading.Event):
    """An event that this thread is just waiting for: setting it here would take for ever."""

    def set(self) -> None:
        assert threading.current_thread() is not threading.main_thread()
        super().set()


@pytest.fixture(autouse=True)
def usual() -> Iterator[list[int]]:
    """What signals do without headgate: they are noted."""
    noted: list[int] = []
    before = [signal.signal(each, lambda number, _: noted.append(number)) for each in ENDS]
    yield noted
    for each, handler in zip(ENDS, before, strict=True):
        signal.signal(each, handler)


def of_participant(stop: threading.Event) -> AbstractContextManager[None]:
    return process.handle_signals(stop, [])


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("handle", [of_participant, early_signals.stop_set_by_signals])
def test_the_first_signal_sets_the_event_from_elsewhere_and_a_second_has_its_usual_effect(
    handle: Callable[[threading.Event], AbstractContextManager[None]],
    number: signal.Signals,
    usual: list[int],
) -> None:
    stop = Waited()
    with handle(stop):
        with stop._cond:  # type: ignore[attr-defined]  # as `wait` does before and after it sleeps
            signal.raise_signal(number)
        assert stop.wait(20)
        assert usual == []
        signal.raise_signal(number)
        assert usual == [number]
    signal.raise_signal(number)
    assert usual == [number] * 2
    assert "headgate-signals" not in {each.name for each in threading.enumerate()}


def test_one_that_came_before_is_heard_at_once_and_other_threads_handle_none(
    usual: list[int],
) -> None:
    early_signals.catch_signals()
    signal.raise_signal(signal.SIGTERM)
    stop = threading.Event()
    elsewhere = threading.Thread(target=lambda: early_signals.stop_set_by_signals(stop).__enter__())
    elsewhere.start()
    elsewhere.join()
    assert not stop.is_set()
    with early_signals.stop_set_by_signals(stop):
        assert stop.is_set()
    assert usual == []
