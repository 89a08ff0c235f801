"""COMMIT-1: START(n+1) follows END(n) at once; END(n+1) follows the settlement of n."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH, IDENTITY, SETTINGS, Coordinator
from protocol.values import ALICE, P0, P1, P2, folder, offsets, status, topics

from headgate.control_protocol.errors import OffsetOutOfRange
from headgate.control_protocol.events import AckCommit, EndCommit, StartCommit
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.machine_io import Append
from headgate.coordinator.inputs_and_actions import CallFailed
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import OffsetPolicy
from headgate.coordinator.state import Timer


def test_end_and_the_next_start_are_one_append() -> None:
    coordinator = Coordinator.at(Phase.CLOSING)

    end, start = coordinator.only(Append).events
    assert (end.transaction, start.transaction) == (1, 2)
    assert isinstance(end.event, EndCommit)
    assert isinstance(start.event, StartCommit)


def test_every_transaction_has_a_folder_of_its_own() -> None:
    coordinator = Coordinator.at(Phase.CLOSING)

    start = coordinator.said[1]
    assert isinstance(start, StartCommit)
    assert start.tables[0].file_prefix == folder(EPOCH, 2)


def test_end_comes_when_the_interval_is_over_and_not_before() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.waits(SETTINGS.commit_interval_ms - 1)
    assert coordinator.phase is Phase.OPEN
    coordinator.waits(1)

    assert coordinator.phase is Phase.PREPARING


def test_only_the_first_interval_of_an_epoch_is_cut_to_its_share() -> None:
    coordinator = Coordinator(identity=replace(IDENTITY, first_interval=0.6))
    coordinator.until(Phase.OPEN)
    coordinator.waits(SETTINGS.commit_interval_ms * 6 // 10 - 1)
    assert coordinator.phase is Phase.OPEN
    coordinator.waits(1)
    assert coordinator.phase is Phase.PREPARING

    begun_ms = coordinator.now_ms
    coordinator.until(Phase.OPEN)
    assert coordinator.state.deadlines[Timer.END] >= begun_ms + SETTINGS.commit_interval_ms


def test_no_end_before_the_settlement_of_the_one_before() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(
        status(1, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1)), ALICE, transaction=1
    )
    coordinator.waits(0)
    coordinator.unsure()
    for _ in range(20):
        coordinator.waits(SETTINGS.commit_interval_ms)
        assert not coordinator.asks_sources
        assert not coordinator.wants(Append)


def test_after_a_late_settlement_the_next_end_comes_at_once() -> None:
    coordinator = Coordinator.at(Phase.SETTLING)
    coordinator.now_ms += SETTINGS.commit_interval_ms
    coordinator.goes_on()
    coordinator.waits(0)

    assert coordinator.phase is Phase.PREPARING


def test_an_unconfirmed_append_is_repeated_with_the_same_numbers() -> None:
    coordinator = Coordinator.at(Phase.CLOSING)
    said = coordinator.only(Append)
    coordinator.given(CallFailed("no confirmation"))
    assert not coordinator.wants(Append)
    coordinator.waits(SETTINGS.retry_backoff_ms)

    assert coordinator.only(Append) == said


def test_hc32_sources_that_do_not_answer_are_asked_again_with_longer_waits() -> None:
    coordinator = Coordinator.at(Phase.PREPARING)
    waits = []
    for _ in range(5):
        began_ms = coordinator.now_ms
        coordinator.given(CallFailed("no broker"))
        while not coordinator.asks_sources:
            coordinator.waits(1)
        waits.append(coordinator.now_ms - began_ms)
    coordinator.described()

    assert waits == [10, 20, 40, 80, 80]
    assert coordinator.phase is Phase.CLOSING


def test_a_partition_that_is_new_is_in_the_next_start_and_not_waited_for() -> None:
    coordinator = Coordinator.at(Phase.PREPARING)
    coordinator.sources = topics((0, 1_000), (0, 1_000), (5, 90))
    coordinator.described()
    start = coordinator.said[1]
    assert isinstance(start, StartCommit)
    assert frozenset(start.offsets) == {P0, P1, P2}

    coordinator.hears_itself()
    coordinator.hears(
        status(1, {P0: (10, 10), P1: (20, 20)}, written_in=(EPOCH, 1)), ALICE, transaction=1
    )
    coordinator.waits(0)
    assert isinstance(coordinator.said[0], AckCommit)
    assert coordinator.term.progress.settlement is not None
    assert coordinator.term.progress.settlement.reason == ""


def test_a_source_that_lost_stored_offsets_begins_with_a_new_epoch_or_stops() -> None:
    coordinator = Coordinator.at(Phase.PREPARING)
    coordinator.sources = topics((50, 1_000), (0, 1_000))
    coordinator.described()
    assert isinstance(coordinator.error, OffsetOutOfRange)

    earliest = replace(SETTINGS, on_offset_out_of_range=OffsetPolicy.EARLIEST)
    coordinator = Coordinator.at(Phase.PREPARING, earliest)
    coordinator.sources = topics((50, 1_000), (0, 1_000))
    coordinator.described()
    assert coordinator.phase is Phase.RECOVERING
    coordinator.until(Phase.OPEN)
    assert coordinator.term.progress.offsets == offsets(50, 20)
    assert coordinator.term.epoch == EPOCH + 1


def test_a_topic_created_anew_ends_the_epoch_even_where_its_offsets_fit() -> None:
    settings = replace(SETTINGS, on_topic_recreated=OffsetPolicy.LATEST)
    coordinator = Coordinator.at(Phase.OPEN, settings)
    coordinator.sources = topics((0, 10), (0, 20), topic_id=TopicId("another"))
    coordinator.until(Phase.PREPARING)
    coordinator.goes_on()

    assert coordinator.phase is Phase.RECOVERING
