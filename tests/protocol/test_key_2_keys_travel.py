"""KEY-2: deletes travel in key files, named beside the row files and judged with them as one."""

from __future__ import annotations

from dataclasses import replace

from protocol.values import ALICE, LOCATION, P0, TABLE, folder, offsets

from headgate.control_protocol.events import (
    FileKind,
    TableStatus,
    WriteStatus,
    WrittenFile,
    WrittenRange,
)
from headgate.control_protocol.identifiers import ControlOffset, TransactionNumber
from headgate.control_protocol.offsets import OffsetRange
from headgate.coordinator.file_admission import Prefixes
from headgate.coordinator.state import HeardStatus
from headgate.coordinator.status_validation import (
    AdmissionCriteria,
    SecondaryCriteria,
    ValidationResult,
    validate_statuses,
)

PREFIXES = Prefixes(folder(1, 1).rsplit("/", 1)[0], TransactionNumber(9))
KEYED = AdmissionCriteria(offsets(0, 0), frozenset({P0}), TABLE, PREFIXES, keyed=True)
ROWS = WrittenFile(f"{folder(1, 1)}/rows.parquet", 3, 100)
KEYS = WrittenFile(f"{folder(1, 1)}/keys.parquet", 2, 50, FileKind.KEYS)
CLAIM = WrittenRange(OffsetRange(0, 6), records=3, skipped=1, deleted=2)


def test_what_was_read_is_rows_deletes_quarantined_and_skipped() -> None:
    verdict = judged(CLAIM, ROWS, KEYS)

    assert verdict.files == (ROWS, KEYS)
    assert (verdict.row_count, verdict.read_record_count) == (3, 6)
    assert verdict.offsets[P0] == 6


def test_more_records_than_offsets_are_refused() -> None:
    (why,) = judged(replace(CLAIM, range=OffsetRange(0, 5)), ROWS, KEYS).refusal_texts
    assert "more records than offsets" in why


def test_key_files_hold_the_deleted_records_and_row_files_the_rows() -> None:
    for claim, *files in (
        (CLAIM, ROWS),
        (CLAIM, ROWS, replace(KEYS, records=1)),
        (replace(CLAIM, deleted=1), ROWS, KEYS),
    ):
        (why,) = judged(claim, *files).refusal_texts
        assert "key files do not hold" in why
    (why,) = judged(replace(CLAIM, records=2, skipped=2), ROWS, KEYS).refusal_texts
    assert "record counts do not add up" in why


def test_a_key_file_lies_under_the_prefix_and_counts_once() -> None:
    (why,) = judged(CLAIM, ROWS, replace(KEYS, path=f"{LOCATION}/keys.parquet")).refusal_texts
    assert "outside the prefixes" in why
    (why,) = judged(replace(CLAIM, deleted=4), ROWS, KEYS, KEYS).refusal_texts
    assert "named twice" in why


def test_a_table_without_a_key_and_a_secondary_take_no_key_files() -> None:
    (why,) = judged(CLAIM, ROWS, KEYS, by=replace(KEYED, keyed=False)).refusal_texts
    assert "has no key" in why

    aside = replace(KEYED, secondaries={"lake.aside": SecondaryCriteria(PREFIXES)})
    said = WriteStatus(
        1,
        {P0: WrittenRange(OffsetRange(0, 2), quarantined=2)},
        (TableStatus("lake.aside", (KEYS,)),),
    )
    (why,) = validate_statuses([of(said)], aside).refusal_texts
    assert "lake.aside, which has no key" in why


def judged(
    claim: WrittenRange, *files: WrittenFile, by: AdmissionCriteria = KEYED
) -> ValidationResult:
    return validate_statuses([of(WriteStatus(1, {P0: claim}, (TableStatus(TABLE, files),)))], by)


def of(said: WriteStatus) -> HeardStatus:
    return HeardStatus(ControlOffset(0), ALICE, TransactionNumber(1), said)


def test_a_secondary_that_has_a_key_takes_key_files() -> None:
    place = "s3://lake.orders/data/headgate/sink/1-c1"
    prefixes = Prefixes(place, TransactionNumber(9))
    rows = replace(ROWS, path=f"{place}/1/rows.parquet")
    keys = replace(KEYS, path=f"{place}/1/keys.parquet")
    said = WriteStatus(1, {P0: CLAIM}, (TableStatus("lake.orders", (rows, keys), "uuid-orders"),))
    heard = HeardStatus(ControlOffset(1), ALICE, TransactionNumber(1), said)
    orders = SecondaryCriteria(prefixes, uuid="uuid-orders", keyed=True)
    ledger = replace(KEYED, keyed=False, routed=True)

    verdict = validate_statuses([heard], replace(ledger, secondaries={"lake.orders": orders}))
    assert verdict.refusal_texts == ()
    assert verdict.secondary_files == {"lake.orders": (rows, keys)}
    plain = replace(orders, keyed=False)
    (why,) = validate_statuses(
        [heard], replace(ledger, secondaries={"lake.orders": plain})
    ).refusal_texts
    assert "key files of lake.orders, which has no key" in why
