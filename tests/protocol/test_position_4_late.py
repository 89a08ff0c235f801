"""POSITION-4: an own status behind L is late: it stays pending and is never announced again as
new."""

from __future__ import annotations

from protocol.participating import Participant, claimed
from protocol.values import P0, P1, offsets

AT = offsets(10, 20)


def test_x14_a_status_at_or_behind_l_stays_pending() -> None:
    participant, s = late()
    participant.ack(1, AT, settled_to=s)

    (pending,) = participant.state.said.pending
    assert pending.offset == s
    assert participant.positions == offsets(15, 25)


def test_one_in_front_of_l_is_forgotten() -> None:
    participant, s = late()
    participant.ack(1, offsets(15, 25), settled_to=s + 1)

    assert participant.state.said.pending == ()


def test_a_late_range_is_never_announced_again_as_a_new_claim() -> None:
    participant, s = late()
    participant.ack(1, AT, settled_to=s)
    answer = participant.answers(2, {P0: 17, P1: 25})

    assert claimed(answer) == {P0: (15, 17), P1: (25, 25)}


def test_one_that_is_always_slow_still_gets_on() -> None:
    """Every settlement comes one too early for it; its work is in all the same, one later."""
    participant, s = late()
    c = AT
    for number in range(2, 8):
        participant.ack(number - 1, c, settled_to=s)
        c = offsets(5 + 5 * number, 25)
        participant.answers(number, {P0: 10 + 5 * number, P1: 25})
        (s,) = participant.hears_itself()
        participant.start(number + 1, c, settled_to=s)

    assert participant.positions[P0] == 45
    assert len(participant.state.said.pending) == 1


def test_a_late_status_that_c_does_not_admit_is_not_chained() -> None:
    """Somebody else's range came first: ours will be refused, so that its end means nothing."""
    participant, s = late()
    participant.ack(1, offsets(12, 20), settled_to=s)

    assert participant.positions == offsets(12, 20)
    assert len(participant.state.said.pending) == 1


def test_several_late_statuses_are_chained_in_order() -> None:
    participant, s = late()
    participant.answers(2, {P0: 17, P1: 26})
    participant.hears_itself()
    participant.start(3, AT, settled_to=s)

    assert participant.positions == offsets(17, 26)
    assert len(participant.state.said.pending) == 2


def test_one_that_was_not_heard_yet_is_late_too() -> None:
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 25})
    participant.ack(1, AT, settled_to=10_000)

    assert participant.positions == offsets(15, 25)
    assert len(participant.state.said.pending) == 1


def late() -> tuple[Participant, int]:
    """Its answer to END 1 stands at s; transaction 2 is open."""
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 25})
    (s,) = participant.hears_itself()
    participant.start(2, AT, settled_to=12)
    return participant, s
