"""QUARANTINE-5: too many bad records stop the sink, and none of them is committed."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH, Coordinator
from protocol.values import ALICE, P0, P1, data_file, folder, offsets, topics

from headgate.control_protocol.errors import TooManyBadRecords
from headgate.control_protocol.events import TableStatus, WriteStatus, WrittenRange
from headgate.control_protocol.machine_io import Stop
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.quarantine_policy import BadRecordLimits
from headgate.coordinator.inputs_and_actions import CommitTable
from headgate.coordinator.phases import Phase

LIMITS = BadRecordLimits(per_thousand_max=100, records_max=40, sample_records_min=100)


def collecting(limits: BadRecordLimits = LIMITS) -> Coordinator:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.state = replace(coordinator.state, limits=limits)
    return coordinator


def announced(coordinator: Coordinator, records: int, bad: int, number: int = 1) -> None:
    """A status of partition 0 with so many records, of which so many were bad and skipped."""
    begin = coordinator.term.progress.offsets[P0]
    claim = WrittenRange(OffsetRange(begin, begin + records), records - bad, skipped=bad, bad=bad)
    idle = WrittenRange(OffsetRange(20, 20))
    transaction = coordinator.term.previous_transaction_number
    files = (data_file(f"{folder(EPOCH, transaction)}/{number}.parquet", records - bad),)
    status = WriteStatus(number, {P0: claim, P1: idle}, (TableStatus("lake.trips", files),))
    coordinator.sources = topics((0, begin + records), (0, 1_000))
    coordinator.hears(status, ALICE, transaction=transaction)
    coordinator.waits(0)
    if coordinator.asks_sources:
        coordinator.described()


def stopped(coordinator: Coordinator) -> str:
    assert isinstance(coordinator.error, TooManyBadRecords)
    assert not coordinator.wants(CommitTable)
    return coordinator.error.message


def test_a_transaction_with_too_many_is_not_committed() -> None:
    coordinator = collecting()
    announced(coordinator, 10_000, 41)
    assert "41 records could not be converted, the limit is 40" in stopped(coordinator)


def test_one_with_as_many_as_the_limit_is() -> None:
    coordinator = collecting()
    announced(coordinator, 10_000, 40)
    assert coordinator.attempt.record.skipped == 40


def test_a_rate_above_the_limit_stops_it() -> None:
    coordinator = collecting()
    announced(coordinator, 100, 11)
    assert "11 of 100 records" in stopped(coordinator)


def test_one_bad_record_of_one_stops_nothing() -> None:
    coordinator = collecting()
    announced(coordinator, 1, 1)
    assert coordinator.attempt.record.offsets == offsets(11, 20)


def test_quiet_transactions_fill_a_sample_together() -> None:
    coordinator = collecting()
    for number in range(1, 10):
        announced(coordinator, 10, 2, number)
        coordinator.until(Phase.SETTLING)
        coordinator.until(Phase.COLLECTING)
    announced(coordinator, 10, 2, 10)
    assert "20 of 100 records" in stopped(coordinator)


def test_after_a_good_sample_a_new_one_begins() -> None:
    coordinator = collecting()
    announced(coordinator, 100, 10)
    coordinator.until(Phase.SETTLING)
    assert (coordinator.term.collection.sample.records, coordinator.term.collection.sample.bad) == (
        0,
        0,
    )


def test_without_a_limit_on_the_number_only_the_rate_counts() -> None:
    coordinator = collecting(BadRecordLimits(1_000, 0, 100))
    announced(coordinator, 900, 900)
    assert not coordinator.wants(Stop)
