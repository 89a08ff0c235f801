"""QUARANTINE-4: every record read counts once in its claim: as row, quarantined or skipped."""

from __future__ import annotations

from protocol.participating import Participant
from protocol.values import ALICE, P0, TABLE, data_file, folder, offsets

from headgate.control_protocol.events import Limits, StartCommit, TableStart
from headgate.control_protocol.ports import BatchWritten, PartitionResult
from headgate.participant.inputs_and_actions import BatchEnded

ASIDE = TableStart("lake.aside", "uuid-q", 0, 0, "s3://lake/aside/1")


def participant() -> Participant:
    made = Participant(ALICE)
    made.owns(P0)
    made.hears_itself()
    table = TableStart(TABLE, "uuid-1", 0, 0, folder(1, 1))
    made.hears(StartCommit(None, offsets(10), {}, (table, ASIDE), Limits()), transaction=1)
    return made


def written(made: Participant, *, kept: int, skipped: int, bad: int) -> None:
    """The batch: so many of its records are quarantined and skipped, the others are rows."""
    (span,) = made.batch.ranges.values()
    rows = len(span) - kept - skipped
    result = PartitionResult(span, rows, 0, quarantined=kept, skipped=skipped, bad=bad)
    number = made.batch.number
    files = (data_file(f"{folder(1, 1)}/{number}.parquet", rows),)
    aside = (data_file(f"{ASIDE.file_prefix}/{number}.parquet", kept),) if kept else ()
    made.given(BatchEnded(BatchWritten(number, {P0: result}, files, aside)))


def test_the_claim_is_the_sum_of_its_batches() -> None:
    made = participant()
    made.waits(100)
    made.source_ends({P0: 110})
    written(made, kept=2, skipped=1, bad=3)
    made.end(1)
    made.source_ends({P0: 120})
    written(made, kept=1, skipped=2, bad=1)

    _, aside = made.status.tables
    claim = made.status.written[P0]
    assert (claim.records, claim.quarantined, claim.skipped, claim.bad) == (104, 3, 3, 4)
    assert aside.table == ASIDE.table
    assert sum(file.records for file in aside.files) == 3


def test_what_a_settlement_contradicts_is_dropped_with_its_quarantined_files() -> None:
    made = participant()
    made.waits(100)
    made.source_ends({P0: 110})
    written(made, kept=2, skipped=0, bad=2)
    made.ack(0, offsets(15), settled_to=made.next_offset)
    made.end(1)
    made.source_ends({P0: 15})

    claim = made.status.written[P0]
    assert (claim.range.begin, claim.quarantined) == (15, 0)
    assert made.status.tables == ()
