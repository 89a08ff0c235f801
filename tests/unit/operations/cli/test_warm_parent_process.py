"""What a sink's process says last, when its worker forked it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from unit.config.test_load import MINIMAL

from headgate.control_protocol.errors import HeadgateError, StopSink
from headgate.operations.cli import warm_parent_process
from headgate.runtime.fleet.warm_parent import TurnReport, failure_event, try_write_event_line

SECRET = "sesame-open"


@pytest.mark.parametrize("error", [StopSink(f"no {SECRET}"), ValueError(f"no {SECRET}")])
def test_no_secret_is_among_the_last_words(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trips.toml"
    file.write_text(MINIMAL.replace("[kafka]\n", f'[kafka]\n"sasl.password" = "{SECRET}"\n'))

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(warm_parent_process, "run", fails)
    with pytest.raises(HeadgateError) as caught:
        warm_parent_process.run_sink(file, TurnReport(-1, file, "sink"))
    said = json.dumps(failure_event(caught.value, "trips"))
    assert SECRET not in said
    assert "no ***" in said


def test_last_words_fit_into_a_line_that_is_never_torn() -> None:
    said = failure_event(StopSink(5_000 * "\N{SNOWMAN}"), "trips")
    assert len(json.dumps(said)) < 4_096
    assert said["needs_person"]


def test_a_worker_that_does_not_read_holds_no_sink_up() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    count = 0
    while try_write_event_line(write, {"turned": 1, "text": 1_000 * "x"}):
        count += 1
    assert count > 1
    os.close(read)
    assert not try_write_event_line(write, {"turned": 1})
    os.close(write)
