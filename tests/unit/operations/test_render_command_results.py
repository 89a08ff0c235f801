"""What strangers write on the control topic does no harm on a terminal or in a log."""

from __future__ import annotations

import io
import logging
import time
from dataclasses import replace

import pytest
from rich.console import Console

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.redacting_loggers import LINE_CHARACTERS_MAX, redacted_logger
from headgate.operations.audit.report import AuditReport, Finding, PartitionAudit
from headgate.operations.dry_run import DryRun, DryRunTable, Misfit
from headgate.operations.http.status_page import _table_of_commits
from headgate.operations.many_tables.list import FilledTable, TablesReport
from headgate.operations.render_command_results import (
    show_audit,
    show_dry_run,
    show_status,
    show_tables,
)
from headgate.operations.status.report import (
    MEND_TABLES,
    CommitSummary,
    ParticipantStatus,
    StatusReport,
)
from headgate.runtime.health import LastError

NASTY = "m\x1b[2J\nok    all is well\r\u202e"
SHOWN = "m [2J ok    all is well"


def status_of(error: LastError, *participants: ParticipantStatus) -> StatusReport:
    return StatusReport(
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
        pending_rows=0,
        last_commit_ms=None,
        valid_through_ms=None,
        partitions=(),
        transactions=(),
        participants=participants,
        participants_known=True,
        last_error=error,
        notes=(),
        exit_code=1,
    )


def test_a_forged_name_or_text_moves_no_terminal() -> None:
    forged = ParticipantStatus(NASTY, "life", NASTY, (), 0, 1)
    report = replace(status_of(LastError("HG-207", NASTY, NASTY, 1), forged), notes=(NASTY,))
    shown = io.StringIO()
    show_status(Console(file=shown, width=300), report)
    text = shown.getvalue()
    assert text.count(SHOWN) == 6
    assert not any(line.startswith("ok") for line in text.splitlines())
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize(
    "reason", ["no [WRITE] on [/lake/db]", "[parameters: ('lake',)]", "list[int]", NASTY]
)
def test_why_a_table_is_suspended_is_shown_as_it_was_said(reason: str) -> None:
    suspended = FilledTable("db.a", "suspended", "1.1", 5, None, 0, 1, reason)
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    show_tables(console, TablesReport("db.ledger", "1.1", (suspended,)))
    text = shown.getvalue()
    assert f"db.a suspended: {SHOWN if reason == NASTY else reason}" in text
    assert MEND_TABLES in text
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize(
    ("minutes", "age"), [(0, "0 min ago"), (119, "119 min ago"), (185, "3 h ago"), (1_500, "")]
)
def test_a_past_error_is_told_in_short_for_a_day(minutes: int, age: str) -> None:
    at_ms = time.time_ns() // 1_000_000 - minutes * 60_000
    error = LastError("HG-202", "db.trips\x1b[2J\n" + "was dropped " * 50, "m", at_ms, past=True)
    shown = io.StringIO()
    show_status(Console(file=shown, width=300), status_of(error))
    told = [line for line in shown.getvalue().splitlines() if "HG-202" in line]
    assert len(told) == bool(age)
    for line in told:
        assert f"past error        HG-202, {age}: db.trips [2J was dropped" in line
        assert line.endswith(" ...")
        assert len(line) < 140


def test_a_forged_name_makes_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    redacted_logger("headgate.coordinator").warning("status of %s", NASTY)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"status of {SHOWN}")
    assert record.getMessage().isprintable()


@pytest.mark.parametrize(
    ("through_ms", "told"),
    [
        (1_764_519_318_000, "2025-11-30 16:15:18 UTC"),
        (1_764_519_318_000_000, "1764519318000000 ms after 1970"),
        (2**63 - 1, f"{2**63 - 1} ms after 1970"),
    ],
)
def test_a_time_beyond_the_year_9999_is_a_number(through_ms: int, told: str) -> None:
    """A producer that counts microseconds makes one."""
    report = replace(status_of(LastError("HG-207", "", "", 1)), valid_through_ms=through_ms)
    shown = io.StringIO()
    show_status(Console(file=shown, width=200), report)
    assert f"valid through     {told}\n" in shown.getvalue()


@pytest.mark.parametrize("keyed", [True, False])
def test_key_10_what_records_did_to_the_rows_of_a_keyed_table_is_shown(keyed: bool) -> None:
    counts = KeyCounts(11, 12, 13, 14, 15) if keyed else None
    commits = (
        CommitSummary("1.2", 77, 1, 38, claim=False, keys=counts),
        CommitSummary("1.0", 76, 1, 0, claim=True),
    )
    report = replace(status_of(LastError("HG-207", "", "", 1)), transactions=commits)
    shown = io.StringIO()
    show_status(Console(file=shown, width=200), report)
    lines = shown.getvalue().splitlines()
    (heads,) = (line.split() for line in lines if "quarantined" in line)
    (numbers,) = (line.split() for line in lines if line.strip().startswith("1.2 "))
    changes = ["inserted", "updated", "deleted", "absent", "superseded"]
    assert (heads[-5:] == changes) is keyed
    assert (numbers[-5:] == ["11", "12", "13", "14", "15"]) is keyed
    page = _table_of_commits(commits)
    assert ("superseded" in page) is keyed
    assert (">15<" in page) is keyed


@pytest.mark.parametrize(
    ("lost", "unproven", "findings", "heading", "verdict"),
    [
        (0, (), (), "lost", "none lost"),
        (3, (), (), "deleted", "3 deleted by persons"),
        (3, ("3 records are absent",), (), "absent", "3 absent"),
        (3, (), (Finding("record-lost", "trips[0]: 5, 6, 7"),), "lost", "3 lost"),
    ],
)
def test_the_audits_table_calls_lost_what_its_verdict_does(
    lost: int, unproven: tuple[str, ...], findings: tuple[Finding, ...], heading: str, verdict: str
) -> None:
    partition = PartitionAudit(
        "trips", 0, 0, 10, produced=10, in_table=10 - lost, lost=lost, twice=0, lag=0
    )
    report = AuditReport(
        sink="trips",
        table="lake.trips",
        uuid="u",
        branch="main",
        snapshot_id=1,
        epochs=(1,),
        commits=1,
        claims=1,
        committed_records=10,
        live_files=1,
        live_rows=10 - lost,
        rows=10 - lost,
        distinct=10 - lost,
        surplus={},
        quarantined_rows=None,
        skipped_records=0,
        partitions=(partition,),
        proven=(),
        unproven=unproven,
        findings=findings,
    )
    shown = io.StringIO()
    show_audit(Console(file=shown, width=160), report)
    first, *_, last = shown.getvalue().strip().splitlines()
    assert heading in first.split()
    assert f"{verdict}, none twice" in last


def test_a_line_of_the_log_has_an_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "headgate"):
        redacted_logger("headgate.participant").info("ignores %s", "x" * 130_000)
    (line,) = caplog.messages
    assert len(line) < LINE_CHARACTERS_MAX + 100
    assert line.endswith(" more")


def test_a_rehearsal_shows_the_beginning_of_a_very_large_record() -> None:
    at = TopicPartition("trips", 0)
    table = DryRunTable("db.t", exists=True, records=1, rows=({"a": "x" * 20_000_000},))
    seen = DryRun((table,), {}, misfits=(Misfit(at, 1, f"y{NASTY}" + "z" * 20_000_000),))
    shown = io.StringIO()
    show_dry_run(Console(file=shown, width=160), seen)
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) < 3_000
    assert any(line.endswith("more") and "x" in line for line in lines)
    assert "\x1b" not in shown.getvalue()
