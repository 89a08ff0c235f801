"""The demo says that it was interrupted, whatever the interruption hits."""

from __future__ import annotations

import os
import signal

import pytest

from headgate.control_protocol.errors import ConfigurationError
from headgate.operations.demo import demo


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("swallowed", [False, True])
def test_an_interruption_is_one_even_if_it_comes_out_as_an_error(
    monkeypatch: pytest.MonkeyPatch, ending: signal.Signals, swallowed: bool
) -> None:
    def hit(*_: object) -> int:
        try:
            os.kill(os.getpid(), ending)
        except KeyboardInterrupt:
            if not swallowed:
                raise
            # What confluent-kafka does with an interruption while it reads a client's settings.
            raise ConfigurationError("the Kafka client does not accept its settings", "") from None
        return 0

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(demo, "_run_demo", hit)
    assert demo.main([]) == 128 + ending
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_an_error_without_an_interruption_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> int:
        raise ConfigurationError("no Java", "install one")

    monkeypatch.setattr(demo, "_run_demo", failing)
    with pytest.raises(ConfigurationError):
        demo.main([])
