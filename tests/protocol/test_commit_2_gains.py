"""COMMIT-2: a PRESENCE that gains partitions names them unknown, and makes END come soon."""

from __future__ import annotations

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.values import ALICE, BOB, P0, P1, gain, offsets, status

from headgate.control_protocol.events import AckCommit, PresenceKind
from headgate.coordinator.phases import Phase


@pytest.mark.parametrize("kind", [PresenceKind.GAINED, PresenceKind.JOINED])
def test_a_gain_brings_the_next_end_forward(kind: PresenceKind) -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(gain(P1, kind=kind), BOB)
    coordinator.waits(SETTINGS.rebalance_delay_ms - 1)
    assert coordinator.phase is Phase.OPEN
    coordinator.waits(1)

    assert coordinator.phase is Phase.PREPARING


@pytest.mark.parametrize("kind", [PresenceKind.LOST, PresenceKind.ALIVE])
def test_other_presences_do_not(kind: PresenceKind) -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(gain(P1, kind=kind), BOB)
    coordinator.waits(SETTINGS.rebalance_delay_ms)

    assert coordinator.phase is Phase.OPEN


def test_a_gain_never_puts_the_end_off() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.waits(SETTINGS.commit_interval_ms - 1)
    coordinator.hears(gain(P1), BOB)
    coordinator.waits(1)

    assert coordinator.phase is Phase.PREPARING


def test_a_joiner_of_an_older_epoch_is_not_kept_waiting_either() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(gain(P1, kind=PresenceKind.JOINED), BOB, epoch=0)
    coordinator.waits(SETTINGS.rebalance_delay_ms)

    assert coordinator.phase is Phase.PREPARING


def test_a_gained_partition_is_named_and_nobody_waits_for_a_time_out() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(status(1, {P0: (10, 15)}, written_in=(EPOCH, 1)), ALICE, transaction=1)
    coordinator.waits(1)
    assert coordinator.phase is Phase.COLLECTING
    coordinator.hears(gain(P1), BOB)
    coordinator.waits(1)

    assert coordinator.attempt.record.offsets == offsets(15, 20)


def test_what_a_gain_named_counts_for_one_settlement_only() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(gain(P0, P1), BOB)
    coordinator.until(Phase.SETTLING)
    assert isinstance(coordinator.term.progress.settlement, AckCommit)
    coordinator.until(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms - 1)

    assert coordinator.phase is Phase.COLLECTING


def test_a_gain_keeps_valid_through_where_it_is() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(
        status(1, {P0: (10, 15)}, written_in=(EPOCH, 1), timestamps={P0: 99}),
        ALICE,
        transaction=1,
    )
    coordinator.hears(gain(P1), BOB)
    coordinator.waits(1)

    assert coordinator.attempt.record.valid_through_ms is None


def test_who_gained_in_front_of_the_first_start_has_its_position_and_answers() -> None:
    coordinator = Coordinator.at(Phase.STARTING)
    coordinator.hears(gain(P1), BOB, epoch=0)
    coordinator.until(Phase.COLLECTING)
    coordinator.hears(status(1, {P0: (10, 15)}, written_in=(EPOCH, 1)), ALICE, transaction=1)
    coordinator.waits(1)

    assert coordinator.phase is Phase.COLLECTING
