"""Tests bugs that adversarial reading of the machines found; each is named by its rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.participating import SETTINGS as PARTICIPANT_SETTINGS
from protocol.participating import Participant
from protocol.values import (
    ALICE,
    BOB,
    P0,
    P1,
    RIVAL,
    data_file,
    folder,
    gain,
    offsets,
    record,
    status,
    view,
)

from headgate.control_protocol.errors import StopSink
from headgate.control_protocol.events import (
    EndCommit,
    Pause,
    PresenceKind,
    Resume,
    StartCommit,
    TableStatus,
    WriteStatus,
    WrittenRange,
)
from headgate.control_protocol.machine_io import Append
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Lineage
from headgate.coordinator.inputs_and_actions import (
    CallFailed,
    CommitTable,
    LeadershipGained,
    Stopped,
)
from headgate.coordinator.phases import TRANSITIONS, Phase
from headgate.coordinator.settings import RollbackPolicy
from headgate.coordinator.state import Timer
from headgate.participant.inputs_and_actions import CopyOffsets

AT = offsets(10, 20)


def test_commit_2_a_joiner_in_mid_collection_costs_nobody_a_time_out() -> None:
    """It has seen no epoch yet and was not there for END: its PRESENCE is all it will say."""
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(status(1, {P0: (10, 15)}, written_in=(EPOCH, 1)), ALICE, transaction=1)
    coordinator.hears(gain(P1, kind=PresenceKind.JOINED), BOB, epoch=0)
    coordinator.waits(1)

    assert coordinator.wants(CommitTable)


def test_commit_4_a_failed_write_is_not_idle() -> None:
    """Records of the failed range are still to come; their timestamps are not known."""
    participant = Participant.writing(AT)
    participant.end(1)
    participant.source_ends({P0: 15, P1: 25})
    participant.batch_failed()
    failed = participant.status
    coordinator = Coordinator.at(Phase.COLLECTING)
    ok = status(1, {P0: (10, 15)}, written_in=(EPOCH, 1), timestamps={P0: 900})
    coordinator.hears(ok, BOB, transaction=1)
    coordinator.hears(replace(failed, written={P1: failed.written[P1]}), ALICE, transaction=1)
    coordinator.waits(1)

    assert coordinator.attempt.record.valid_through_ms is None


def test_outcome_2_waits_double_while_the_sources_do_not_answer() -> None:
    coordinator = Coordinator()
    coordinator.given(LeadershipGained())
    waits = []
    for _ in range(5):
        coordinator.reads()
        assert coordinator.asks_sources
        began_ms = coordinator.now_ms
        coordinator.given(CallFailed("no broker"))
        while not coordinator.actions or coordinator.told:
            coordinator.waits(1)
        waits.append(coordinator.now_ms - began_ms)

    assert waits == [10, 20, 40, 80, 80]


def test_outcome_2_a_claim_that_is_refused_for_ever_waits_between_tries() -> None:
    """keep-offsets after a rollback: each refusal leads to RECOVER, which forgets the failures."""
    keep = replace(SETTINGS, on_rollback=RollbackPolicy.KEEP_OFFSETS)
    rolled_back = replace(view(record(6, 4, AT, RIVAL)), lineage=Lineage.ROLLED_BACK)
    coordinator = Coordinator(rolled_back, keep)
    coordinator.until(Phase.CLAIMING)
    for _ in range(20):  # no time passes: this is one call of the driver, which cannot be stopped
        coordinator.refused()
        if Timer.RETRY in coordinator.state.deadlines:
            return
        coordinator.until(Phase.RECOVERING)
        coordinator.until(Phase.CLAIMING)

    raise AssertionError("twenty tries without a wait")


def test_outcome_2_a_commit_that_landed_unknown_and_was_rolled_back_is_not_built_upon() -> None:
    """The next one would carry offsets behind rows that are gone (simulation, seed 5727)."""
    coordinator = Coordinator.at(Phase.COLLECTING)
    whole = status(1, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1))
    coordinator.hears(whole, ALICE, transaction=1)
    coordinator.waits(1)
    before = coordinator.table
    landed = coordinator.takes()
    coordinator.unsure()
    coordinator.waits(SETTINGS.retry_backoff_ms)
    coordinator.reads(replace(landed, head=before.head, lineage=Lineage.ROLLED_BACK))
    assert coordinator.phase is Phase.RECOVERING
    coordinator.reads()

    assert coordinator.error.code == "HG-201"


def test_pause_said_while_the_coordinator_claims_is_kept() -> None:
    coordinator = Coordinator.at(Phase.CLAIMING)
    claimed = coordinator.pending
    coordinator.hears(Pause(), BOB, epoch=EPOCH - 1, transaction=4)
    coordinator.pending = claimed
    coordinator.goes_on()
    (start,) = coordinator.said
    assert isinstance(start, StartCommit)

    assert start.paused


@pytest.mark.parametrize("phase", [Phase.FOLLOWING, Phase.RECOVERING, Phase.CLAIMING])
def test_resume_said_between_two_terms_is_kept(phase: Phase) -> None:
    stored = record(EPOCH - 1, 4, offsets(10, 20), RIVAL, paused=True)
    coordinator = Coordinator.at(phase, table=view(stored))
    pending = coordinator.pending
    coordinator.hears(Pause(), BOB, epoch=EPOCH - 1, transaction=4)
    coordinator.hears(Resume(), BOB, epoch=EPOCH - 1, transaction=4)
    coordinator.pending = pending
    coordinator.until(Phase.STARTING)
    (start,) = coordinator.said
    assert isinstance(start, StartCommit)

    assert not start.paused
    assert coordinator.state.pause_asked is None
    coordinator.until(Phase.COMMITTING)
    assert not coordinator.attempt.record.paused, "the table says so, too"


def test_pause_said_in_front_of_a_start_that_did_not_know_of_it_is_put_right_at_once() -> None:
    """The participants heard PAUSE, then START with ``paused=False``: they fetch again."""
    coordinator = Coordinator.at(Phase.CLOSING)
    said = coordinator.only(Append)
    coordinator.hears(Pause(), BOB)
    coordinator.hears_itself(said)
    idle = status(1, {P0: (10, 10), P1: (20, 20)})
    coordinator.hears(idle, ALICE, transaction=1)
    for _ in range(6):
        if coordinator.pending is not None:
            coordinator.goes_on()
        coordinator.waits(1)

    assert coordinator.phase is not Phase.OPEN


def test_pause_said_in_front_of_the_first_start_is_put_right_at_once_too() -> None:
    coordinator = Coordinator.at(Phase.STARTING)
    said = coordinator.only(Append)
    coordinator.hears(Pause(), BOB)
    coordinator.hears_itself(said)
    coordinator.waits(0)

    assert coordinator.phase is Phase.PREPARING


def test_position_3_an_l_older_than_one_applied_copies_nothing_to_the_group() -> None:
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 25})
    participant.hears_itself()
    participant.start(2, AT, settled_to=12)
    participant.ack(1, offsets(15, 25), settled_to=participant.next_offset)
    participant.ack(0, AT, settled_to=12)

    assert participant.all(CopyOffsets) == []


def test_answer_2_a_reason_does_not_outlive_its_failure() -> None:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 110})
    participant.batch_failed("disk full")
    participant.waits(PARTICIPANT_SETTINGS.end_offset_interval_ms)
    participant.source_ends({P0: 110})
    participant.batch_written()

    assert participant.answers(1, {P0: 110, P1: 20}).failure is None


def test_range_2_a_file_in_a_folder_that_was_never_issued_is_out() -> None:
    """``issued up to that transaction``: the transaction is what the participant says it is."""
    coordinator = Coordinator.at(Phase.COLLECTING)
    invented = status(
        1, {P0: (10, 15), P1: (20, 20)}, files=(data_file(f"{folder(EPOCH, 99)}/f.parquet", 5),)
    )
    coordinator.hears(invented, ALICE, transaction=99)
    coordinator.waits(1)

    assert coordinator.term.progress.settlement is not None
    assert coordinator.term.progress.settlement.offsets == AT


def test_range_2_a_claim_of_more_rows_than_offsets_is_out() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    claim = WrittenRange(OffsetRange(10, 15), records=9)
    files = (data_file(f"{folder(EPOCH, 1)}/f.parquet", 9),)
    too_many = WriteStatus(1, {P0: claim}, (TableStatus("lake.trips", files),), frozenset({P1}))
    coordinator.hears(too_many, ALICE, transaction=1)
    coordinator.waits(1)

    assert coordinator.term.progress.settlement is not None
    assert coordinator.term.progress.settlement.offsets == AT


def test_transitions_stop_from_following_is_in_the_table_or_impossible() -> None:
    coordinator = Coordinator()
    coordinator.given(Stopped(StopSink("no repetition can help")))

    assert coordinator.phase in TRANSITIONS[Phase.FOLLOWING] | {Phase.FOLLOWING}


@pytest.mark.parametrize("phase", [Phase.RECOVERING, Phase.CLAIMING])
def test_epoch_4_before_its_term_a_higher_epoch_is_one_to_claim_above(phase: Phase) -> None:
    coordinator = Coordinator.at(phase)
    coordinator.hears(EndCommit(), RIVAL, epoch=EPOCH + 5)

    assert coordinator.phase is phase
    assert coordinator.state.watch.highest_epoch == EPOCH + 5


def test_epoch_4_a_rival_that_collects_for_long_is_let_finish() -> None:
    """commit_timeout_ms above election time-out plus interval: a live rival says nothing so long.

    A is superseded by B; B leads, one participant of it is stuck, each of its rounds takes the
    whole time-out. A must not claim in between, for ever and again.
    """
    slow = replace(SETTINGS, commit_timeout_ms=10_000)
    b = Coordinator.at(Phase.COLLECTING, slow)
    began_ms = b.now_ms
    b.waits(SETTINGS.election_timeout_ms + SETTINGS.commit_interval_ms)
    assert not b.wants(Append)
    a = Coordinator.at(Phase.OPEN, slow)
    a.hears(EndCommit(), RIVAL, epoch=EPOCH + 1)
    a.now_ms += b.now_ms - began_ms
    a.given(LeadershipGained())

    assert a.phase is Phase.FOLLOWING


def test_answer_2_an_old_end_is_not_answered_with_what_answers_a_newer_one() -> None:
    """A log replayed by a producer's retry makes every participant repeat its newest status once
    per END ever said (tests/scenarios/conversations/control_events_come_twice.txt)."""
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 20})
    participant.hears_itself()
    participant.start(2, AT, settled_to=12)
    participant.ack(1, offsets(15, 20), settled_to=participant.next_offset)
    participant.answers(2, {P0: 17, P1: 20})
    participant.hears_itself()
    participant.end(1)

    assert participant.said == []


def test_range_1_a_transaction_that_was_answered_is_not_opened_again() -> None:
    """Answered, the next START not yet heard, and a late copy of the old START comes in between."""
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 20})
    participant.hears_itself()
    participant.start(1, AT, settled_to=5)

    assert participant.state.term.writing is None
