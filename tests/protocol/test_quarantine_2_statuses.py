"""QUARANTINE-2: the quarantine's files are announced and judged with the ranges that they belong
to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.quarantining import at_work, exactly_once
from protocol.values import ALICE, P0, SINK, TABLE, data_file, folder, offsets
from scenarios.stage import COORDINATORS, Stage

from headgate.control_protocol.events import TableStatus, WriteStatus, WrittenFile, WrittenRange
from headgate.control_protocol.identifiers import ControlOffset, TransactionNumber
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.coordinator.file_admission import Prefixes
from headgate.coordinator.settings import TimeoutPolicy
from headgate.coordinator.state import HeardStatus
from headgate.coordinator.status_validation import (
    AdmissionCriteria,
    SecondaryCriteria,
    ValidationResult,
    validate_statuses,
)

ASIDE = "lake.trips_quarantine"
ROOT = f"s3://lake/aside/data/headgate/{SINK}/7-c1"


def verdict(
    claim: WrittenRange,
    aside: tuple[WrittenFile, ...],
    *,
    ahead: Offsets | None = None,
    kept: bool = True,
) -> ValidationResult:
    first = Prefixes(folder(7, 1).rpartition("/")[0], TransactionNumber(1))
    second = Prefixes(ROOT, TransactionNumber(1))
    secondaries = {ASIDE: SecondaryCriteria(second, ahead or Offsets())} if kept else {}
    files = (data_file(f"{folder(7, 1)}/a.parquet", claim.records),) if claim.records else ()
    tables = (TableStatus(TABLE, files), TableStatus(ASIDE, aside))
    status = WriteStatus(1, {P0: claim}, tables)
    heard = HeardStatus(ControlOffset(9), ALICE, TransactionNumber(1), status)
    return validate_statuses(
        [heard], AdmissionCriteria(offsets(10), frozenset({P0}), TABLE, first, secondaries)
    )


def aside_file(records: int, path: str = f"{ROOT}/1/q.parquet") -> WrittenFile:
    return data_file(path, records)


CLAIM = WrittenRange(OffsetRange(10, 15), records=3, quarantined=2, bad=2)


def test_both_are_in_or_neither() -> None:
    found = verdict(CLAIM, (aside_file(2),))
    assert found.refusal_texts == ()
    assert found.secondary_files == {ASIDE: (aside_file(2),)}
    assert (found.row_count, found.quarantined_count, found.bad_record_count) == (3, 2, 2)


@pytest.mark.parametrize(
    ("aside", "objection"),
    [
        ((), "do not hold the written ranges' quarantined records"),
        ((aside_file(1),), "do not hold the written ranges' quarantined records"),
        ((aside_file(3),), "do not hold the written ranges' quarantined records"),
        ((aside_file(1), aside_file(1)), "named twice"),
        ((aside_file(2, f"{ROOT}/2/q.parquet"),), "outside the prefix"),
        ((aside_file(2, "s3://elsewhere/1/q.parquet"),), "outside the prefix"),
    ],
)
def test_files_that_do_not_hold_just_that_are_refused_with_the_rows(
    aside: tuple[WrittenFile, ...], objection: str
) -> None:
    found = verdict(CLAIM, aside)
    assert objection in found.refusal_texts[0]
    assert (found.files, found.secondary_files, found.offsets) == ((), {}, offsets(10))


def test_fewer_are_right_only_where_the_quarantine_is_ahead() -> None:
    assert verdict(CLAIM, (aside_file(1),), ahead=offsets(11)).refusal_texts == ()
    assert verdict(CLAIM, (), ahead=offsets(11)).refusal_texts == ()
    assert verdict(CLAIM, (aside_file(1),), ahead=offsets(10)).refusal_texts
    assert verdict(CLAIM, (aside_file(3),), ahead=offsets(11)).refusal_texts


def test_without_a_quarantine_nothing_can_have_gone_there() -> None:
    assert "no START names" in verdict(CLAIM, (aside_file(2),), kept=False).refusal_texts[0]
    assert "no quarantine" in verdict(CLAIM, (), kept=False).refusal_texts[0]


@pytest.mark.parametrize(
    "claim",
    [
        replace(CLAIM, skipped=1),
        replace(CLAIM, bad=3),
    ],
)
def test_every_record_counts_once(claim: WrittenRange) -> None:
    assert verdict(claim, (aside_file(2),)).refusal_texts


def test_a_transaction_without_bad_records_leaves_the_quarantine_alone() -> None:
    stage, quarantine = at_work()
    before = quarantine.sequence_number
    stage.produce(0, 1)
    stage.settles()
    assert quarantine.sequence_number == before

    stage.produce(0, 1)
    stage.settles()
    assert quarantine.sequence_number == before + 1
    exactly_once(stage)


def test_its_tag_is_renewed_all_the_same() -> None:
    stage = Stage(settings=replace(COORDINATORS, tag_refresh_interval_ms=3_000))
    stage.keep_bad_records()
    stage.produce(1)
    stage.enter("alice", "bob")
    stage.settles()
    assert stage.quarantine is not None
    assert stage.quarantine.sequence_number == 1  # the claim

    stage.passes(3_000)
    stage.produce(1)
    stage.settles()
    assert stage.quarantine.sequence_number == 2
    assert stage.quarantine.visible_rows() == []


def test_what_a_time_out_aborted_is_in_neither_table() -> None:
    stage, quarantine = at_work(replace(COORDINATORS, timeout_policy=TimeoutPolicy.ABORT))
    rows, aside = len(stage.catalog.visible_rows()), len(quarantine.visible_rows())
    stage.produce(3, 3)
    stage.nodes["bob"].writer.work_ms = None
    stage.until("ABORT")
    assert (len(stage.catalog.visible_rows()), len(quarantine.visible_rows())) == (rows, aside)
    stage.nodes["bob"].writer.work_ms = 0
    stage.nodes["bob"].writer.make_batch_due()
    stage.settles()
    exactly_once(stage)
