"""COMMIT-4: ACK and ABORT are said only when the outcome is known; C and L move there only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.values import ALICE, BOB, P0, P1, offsets, record, status, topics, view

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.events import AckCommit, Settlement
from headgate.control_protocol.machine_io import Append
from headgate.control_protocol.ports import TopicState
from headgate.coordinator.inputs_and_actions import CommitTable
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import CoordinatorSettings, OffsetPolicy
from headgate.coordinator.state import Timer


def test_nothing_is_settled_while_the_outcome_is_unknown() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    before = (coordinator.term.progress.offsets, coordinator.term.progress.settled_to)
    answer(coordinator, 1, {P0: (10, 15), P1: (20, 22)})
    for _ in range(5):
        coordinator.unsure()
        assert (coordinator.term.progress.offsets, coordinator.term.progress.settled_to) == before
        assert not coordinator.wants(Append)
        coordinator.waits(SETTINGS.retry_backoff_max_ms)
        coordinator.reads()
    coordinator.lands()

    assert coordinator.term.progress.offsets == offsets(15, 22)


def test_l_is_behind_the_last_status_that_was_judged() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    answer(coordinator, 1, {P0: (10, 15), P1: (20, 22)})
    judged_to = coordinator.next_offset
    late = coordinator.attempt
    coordinator.hears(status(1, {P0: (15, 16)}), BOB, transaction=1)
    coordinator.lands(late)

    assert settlement(coordinator).settled_to == judged_to
    assert coordinator.term.progress.settled_to == judged_to


def test_the_settlement_is_said_again_until_it_is_heard() -> None:
    coordinator = Coordinator.at(Phase.SETTLING)
    said = coordinator.only(Append)
    coordinator.waits(1)
    coordinator.waits(SETTINGS.commit_timeout_ms)

    assert coordinator.only(Append) == said
    coordinator.hears_itself()
    assert coordinator.phase is Phase.OPEN


def test_c_names_every_partition_settled_or_not() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    answer(coordinator, 1, {P0: (10, 15)})
    coordinator.waits(SETTINGS.commit_timeout_ms)
    coordinator.lands()

    assert settlement(coordinator).offsets == offsets(15, 20)


def test_hc01_every_start_carries_the_offsets_just_settled() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    for number in range(1, 6):
        coordinator.until(Phase.COLLECTING)
        begin = 10 + 5 * (number - 1)
        answer(coordinator, number, {P0: (begin, begin + 5), P1: (20, 20)}, transaction=number)
        coordinator.until(Phase.SETTLING)
        assert settlement(coordinator).offsets == offsets(begin + 5, 20)
        assert coordinator.table.record is not None
        assert coordinator.table.record.transaction.number == number


def test_ac13_valid_through_is_the_smallest_of_the_partitions_largest_timestamps() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    answer(coordinator, 1, {P0: (10, 15), P1: (20, 22)}, {P0: 500, P1: 300})

    assert coordinator.attempt.record.valid_through_ms == 300


def test_it_never_goes_back() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    answer(coordinator, 1, {P0: (10, 15), P1: (20, 22)}, {P0: 500, P1: 300})
    coordinator.until(Phase.COLLECTING)
    coordinator.state = replace(
        coordinator.state,
        term=replace(coordinator.term, progress=replace(coordinator.term.progress, activity={})),
    )
    answer(coordinator, 2, {P0: (15, 16), P1: (22, 23)}, {P0: 200, P1: 200}, transaction=2)

    assert coordinator.attempt.record.valid_through_ms == 300


def test_an_unknown_partition_holds_valid_through_back() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    some = status(1, {P0: (10, 15)}, unknown={P1}, written_in=(EPOCH, 1), timestamps={P0: 500})
    coordinator.hears(some, ALICE, transaction=1)
    coordinator.waits(1)

    assert coordinator.attempt.record.valid_through_ms is None


def test_a_missing_partition_holds_it_back() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    answer(coordinator, 1, {P0: (10, 15)}, {P0: 500})
    coordinator.waits(SETTINGS.commit_timeout_ms)

    assert coordinator.attempt.record.valid_through_ms is None


def test_a_refused_partition_holds_it_back() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    answer(coordinator, 1, {P0: (10, 15)}, {P0: 500})
    answer(coordinator, 2, {P1: (21, 30)}, {P1: 900})

    assert coordinator.attempt.record.valid_through_ms is None


def test_who_coordinates_since_a_moment_ago_has_not_seen_a_partition_idle_for_long() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    answer(coordinator, 1, {P0: (10, 15), P1: (20, 22)}, {P0: 500})  # EPOCH-3: offsets, no records

    assert coordinator.attempt.record.valid_through_ms is None


def test_a_partition_added_behind_the_start_holds_it_back() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.sources = topics((0, 1_000), (0, 1_000), (0, 7))
    coordinator.until(Phase.COLLECTING)
    answer(coordinator, 1, {P0: (10, 15), P1: (20, 22)}, {P0: 500, P1: 300})

    assert coordinator.attempt.record.valid_through_ms is None


def test_x8_a_partition_idle_for_long_does_not() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    answer(coordinator, 1, {P0: (10, 15), P1: (20, 22)}, {P0: 500, P1: 300})
    coordinator.until(Phase.COLLECTING)
    answer(coordinator, 2, {P0: (15, 16), P1: (22, 22)}, {P0: 900}, transaction=2)
    assert coordinator.attempt.record.valid_through_ms == 300
    coordinator.until(Phase.COLLECTING)
    coordinator.now_ms += SETTINGS.idleness_ms
    answer(coordinator, 3, {P0: (16, 17), P1: (22, 22)}, {P0: 950}, transaction=3)

    assert coordinator.attempt.record.valid_through_ms == 950


def test_a_settlement_of_ours_heard_twice_moves_nothing() -> None:
    coordinator = Coordinator.at(Phase.SETTLING)
    said = coordinator.only(Append)
    coordinator.hears_itself(said)
    due_ms = coordinator.state.deadlines[Timer.END]
    coordinator.hears_itself(said)

    assert coordinator.phase is Phase.OPEN
    assert coordinator.state.deadlines[Timer.END] == due_ms


def answer(
    coordinator: Coordinator,
    number: int,
    claims: dict,  # type: ignore[type-arg]
    timestamps: dict | None = None,  # type: ignore[type-arg]
    transaction: int = 1,
) -> None:
    said = status(number, claims, written_in=(EPOCH, transaction), timestamps=timestamps)
    coordinator.hears(said, ALICE, transaction=transaction)
    coordinator.waits(1)


def settlement(coordinator: Coordinator) -> Settlement:
    (said,) = coordinator.said
    assert isinstance(said, AckCommit)
    return said


@pytest.mark.parametrize(("answers", "through"), [(2, 900), (1, 300)])
def test_idle_is_who_says_so_to_the_end_that_is_settled(answers: int, through: int) -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    answer(coordinator, 1, {P0: (10, 15), P1: (20, 22)}, {P0: 500, P1: 300})
    coordinator.until(Phase.COLLECTING)
    coordinator.hears(status(2, {P1: (22, 22)}), BOB, transaction=answers)
    coordinator.now_ms += SETTINGS.idleness_ms
    answer(coordinator, 2, {P0: (15, 16)}, {P0: 900}, transaction=2)

    assert coordinator.attempt.record.valid_through_ms == through


def test_a_claim_that_sets_an_offset_back_knows_no_valid_through() -> None:
    stored = record(6, 3, offsets(10, 20), valid_through_ms=300)
    assert _claimed(stored, topics((0, 30), (0, 30))).valid_through_ms == 300
    gone_back = replace(SETTINGS, on_offset_out_of_range=OffsetPolicy.LATEST)
    assert _claimed(stored, topics((0, 30), (0, 15)), gone_back).valid_through_ms is None


def _claimed(
    stored: CommitRecord,
    sources: dict[str, TopicState],
    settings: CoordinatorSettings = SETTINGS,
) -> CommitRecord:
    coordinator = Coordinator(view(stored), settings, sources)
    while not coordinator.wants(CommitTable):
        coordinator.goes_on()
    return coordinator.attempt.record
