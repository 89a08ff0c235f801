"""POSITION-3: on a settlement forget what L covers, chain the rest onto C, and drop all if it
differs."""

from __future__ import annotations

import pytest
from protocol.participating import Participant, claimed, started
from protocol.values import COORDINATOR, P0, P1, offsets

from headgate.control_protocol.events import AbortCommit, AckCommit
from headgate.control_protocol.identifiers import ControlOffset
from headgate.participant.inputs_and_actions import CopyOffsets

AT = offsets(10, 20)


def test_a_settlement_that_agrees_leaves_unannounced_work_alone() -> None:
    participant = answered()
    participant.writes({P0: 115, P1: 25})
    participant.ack(1, offsets(15, 25), settled_to=participant.next_offset)

    assert participant.positions == offsets(115, 25)
    assert len(participant.state.work.files) == 1
    assert participant.state.said.pending == ()


@pytest.mark.parametrize("kind", [AckCommit, AbortCommit])
def test_one_that_differs_anywhere_drops_all_unannounced_work(
    kind: type[AckCommit | AbortCommit],
) -> None:
    """Only partition 1 differs; the files hold both."""
    participant = answered()
    participant.writes({P0: 90, P1: 50})
    settlement = kind(ControlOffset(participant.next_offset), offsets(15, 20))
    participant.hears(settlement, COORDINATOR, transaction=1)

    assert participant.positions == offsets(15, 20)
    assert participant.state.work.files == ()


def test_hc14_a_refused_range_is_read_again() -> None:
    participant = answered()
    participant.ack(1, AT, settled_to=participant.next_offset)
    answer = participant.answers(2, {P0: 15, P1: 25})

    assert claimed(answer) == {P0: (10, 15), P1: (20, 25)}


def test_hc15_what_others_were_quicker_with_is_not_read_again() -> None:
    participant = Participant.writing(AT)
    participant.ack(1, offsets(40, 50), settled_to=participant.next_offset)
    answer = participant.answers(1, {P0: 41, P1: 50})

    assert claimed(answer) == {P0: (40, 41), P1: (50, 50)}


def test_a_running_batch_goes_with_the_rest() -> None:
    participant = answered()
    participant.waits(100)
    participant.source_ends({P0: 200})
    participant.ack(1, AT, settled_to=participant.next_offset)

    assert participant.state.run.batch is None
    assert participant.positions == AT


def test_a_running_batch_that_agrees_goes_on() -> None:
    participant = answered()
    participant.waits(100)
    participant.source_ends({P0: 200})
    participant.ack(1, offsets(15, 25), settled_to=participant.next_offset)
    participant.batch_written()

    assert participant.positions[P0] == 115


def test_an_l_older_than_one_applied_says_nothing() -> None:
    participant = answered()
    participant.ack(1, offsets(15, 25), settled_to=participant.next_offset)
    participant.ack(1, AT, settled_to=participant.next_offset - 2)

    assert participant.positions == offsets(15, 25)


def test_the_same_settlement_again_says_nothing() -> None:
    participant = answered()
    settled_to = participant.next_offset
    participant.ack(1, offsets(15, 25), settled_to=settled_to)
    participant.writes({P0: 115, P1: 25})
    before = participant.state
    participant.ack(1, offsets(15, 25), settled_to=settled_to)

    assert participant.state == before


def test_f22_a_lost_settlement_is_made_good_by_the_next_start() -> None:
    participant = answered()
    participant.hears(started(3, AT, 1, participant.next_offset), COORDINATOR, transaction=3)

    assert participant.positions == AT
    assert participant.state.said.pending == ()


def test_an_old_start_heard_again_moves_nothing() -> None:
    participant = answered()
    participant.writes({P0: 115, P1: 25})
    before = participant.state
    participant.start(2, AT, settled_to=12)

    assert participant.state == before


def test_settled_offsets_are_copied_to_the_group_with_the_tables_uuid() -> None:
    participant = answered()
    participant.ack(1, offsets(15, 25, 99), settled_to=participant.next_offset)

    copy = participant.only(CopyOffsets)
    assert copy.offsets == offsets(15, 25)
    assert copy.table_uuid == "uuid-1"


def answered() -> Participant:
    """Has announced [10, 15) and [20, 25); transaction 2 is open."""
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 25})
    participant.hears_itself()
    participant.start(2, AT, settled_to=12)
    return participant
