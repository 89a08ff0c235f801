"""The driver of a Spark job ends with the `spark-submit` that started it."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest
from unit.config.test_load import MINIMAL

from headgate.runtime import console_log, early_signals, process, spark_submit


def test_a_driver_that_waits_for_a_start_ends_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sink.toml"
    file.write_text(MINIMAL)
    monkeypatch.setattr(sys, "argv", ["spark_submit.py", "--config", str(file)])
    monkeypatch.setattr(early_signals, "catch_signals", lambda: None)
    monkeypatch.setattr(console_log, "send_redacted_logs_to_stderr", lambda _: None)
    monkeypatch.setattr(process, "may_take_part", lambda _: False)
    monkeypatch.setattr(process, "_TURN_S", 0)
    parents = itertools.chain([7, 7, 7], itertools.repeat(1))
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    turns = itertools.count(1)

    def is_stopped_by_operator(_: object) -> bool:
        assert next(turns) < 10, "it waits without a parent"
        return True

    monkeypatch.setattr(process, "LOOKED_AT_S", 0)
    monkeypatch.setattr(process, "is_stopped_by_operator", is_stopped_by_operator)
    assert spark_submit.main() == 0
