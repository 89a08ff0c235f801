"""Judging statuses: whatever is said in whatever order, what is in has no overlap and no gap."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol.values import (
    ALICE,
    BOB,
    LOCATION,
    P0,
    P1,
    P2,
    RIVAL,
    TABLE,
    data_file,
    folder,
    offsets,
    status,
)

from headgate.control_protocol.events import TableStatus, WriteStatus, WrittenRange
from headgate.control_protocol.identifiers import ControlOffset, TopicPartition, TransactionNumber
from headgate.control_protocol.offsets import OffsetRange
from headgate.coordinator.file_admission import Prefixes
from headgate.coordinator.state import HeardStatus
from headgate.coordinator.status_validation import (
    AdmissionCriteria,
    ValidationResult,
    merge_committed_paths,
    partitions_named_by_statuses,
    validate_statuses,
)

PREFIXES = Prefixes(folder(1, 1).rsplit("/", 1)[0], TransactionNumber(9))
FIXED = frozenset({P0, P1})
START = offsets(0, 0)
STANDARD = AdmissionCriteria(START, FIXED, TABLE, PREFIXES)
RANGES = st.tuples(st.integers(0, 8), st.integers(0, 4)).map(lambda r: (r[0], r[0] + r[1]))
CLAIMS = st.dictionaries(st.sampled_from([P0, P1]), RANGES, min_size=1)
SAID = st.lists(st.tuples(st.sampled_from([ALICE, BOB, RIVAL]), CLAIMS), max_size=12).map(
    lambda said: [
        HeardStatus(ControlOffset(k), sender, TransactionNumber(1), status(k, claims))
        for k, (sender, claims) in enumerate(said)
    ]
)


@given(SAID)
def test_no_order_of_statuses_admits_an_overlap_or_a_gap(heard: list[HeardStatus]) -> None:
    verdict = judged(heard)

    covered: dict[TopicPartition, list[int]] = {P0: [], P1: []}
    for partition, claim in verdict.ranges:
        covered[partition] += range(claim.range.begin, claim.range.end)
    for partition, offsets_in in covered.items():
        assert offsets_in == list(range(verdict.offsets[partition]))


@given(SAID)
def test_files_and_claims_are_in_together_or_not_at_all(heard: list[HeardStatus]) -> None:
    verdict = judged(heard)
    claims = [claim for h in heard for claim in h.status.written.items()]
    paths = [file.path for h in heard for t in h.status.tables for file in t.files]

    assert sum(file.records for file in verdict.files) == verdict.row_count
    assert (len(verdict.ranges) == len(claims)) is (verdict.refusal_texts == ())
    assert {file.path for file in verdict.files} <= set(paths)


@given(SAID)
def test_offsets_never_go_back(heard: list[HeardStatus]) -> None:
    assert judged(heard).offsets.partitions_behind(START) == []


def test_a_whole_status_names_claimed_idle_and_unknown_partitions() -> None:
    heard = [of(status(1, {P0: (0, 5), P1: (3, 3)}, unknown={P2}))]

    assert partitions_named_by_statuses(heard) == {P0, P1, P2}


def test_unsure_is_what_nothing_admissible_was_heard_of() -> None:
    assert judged([of(status(1, {P0: (0, 5)}))]).unsure == {P1}
    assert judged([of(status(1, {P0: (0, 5), P1: (0, 0)}))]).unsure == frozenset()
    assert judged([of(status(1, {P0: (0, 5), P1: (1, 2)}))]).unsure == {P0, P1}
    assert judged([]).unsure == FIXED


def test_an_unknown_said_after_a_claim_counts() -> None:
    """The new owner begins where the old one's claim ends; nothing is known of what follows."""
    heard = [of(status(1, {P0: (0, 5), P1: (0, 0)})), of(status(2, {}, unknown={P0}))]

    assert judged(heard).unsure == {P0}


def test_what_is_said_of_another_table_is_not_judged_here() -> None:
    files = (data_file("s3://lake/other/1/f.parquet", 5),)
    claims = {P0: WrittenRange(OffsetRange(0, 5), 5)}
    verdict = judged([of(WriteStatus(1, claims, (TableStatus("lake.other", files),)))])

    assert verdict.offsets == START
    assert verdict.ranges == ()


def test_a_refusal_names_status_sender_and_reason() -> None:
    (line,) = judged([of(status(4, {P0: (1, 2)}))]).refusal_texts

    assert line == "status 4 of worker-1#a1: trips/0 is written in [1, 2), but 0 is next"


def test_a_partition_that_is_not_read_is_refused_in_words() -> None:
    (line,) = judged([of(status(4, {TopicPartition("trips", 7): (0, 5)}))]).refusal_texts

    assert line.endswith("trips/7 is written in [0, 5), but no such partition is read")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("1/f", True),
        ("2/deep/f", True),
        ("3/f", False),
        ("0/f", False),
        ("-1/f", False),
        ("one/f", False),
        ("1", False),
        ("1/", False),
        ("1/../2/f", False),
        ("1/./f", False),
        ("1//f", False),
        ("01/f", False),
        ("\u0661/f", False),
        ("\u00b2/f", False),
        ("1 /f", False),
        ("9" * 5_000 + "/f", False),
    ],
)
def test_prefixes_allow_issued_folders_and_no_detours(path: str, allowed: bool) -> None:
    newest = TransactionNumber(2)

    assert PREFIXES.is_allowed(f"{PREFIXES.root}/{path}", newest) is allowed
    assert not PREFIXES.is_allowed(f"{LOCATION}/{path}", newest)


def test_a_folder_whose_name_only_begins_alike_is_another() -> None:
    assert not PREFIXES.is_allowed(f"{PREFIXES.root}x/1/f", TransactionNumber(2))


def test_files_that_this_epoch_committed_are_not_admitted_again() -> None:
    first = of(status(1, {P0: (0, 5)}))
    files = judged([first]).files
    known = merge_committed_paths(STANDARD, files)
    forged = of(status(2, {P0: (5, 10)}, files=files))
    (why,) = validate_statuses(
        [forged], replace(STANDARD, offsets=offsets(5, 0), committed=known)
    ).refusal_texts
    assert "was committed before" in why

    aged = replace(STANDARD.prefixes, oldest=TransactionNumber(2))
    assert merge_committed_paths(replace(STANDARD, committed=known, prefixes=aged), ()) == {}


def test_skipped_records_are_refused_where_the_settings_skip_none() -> None:
    claim = WrittenRange(OffsetRange(0, 5), records=0, skipped=5)
    forged = of(WriteStatus(1, {P0: claim}))
    assert validate_statuses([forged], STANDARD).refusal_texts == ()
    (why,) = validate_statuses([forged], replace(STANDARD, may_skip=False)).refusal_texts
    assert "the settings skip none" in why


def of(said: WriteStatus) -> HeardStatus:
    return HeardStatus(ControlOffset(0), ALICE, TransactionNumber(1), said)


def judged(heard: list[HeardStatus]) -> ValidationResult:
    return validate_statuses(heard, STANDARD)
