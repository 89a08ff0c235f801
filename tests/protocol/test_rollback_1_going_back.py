"""ROLLBACK-1: a ledger goes back with all that it has filled; nobody coordinates in the midst of
that."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import Coordinator
from protocol.values import offsets, record, view

from headgate.control_protocol.machine_io import Stop
from headgate.coordinator.inputs_and_actions import CommitTable, LeadershipGained
from headgate.coordinator.phases import Phase


def test_rollback_1_what_is_going_back_is_not_claimed() -> None:
    begun = replace(record(5, 0, offsets(10, 20)), going_back="4.17", actor="ann@one")
    coordinator = Coordinator()
    coordinator.given(LeadershipGained())
    coordinator.reads(view(begun))
    (told,) = coordinator.actions
    assert isinstance(told, Stop)
    assert told.error.code == "HG-260"
    assert "ann@one" in told.error.message
    assert "headgate rollback SINK 4.17" in told.error.hint
    assert coordinator.state.phase is Phase.STOPPED


def test_rollback_1_behind_it_a_claim_goes_on_from_the_offsets_gone_back_to() -> None:
    back = replace(record(6, 0, offsets(3, 4)), command="rollback")
    coordinator = Coordinator(view(back))
    while not coordinator.wants(CommitTable):
        coordinator.goes_on()
    claimed = coordinator.attempt.record
    assert claimed.offsets == offsets(3, 4)
    assert (claimed.transaction.epoch, claimed.going_back) == (7, None)
