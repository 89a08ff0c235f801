"""What ``headgate run`` says before its first commit: once what it waits for, once what it met."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.config.test_load import MINIMAL

from headgate.config.load import parse
from headgate.control_protocol.events import Limits, TableStart, WrittenRange
from headgate.control_protocol.identifiers import Sender, TopicPartition, TransactionNumber
from headgate.control_protocol.offsets import OffsetRange
from headgate.participant.state import OpenTransaction, Ownership, SourceEnds, State, Term, Work
from headgate.runtime.startup_progress_log import FirstCommitLog

AT = TopicPartition("trips", 0)
SETTINGS = parse(MINIMAL)


def state(work: WrittenRange | None) -> State:
    table = TableStart("t", "uuid", 0, 0, "folder")
    opened = OpenTransaction(TransactionNumber(1), table, frozenset({AT}), {}, Limits())
    begun = State(SETTINGS.name, Sender("one", "life"), SETTINGS.participant)
    owned = {AT: Ownership(1, work=work)}
    source = SourceEnds({AT: 10}, frozenset({AT}))
    return replace(begun, term=Term(writing=opened), work=Work(owned=owned), source=source)


def said_of(caplog: pytest.LogCaptureFixture, *states: State) -> list[str]:
    first = FirstCommitLog(SETTINGS)
    with caplog.at_level("INFO", "headgate.runtime"):
        for each in states:
            first.log_progress_if_new(each)
    assert {record.headgate_event for record in caplog.records} <= {"commit.awaited"}  # type: ignore[attr-defined]
    return [record.getMessage() for record in caplog.records]


def test_a_run_says_once_what_it_waits_for_and_what_it_met(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nothing = state(WrittenRange(OffsetRange(0, 0)))
    some = state(WrittenRange(OffsetRange(0, 10), records=8, quarantined=2, bad=1))
    waits, met = said_of(caplog, state(None), nothing, nothing, some, some)
    assert (
        "10 offsets of 1 partitions wait to be read, for the first commit at the latest; "
        "there is one every" in waits
    )
    assert met.endswith(
        "10 offsets read: 8 rows, 1 bad (2 not in the table); the next commit has them"
    )


def test_a_run_that_has_nothing_to_read_says_only_what_it_waits_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nothing = state(WrittenRange(OffsetRange(5, 5)))
    assert len(said_of(caplog, nothing, nothing)) == 1
