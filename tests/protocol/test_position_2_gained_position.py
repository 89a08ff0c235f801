"""POSITION-2: a gained partition's position is C of the first settlement or START with L behind
h."""

from __future__ import annotations

from protocol.participating import Participant, claimed
from protocol.values import P0, P1, offsets

AT = offsets(10, 20)


def test_the_first_settlement_behind_the_presence_gives_the_position() -> None:
    participant, h = joined()
    participant.ack(3, AT, settled_to=h + 1)

    assert participant.positions == AT


def test_one_that_does_not_cover_the_presence_does_not() -> None:
    """The previous owner's last status may stand in front of h, and not be in this C."""
    participant, h = joined()
    participant.ack(3, AT, settled_to=h)

    assert dict(participant.positions) == {}


def test_a_start_is_as_good_as_a_settlement() -> None:
    participant, h = joined()
    participant.start(4, AT, settled_to=h)
    assert dict(participant.positions) == {}
    participant.start(5, AT, settled_to=h + 1)

    assert participant.positions == AT


def test_an_epochs_first_start_stands_behind_it() -> None:
    participant, _ = joined()
    participant.start(1, AT, epoch=2)

    assert participant.positions == AT


def test_hc36_a_first_start_in_front_of_the_presence_gives_none() -> None:
    participant = Participant()
    participant.owns(P0, P1)
    participant.start(1, AT)
    assert dict(participant.positions) == {}
    (h,) = participant.hears_itself()
    participant.ack(1, AT, settled_to=h + 1)

    assert participant.positions == AT


def test_a_presence_that_was_never_heard_gives_none() -> None:
    participant = Participant()
    participant.owns(P0, P1)
    participant.ack(3, AT, settled_to=10_000)

    assert dict(participant.positions) == {}


def test_a_presence_heard_twice_stands_where_it_was_heard_first() -> None:
    participant = Participant()
    participant.owns(P0, P1)
    (draft,) = participant.unheard
    participant.unheard.append(draft)
    first, _ = participant.hears_itself()
    participant.ack(3, AT, settled_to=first + 1)

    assert participant.positions == AT


def test_a_partition_gained_again_waits_for_its_new_presence() -> None:
    participant = Participant.writing(AT)
    participant.owns(P0)
    participant.owns(P0, P1)
    h = participant.hears_itself()[-1]
    participant.ack(1, offsets(10, 33), settled_to=h)
    assert dict(participant.positions) == {P0: 10}
    participant.ack(2, offsets(10, 44), settled_to=h + 1)

    assert dict(participant.positions) == {P0: 10, P1: 44}


def test_hc31_a_partition_that_c_does_not_name_has_no_position() -> None:
    participant, h = joined()
    participant.ack(3, offsets(10), settled_to=h + 1)
    assert dict(participant.positions) == {P0: 10}
    participant.ack(4, AT, settled_to=h + 2)

    assert participant.positions == AT


def test_hc12_own_late_statuses_count_for_a_partition_that_came_back() -> None:
    """It was announced by us, given up, and gained again before the settlement."""
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 25})
    (s,) = participant.hears_itself()
    participant.owns(P0)
    participant.owns(P0, P1)
    h = participant.hears_itself()[-1]
    assert h > s
    participant.ack(1, offsets(15, 25), settled_to=h + 1)

    assert participant.positions == offsets(15, 25)


def test_hc11_one_that_restarts_in_mid_transaction_is_in_step_one_round_later() -> None:
    """It saw no START 3: END 3 finds it without a position, the settlement gives it one."""
    participant, _ = joined()
    participant.end(3)
    assert participant.status.unknown == {P0, P1}
    participant.start(4, AT, settled_to=5)
    (s,) = participant.hears_itself()
    assert dict(participant.positions) == {}
    participant.ack(3, AT, settled_to=s + 1)

    assert claimed(participant.answers(4, {P0: 15, P1: 20})) == {P0: (10, 15), P1: (20, 20)}


def joined() -> tuple[Participant, int]:
    """Owns both partitions; its PRESENCE stands at h."""
    participant = Participant()
    participant.owns(P0, P1)
    (h,) = participant.hears_itself()
    return participant, h
