"""ELECTION-2: a leader whose calls are not answered leaves the lead to others, if there are any."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.following import ONE, OTHER, following
from protocol.values import ALICE, BOB, COORDINATOR, P0, P1, gain, offsets, status

from headgate.control_protocol.errors import LeadershipReleased
from headgate.control_protocol.events import Notice, NoticeKind, Presence, PresenceKind
from headgate.control_protocol.identifiers import Sender
from headgate.control_protocol.machine_io import LogLine
from headgate.control_protocol.ports import Refused, Unknown
from headgate.coordinator.inputs_and_actions import (
    CallFailed,
    CommitAnswered,
    CommitTable,
    Look,
    SecondariesRead,
)
from headgate.coordinator.machine import PEERS_MAX
from headgate.coordinator.phase_steps import PATIENCE_MS_MIN
from headgate.coordinator.phases import Phase

TURN_MS = 5_000
ALIVE = Presence(PresenceKind.ALIVE, frozenset(), {})


def committing() -> Coordinator:
    made = Coordinator.at(Phase.COLLECTING)
    made.hears(status(1, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1)), ALICE, transaction=1)
    made.waits(0)
    return made


def unanswered(made: Coordinator, ms: int, *, peer: Sender | None = BOB) -> None:
    """Time passes; whatever it asks for fails, and the peer says that it is alive."""
    end_ms = made.now_ms + ms
    while made.now_ms < end_ms and made.phase is not Phase.STOPPED:
        if peer is not None:
            made.hears(ALIVE, peer, epoch=made.state.watch.highest_epoch)
        fails(made)
        made.waits(TURN_MS)


def fails(made: Coordinator, why: str = "HG-401 no answer") -> None:
    """What it asked for last."""
    pending, made.pending = made.pending, None
    if isinstance(pending, CommitTable):
        made.unsure()
    elif pending is not None:
        made.given(CallFailed(why))


def test_a_quarantine_that_may_not_be_read_is_said_with_its_cause_and_is_an_answer() -> None:
    made = following()
    made.until(Phase.RECOVERING)
    why = "HG-401 HG-103 table lake.one cannot be read: Forbidden"
    for _ in range(2 * PATIENCE_MS_MIN // TURN_MS):
        made.hears(ALIVE, BOB, epoch=made.state.watch.highest_epoch)
        views = {OTHER: made.secondaries[OTHER]}
        made.reads()
        made.looks(read=SecondariesRead(views, unread={ONE: why}))
        assert f"not reachable: {ONE} ({why})" in made.told
        made.waits(TURN_MS)
    assert made.phase is Phase.RECOVERING


@pytest.mark.parametrize("phase", [Phase.COMMITTING, Phase.RECOVERING, Phase.CLAIMING])
def test_after_a_minute_without_an_answer_the_lead_goes_to_another(phase: Phase) -> None:
    made = committing() if phase is Phase.COMMITTING else Coordinator.at(phase)
    assert made.phase is phase
    unanswered(made, PATIENCE_MS_MIN - TURN_MS)
    assert made.phase is phase
    unanswered(made, TURN_MS)

    assert type(made.error) is LeadershipReleased
    assert made.error.away_ms == PATIENCE_MS_MIN
    assert COORDINATOR.member in made.error.message


def test_three_intervals_where_they_are_longer() -> None:
    slow = replace(SETTINGS, commit_interval_ms=100_000)
    made = Coordinator.at(Phase.RECOVERING, slow)
    unanswered(made, 3 * 100_000 - TURN_MS)
    assert made.phase is Phase.RECOVERING
    unanswered(made, TURN_MS)
    assert made.phase is Phase.STOPPED


def test_a_table_that_can_be_read_but_not_committed_to_is_no_answer() -> None:
    """Its metadata comes from the catalog, and the manifests cannot be written to the store."""
    made = committing()
    while made.phase is not Phase.STOPPED:
        made.hears(ALIVE, BOB)
        fails(made)
        made.waits(TURN_MS)
        if isinstance(made.pending, Look) and made.pending.primary:
            made.reads()
    assert type(made.error) is LeadershipReleased


@pytest.mark.parametrize("answer", [Refused("the head moved"), Unknown("HG-103", rights=True)])
def test_a_refusal_is_an_answer_that_others_would_get_as_well(answer: Refused | Unknown) -> None:
    made = committing()
    for _ in range(3 * PATIENCE_MS_MIN // TURN_MS):
        made.hears(ALIVE, BOB)
        if isinstance(made.pending, CommitTable):
            made.pending = None
            made.given(CommitAnswered(answer))
        made.waits(TURN_MS)
        if isinstance(made.pending, Look) and made.pending.primary:
            made.reads()
    assert made.phase is Phase.COMMITTING


def test_so_is_that_rights_are_missing() -> None:
    """The primary table would go round among participants that all have the same."""
    made = Coordinator.at(Phase.RECOVERING)
    for _ in range(3 * PATIENCE_MS_MIN // TURN_MS):
        made.hears(ALIVE, BOB, epoch=made.state.watch.highest_epoch)
        fails(made, "HG-401 HG-103 the catalog refused the table")
        made.waits(TURN_MS)
    assert made.phase is Phase.RECOVERING


def test_an_answer_in_between_begins_it_anew() -> None:
    made = committing()
    unanswered(made, PATIENCE_MS_MIN - TURN_MS)
    made.until(Phase.OPEN)
    made.until(Phase.COLLECTING)
    late = status(2, {P0: (15, 16), P1: (20, 20)}, written_in=(EPOCH, 2))
    made.hears(late, ALICE, transaction=2)
    made.waits(0)
    unanswered(made, PATIENCE_MS_MIN - TURN_MS)
    assert made.phase is Phase.COMMITTING


@pytest.mark.parametrize("peer", [None, Sender(COORDINATOR.member, "its own participant")])
def test_the_only_participant_keeps_the_lead_and_says_so(peer: Sender | None) -> None:
    made = Coordinator.at(Phase.RECOVERING)
    unanswered(made, 3 * PATIENCE_MS_MIN, peer=peer)
    assert made.phase is Phase.RECOVERING
    made.given(CallFailed("HG-401 no answer"))
    (told,) = made.all(LogLine)
    assert told.text.startswith("HG-409 keeps the lead, for nobody else was heard: HG-401")


def test_who_is_about_to_leave_the_lead_to_another_does_not_say_that_it_keeps_it() -> None:
    made = Coordinator.at(Phase.RECOVERING)
    unanswered(made, PATIENCE_MS_MIN - TURN_MS)
    made.hears(ALIVE, BOB, epoch=made.state.watch.highest_epoch)
    made.now_ms += 2 * TURN_MS
    made.given(CallFailed("HG-401 no answer"))
    assert "keeps the lead" not in made.told
    made.waits(0)
    assert type(made.error) is LeadershipReleased


def test_who_was_heard_long_ago_or_gave_up_all_it_had_is_no_heir() -> None:
    made = Coordinator.at(Phase.RECOVERING)
    made.hears(gain(P1), ALICE, epoch=made.state.watch.highest_epoch)
    unanswered(made, PATIENCE_MS_MIN // 2 + TURN_MS, peer=None)
    made.hears(gain(P1), BOB, epoch=made.state.watch.highest_epoch)
    gone = Presence(PresenceKind.LOST, frozenset({P1}), {})
    made.hears(gone, BOB, epoch=made.state.watch.highest_epoch)
    unanswered(made, 3 * PATIENCE_MS_MIN, peer=None)
    assert made.phase is Phase.RECOVERING


def test_a_person_at_a_terminal_is_no_heir() -> None:
    made = Coordinator.at(Phase.RECOVERING)
    for _ in range(3 * PATIENCE_MS_MIN // TURN_MS):
        made.hears(Notice(NoticeKind.ERROR, "HG-401", "no answer"), BOB, epoch=0)
        made.given(CallFailed("HG-401 no answer"))
        made.waits(TURN_MS)
    assert made.phase is Phase.RECOVERING


def test_invented_participants_take_bounded_memory() -> None:
    made = Coordinator.at(Phase.RECOVERING)
    unanswered(made, PATIENCE_MS_MIN // 2 + TURN_MS, peer=None)
    for number in range(2 * PEERS_MAX):
        made.hears(ALIVE, Sender(f"invented-{number}", "1"), epoch=made.state.watch.highest_epoch)
    assert len(made.state.watch.peers) == PEERS_MAX


def test_the_one_that_takes_over_claims_and_goes_on_where_the_table_stands() -> None:
    made = committing()
    unanswered(made, PATIENCE_MS_MIN)
    heir = Coordinator(made.table)
    heir.until(Phase.OPEN)
    assert heir.term.epoch == EPOCH + 1
    assert heir.term.progress.offsets == offsets(10, 20)
