"""RANGE-2: statuses are judged in log order, each once and whole; ranges decide, ownership does
not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.values import ALICE, BOB, P0, P1, P2, data_file, folder, offsets, status, topics

from headgate.control_protocol.events import AbortCommit, AckCommit, Settlement, WriteStatus
from headgate.control_protocol.identifiers import Sender, TopicId
from headgate.coordinator.inputs_and_actions import (
    CallFailed,
    CommitTable,
    Looked,
    SourcesDescribed,
)
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import TimeoutPolicy


def test_in_iff_every_claim_begins_at_the_next_offset() -> None:
    coordinator = judging((ALICE, claim(1, (10, 15))), (BOB, claim(1, (16, 20))))

    assert coordinator.attempt.record.offsets == offsets(15, 20)
    assert "status 1 of worker-2#b1: trips/0 is written in [16, 20), but 15 is next" in reason(
        coordinator
    )


def test_an_overlapping_claim_is_out() -> None:
    coordinator = judging((ALICE, claim(1, (10, 15))), (BOB, claim(1, (10, 18))))

    assert coordinator.attempt.record.offsets == offsets(15, 20)
    assert len(coordinator.attempt.files) == 1


def test_claims_that_follow_each_other_are_both_in_whoever_wrote_them() -> None:
    coordinator = judging((ALICE, claim(1, (10, 15))), (BOB, claim(1, (15, 18))))

    assert coordinator.attempt.record.offsets == offsets(18, 20)
    assert len(coordinator.attempt.files) == 2


def test_the_log_orders_them_and_not_the_offsets() -> None:
    coordinator = judging((BOB, claim(1, (15, 18))), (ALICE, claim(1, (10, 15))))

    assert coordinator.attempt.record.offsets == offsets(15, 20)


def test_a_status_is_in_or_out_as_a_whole_for_files_mix_partitions() -> None:
    whole = status(1, {P0: (10, 15), P1: (21, 30)}, written_in=(EPOCH, 1))
    coordinator = judging((ALICE, whole))

    assert isinstance(coordinator.said[0], AckCommit)
    assert not coordinator.wants(CommitTable)
    assert settled(coordinator).offsets == offsets(10, 20)


def test_a_partition_that_the_table_does_not_know_is_out() -> None:
    unknown = status(1, {P2: (0, 3)}, written_in=(EPOCH, 1))
    coordinator = judging((ALICE, unknown))

    assert settled(coordinator).offsets == offsets(10, 20)


@pytest.mark.parametrize(
    "path",
    [
        f"{folder(EPOCH, 2)}/f.parquet",
        f"{folder(EPOCH - 1, 1)}/f.parquet",
        f"{folder(EPOCH, 1, 'other')}/f.parquet",
        f"{folder(EPOCH, 1)}/../../f.parquet",
        f"{folder(EPOCH, 1)}",
        f"{folder(EPOCH, 0)}/f.parquet",
        "s3://elsewhere/f.parquet",
    ],
)
def test_a_file_outside_of_every_issued_prefix_is_out(path: str) -> None:
    coordinator = judging((ALICE, status(1, {P0: (10, 15)}, files=(data_file(path, 5),))))

    assert settled(coordinator).offsets == offsets(10, 20)
    assert "prefix" in reason(coordinator)


def test_a_file_of_an_earlier_transaction_is_in() -> None:
    """One slow answer may cover several ENDs."""
    coordinator = Coordinator.at(Phase.SETTLING)
    coordinator.until(Phase.COLLECTING)
    slow = status(1, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1))
    coordinator.hears(slow, ALICE, transaction=2)
    coordinator.waits(1)

    assert coordinator.attempt.record.offsets == offsets(15, 20)


def test_ac10_a_file_named_twice_is_out() -> None:
    twice = (data_file(f"{folder(EPOCH, 1)}/f.parquet", 5),) * 2
    within = status(1, {P0: (10, 20)}, files=twice)
    assert settled(judging((ALICE, within))).offsets == offsets(10, 20)

    first, second = (
        status(n, {P0: at}, files=twice[:1]) for n, at in ((1, (10, 15)), (2, (15, 20)))
    )
    coordinator = judging((ALICE, first), (BOB, second))
    assert coordinator.attempt.record.offsets == offsets(15, 20)
    assert len(coordinator.attempt.files) == 1


@pytest.mark.parametrize("rows", [4, 6, 0])
def test_row_counts_that_do_not_add_up_are_out(rows: int) -> None:
    files = (data_file(f"{folder(EPOCH, 1)}/f.parquet", rows),)
    coordinator = judging((ALICE, status(1, {P0: (10, 15)}, files=files)))

    assert settled(coordinator).offsets == offsets(10, 20)
    assert "add up" in reason(coordinator)


def test_a_range_without_rows_is_committed_too() -> None:
    """Filtered, aborted and compacted offsets must advance."""
    empty = status(1, {P0: (10, 15), P1: (20, 20)}, files=())
    claims = {p: replace(c, records=0) for p, c in empty.written.items()}
    empty = replace(empty, written=claims)
    coordinator = judging((ALICE, empty))

    assert coordinator.attempt.record.offsets == offsets(15, 20)
    assert coordinator.attempt.files == ()


def test_hc02_nothing_at_all_makes_no_snapshot_and_is_acknowledged() -> None:
    coordinator = judging((ALICE, status(1, {P0: (10, 10), P1: (20, 20)})))

    assert not coordinator.wants(CommitTable)
    (ack,) = coordinator.said
    assert isinstance(ack, AckCommit)
    assert ack.tables[0].snapshot_id is None


def test_an_idle_sink_renews_its_tag_now_and_then() -> None:
    refresh = replace(SETTINGS, tag_refresh_interval_ms=2_500)
    coordinator = Coordinator.at(Phase.OPEN, refresh)
    tags = {coordinator.table.tag}
    for _ in range(30):
        coordinator.goes_on()
        tags.add(coordinator.table.tag)

    assert 2 <= len(tags) <= 5


def test_x9_after_many_idle_rounds_one_record_is_committed_in_its_round() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    idle = coordinator.table.tag
    for number in range(1, 601):
        said = status(number, {P0: (10, 10), P1: (20, 20)})
        coordinator.hears(said, ALICE, transaction=number)
        coordinator.waits(1)
        coordinator.until(Phase.COLLECTING)
    assert coordinator.table.tag == idle
    one = status(601, {P0: (10, 11), P1: (20, 20)}, written_in=(EPOCH, 601))
    coordinator.hears(one, ALICE, transaction=601)
    coordinator.waits(1)

    assert coordinator.attempt.record.offsets == offsets(11, 20)


def test_a_time_out_commits_what_is_admissible() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(claim(1, (10, 15)), ALICE, transaction=1)
    coordinator.waits(SETTINGS.commit_timeout_ms - 1)
    assert coordinator.phase is Phase.COLLECTING
    coordinator.waits(1)

    assert coordinator.attempt.record.offsets == offsets(15, 20)
    assert "trips/1" in reason(coordinator)


def test_hc03_under_abort_a_time_out_admits_none() -> None:
    abort = replace(SETTINGS, timeout_policy=TimeoutPolicy.ABORT)
    coordinator = Coordinator.at(Phase.COLLECTING, abort)
    coordinator.hears(claim(1, (10, 15)), ALICE, transaction=1)
    coordinator.waits(SETTINGS.commit_timeout_ms)

    (said,) = coordinator.said
    assert isinstance(said, AbortCommit)
    assert said.offsets == offsets(10, 20)
    assert said.settled_to == coordinator.term.progress.heard_to


def test_what_an_abort_settled_does_not_come_in_later() -> None:
    abort = replace(SETTINGS, timeout_policy=TimeoutPolicy.ABORT)
    coordinator = Coordinator.at(Phase.COLLECTING, abort)
    at = coordinator.hears(claim(1, (10, 15)), ALICE, transaction=1)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    coordinator.until(Phase.COLLECTING)
    coordinator.hears(claim(1, (10, 15)), ALICE, transaction=1, sequence=at)
    coordinator.hears(status(2, {P0: (10, 10), P1: (20, 20)}), ALICE, transaction=2)
    coordinator.waits(1)

    assert settled(coordinator).offsets == offsets(10, 20)


def test_under_abort_a_full_set_is_committed_as_ever() -> None:
    abort = replace(SETTINGS, timeout_policy=TimeoutPolicy.ABORT)
    coordinator = Coordinator.at(Phase.COLLECTING, abort)
    both = status(1, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1))
    coordinator.hears(both, ALICE, transaction=1)
    coordinator.waits(1)

    assert coordinator.attempt.record.offsets == offsets(15, 20)


def test_x14_a_late_status_is_judged_by_the_next_settlement() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    late = status(1, {P0: (10, 15), P1: (20, 22)}, written_in=(EPOCH, 1))
    coordinator.hears(late, ALICE, transaction=1)
    assert settled(coordinator).offsets == offsets(10, 20)
    coordinator.until(Phase.COLLECTING)
    coordinator.waits(1)

    assert coordinator.attempt.record.offsets == offsets(15, 22)


def claim(number: int, of_p0: tuple[int, int]) -> WriteStatus:
    return status(number, {P0: of_p0}, written_in=(EPOCH, 1))


# ------------------------------------------------------------------ what the logs do not hold


def test_a_claim_beyond_the_logs_end_is_out() -> None:
    forged = status(1, {P0: (10, 1_001), P1: (20, 20)}, written_in=(EPOCH, 1))
    coordinator = judging((ALICE, forged))

    assert settled(coordinator).offsets == offsets(10, 20)
    assert "trips/0 is written in [10, 1001), but the log ends at 1000" in reason(coordinator)


def test_the_ends_are_asked_again_only_when_a_claim_passes_them() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(claim(1, (10, 1_000)), ALICE, transaction=1)
    coordinator.waits(SETTINGS.commit_timeout_ms)

    assert not coordinator.asks_sources
    assert coordinator.attempt.record.offsets == offsets(1_000, 20)


def test_what_came_since_the_end_was_described_is_let_in() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(claim(1, (10, 1_400)), ALICE, transaction=1)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    assert coordinator.asks_sources
    assert not coordinator.wants(CommitTable)
    coordinator.waits(1)
    assert coordinator.actions == ()
    coordinator.sources = topics((0, 1_500), (0, 1_000))
    coordinator.described()

    assert coordinator.attempt.record.offsets == offsets(1_400, 20)


def test_the_judgement_waits_for_sources_that_do_not_answer() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(claim(1, (10, 1_400)), ALICE, transaction=1)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    coordinator.given(CallFailed("no answer"))
    coordinator.waits(SETTINGS.retry_backoff_max_ms)
    assert coordinator.asks_sources
    coordinator.given(Looked(sources=SourcesDescribed(topics((0, 1_500)))))

    assert coordinator.attempt.record.offsets == offsets(1_400, 20)


def test_of_a_partition_that_cannot_be_asked_the_known_end_counts() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(claim(1, (10, 1_400)), ALICE, transaction=1)
    coordinator.hears(status(1, {P1: (20, 30)}, written_in=(EPOCH, 1)), BOB, transaction=1)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    coordinator.given(Looked(sources=SourcesDescribed({})))

    assert coordinator.attempt.record.offsets == offsets(10, 30)
    assert "the log ends at 1000" in reason(coordinator)


def test_the_known_end_of_a_partition_that_lost_its_leader_before_the_next_end_counts() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.until(Phase.OPEN)
    known = coordinator.sources["trips"]
    silent = replace(known, partitions={1: known.partitions[1]}, silent=frozenset({0}))
    coordinator.sources = {"trips": silent}
    coordinator.until(Phase.COLLECTING)
    number = coordinator.term.previous_transaction_number
    both = status(1, {P0: (10, 16), P1: (20, 30)}, written_in=(EPOCH, number))
    coordinator.hears(both, ALICE, transaction=number)
    coordinator.waits(SETTINGS.commit_timeout_ms)

    assert coordinator.attempt.record.offsets == offsets(16, 30)


def test_the_log_of_a_topic_created_anew_is_not_the_one_that_was_read() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(claim(1, (10, 1_400)), ALICE, transaction=1)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    another = topics((0, 5_000), topic_id=TopicId("another"))
    coordinator.given(Looked(sources=SourcesDescribed(another)))

    assert settled(coordinator).offsets == offsets(10, 20)


def judging(*said: tuple[Sender, WriteStatus]) -> Coordinator:
    """These statuses are heard in this order, and the time-out has come."""
    coordinator = Coordinator.at(Phase.COLLECTING)
    for sender, heard in said:
        coordinator.hears(heard, sender, transaction=1)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    if coordinator.asks_sources:
        coordinator.described()
    return coordinator


def settled(coordinator: Coordinator) -> Settlement:
    assert coordinator.term.progress.settlement is not None
    return coordinator.term.progress.settlement


def reason(coordinator: Coordinator) -> str:
    return settled(coordinator).reason
