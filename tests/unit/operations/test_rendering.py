"""What strangers may say on the control topic, on a person's terminal and in a log."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from headgate.control_protocol.redacted_log import redacted_logger
from headgate.operations.rendering import show_status
from headgate.operations.status import ParticipantStatus, StatusReport
from headgate.sink.condition import LastError

NASTY = "m\x1b[2J\nok    all is well\r\u202e"
SHOWN = "m [2J ok    all is well"


def test_point_6_a_forged_name_or_text_moves_no_terminal() -> None:
    forged = ParticipantStatus(NASTY, "life", NASTY, (), 0, 1)
    report = StatusReport(
        sink="trips",
        condition="failing",
        table="db.trips",
        uuid="uuid",
        branch="main",
        snapshot_id=None,
        epoch=1,
        transaction="1.1",
        coordinator=NASTY,
        open_transaction=None,
        paused=False,
        owed_rows=0,
        last_commit_ms=None,
        valid_through_ms=None,
        partitions=(),
        transactions=(),
        participants=(forged,),
        participants_known=True,
        last_error=LastError("HG-207", NASTY, NASTY, 1),
        notes=(),
        exit_code=1,
    )
    shown = io.StringIO()
    show_status(Console(file=shown, width=300), report)
    text = shown.getvalue()
    assert text.count(SHOWN) == 5
    assert not any(line.startswith("ok") for line in text.splitlines())
    assert all(line.isprintable() for line in text.split("\n"))


def test_point_6_a_forged_name_makes_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    redacted_logger("headgate.coordinator").warning("status of %s", NASTY)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"status of {SHOWN}")
    assert record.getMessage().isprintable()
