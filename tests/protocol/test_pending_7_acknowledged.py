"""PENDING-7: acknowledged by a read of the secondary table; END waits for deliveries a while, and
no longer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, WALL_AHEAD_MS, Coordinator
from protocol.following import ONE, OTHER, announces, at, delivering, following, pending, secondary
from protocol.suspension import ASIDE, ledgers, reads, table
from protocol.suspension import pending as routed_pending

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.ports import Landed
from headgate.coordinator.inputs_and_actions import (
    AcknowledgeDelivered,
    CallFailed,
    DeliveriesAnswered,
    DeliverPendingCommits,
    ManifestsStaged,
    SecondariesRead,
)
from headgate.coordinator.phases import Phase
from headgate.coordinator.secondary_delivery import TRIED_MAX

PATIENT = replace(SETTINGS, delivery_timeout_ms=300)


def asked(coordinator: Coordinator) -> Coordinator:
    coordinator.follows()
    assert coordinator.wants(DeliverPendingCommits)
    return coordinator


def test_an_answer_strikes_nothing_off() -> None:
    coordinator = asked(delivering())
    coordinator.pending = None
    never = {ONE: Landed(1, secondary(ONE, EPOCH, 1)), OTHER: Landed(1, secondary(OTHER, EPOCH, 1))}
    coordinator.given(DeliveriesAnswered(never))
    assert coordinator.reads_secondaries
    assert len(coordinator.term.delivery.pending) == 2
    coordinator.follows()
    assert len(coordinator.term.delivery.pending) == 2
    coordinator.waits(10_000)
    assert coordinator.phase is Phase.OPEN
    assert len(coordinator.term.delivery.pending) == 2


def test_a_read_does_and_the_next_decision_names_what_is_left() -> None:
    coordinator = asked(delivering())
    coordinator.delivers()
    coordinator.follows()
    assert coordinator.phase is Phase.OPEN
    assert coordinator.term.delivery.pending == ()
    coordinator.until(Phase.COLLECTING)
    announces(coordinator)
    coordinator.drafts()
    assert {d.transaction for d in coordinator.attempt.record.pending_commits} == {at(EPOCH, 2)}


def test_what_is_delivered_leaves_the_primary_tables_tag_as_young_as_it_was() -> None:
    coordinator = asked(delivering())
    primary = coordinator.term.primary.view.table
    landed_ms = coordinator.term.delivery.moved_at_ms[primary]
    coordinator.now_ms += 50
    coordinator.delivers()
    coordinator.follows()
    moved = coordinator.term.delivery.moved_at_ms
    assert moved == {primary: landed_ms, ONE: coordinator.now_ms, OTHER: coordinator.now_ms}


def test_deliveries_that_do_not_come_hold_the_next_end_up_for_so_long() -> None:
    coordinator = asked(delivering(PATIENT))
    coordinator.unanswered()
    assert coordinator.phase is Phase.DELIVERING
    coordinator.waits(299)
    coordinator.follows()
    coordinator.unanswered()
    coordinator.waits(1)
    assert coordinator.phase is Phase.OPEN
    assert "stay pending" in coordinator.told


def test_who_owes_for_longer_is_tried_once_per_transaction() -> None:
    coordinator = asked(delivering(PATIENT))
    coordinator.unanswered()
    coordinator.waits(10_000)
    assert coordinator.phase is Phase.OPEN
    coordinator.until(Phase.DELIVERING)
    asked(coordinator)
    coordinator.unanswered()
    assert coordinator.phase is Phase.OPEN


def test_what_stays_pending_is_logged_when_it_changes() -> None:
    coordinator = asked(delivering(PATIENT))
    coordinator.unanswered()
    coordinator.waits(10_000)
    assert "3 rows stay pending" in coordinator.told
    _is_not_delivered(coordinator)
    assert coordinator.told == "", "it is what was logged before"
    (some, *_) = coordinator.term.delivery.pending
    coordinator.state = replace(
        coordinator.state,
        term=replace(
            coordinator.term, delivery=replace(coordinator.term.delivery, pending=(some,))
        ),
    )
    _is_not_delivered(coordinator)
    assert f"{some.rows} rows stay pending for {some.table}" in coordinator.told


def test_an_empty_pending_commit_that_is_not_delivered_is_not_logged() -> None:
    empty = replace(pending(ONE, EPOCH, 99, rows=0), manifest="", size_bytes=0)
    coordinator = following(settings=PATIENT)
    coordinator.until(Phase.OPEN)
    coordinator.state = replace(
        coordinator.state,
        term=replace(
            coordinator.term, delivery=replace(coordinator.term.delivery, pending=(empty,))
        ),
    )
    _is_not_delivered(coordinator)
    assert empty in coordinator.term.delivery.pending
    assert coordinator.told == ""


def _is_not_delivered(coordinator: Coordinator) -> None:
    coordinator.until(Phase.DELIVERING)
    asked(coordinator)
    coordinator.unanswered()
    assert coordinator.phase is Phase.OPEN


def test_with_too_many_pending_commits_nothing_goes_on() -> None:
    pending_commits = tuple(pending(ONE, EPOCH - 1, number) for number in range(1, TRIED_MAX + 1))
    behind = (secondary(ONE, EPOCH - 2, 1), secondary(OTHER))
    coordinator = following(*pending_commits, secondaries=behind, settings=PATIENT)
    newest = replace(coordinator.table.record, transaction=at(EPOCH - 1, TRIED_MAX))  # type: ignore[type-var]
    coordinator.table = replace(coordinator.table, record=newest, branch_record=newest)
    coordinator.until(Phase.DELIVERING)
    for _ in range(5):
        asked(coordinator)
        coordinator.unanswered()
        coordinator.waits(60_000)
        assert coordinator.phase is Phase.DELIVERING
    asked(coordinator)
    coordinator.delivers()
    coordinator.follows()
    assert coordinator.phase is Phase.OPEN


@pytest.mark.parametrize("rows_expire", [True, False])
def test_what_expires_leaves_the_wait_for_too_many(rows_expire: bool) -> None:
    """Only the next decision names what has expired, so nothing may wait for that."""
    settings = replace(PATIENT, claim_age_max_ms=100_000)
    since_ms = 1_000_000 + WALL_AHEAD_MS if rows_expire else 10**15
    owed = tuple(pending(ONE, EPOCH - 1, 4, since_ms=since_ms) for _ in range(TRIED_MAX))
    behind = (secondary(ONE, EPOCH - 2, 1), secondary(OTHER))
    coordinator = following(*owed, secondaries=behind, settings=settings)
    coordinator.until(Phase.DELIVERING)
    for _ in range(5):
        coordinator.pending = None
        coordinator.given(CallFailed("the catalog is away"))
        coordinator.waits(30_000)
    assert coordinator.phase is (Phase.OPEN if rows_expire else Phase.DELIVERING)


@pytest.mark.parametrize("replaced", [0, 1])
def test_too_many_that_cannot_be_read_hold_the_next_end_up(replaced: int) -> None:
    """Of tables that others took the place of, nothing is delivered: these expire by name."""
    names = [f"lake.t{n:03}" for n in range(TRIED_MAX - 80)]
    owed = tuple(routed_pending(EPOCH - 1, n, name=name) for n in (3, 4) for name in names)
    coordinator = ledgers(*owed)
    coordinator.until(Phase.DELIVERING)
    others = [table(name, uuid="another") for name in names] * replaced
    reads(coordinator, secondary(ASIDE), *others)
    assert coordinator.term.suspensions.suspended == {}, "it is the catalog's trouble"
    assert coordinator.phase is (Phase.OPEN if replaced else Phase.DELIVERING)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_decision_names_no_more_than_can_be_read(beyond: int) -> None:
    coordinator = delivering()
    coordinator.until(Phase.COLLECTING)
    announces(coordinator)
    count = (
        commit_record_codec.PENDING_COMMITS_MAX - len(coordinator.term.delivery.pending) + beyond
    )
    coordinator.pending = None
    coordinator.given(
        ManifestsStaged(
            (pending(ONE, EPOCH, coordinator.term.previous_transaction_number),) * count
        )
    )
    assert coordinator.phase is (Phase.RECOVERING if beyond else Phase.COMMITTING)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_decision_without_drafts_names_no_more_than_can_be_read(beyond: int) -> None:
    coordinator = delivering()
    coordinator.until(Phase.COLLECTING)
    many = (pending(ONE, EPOCH, 1),) * (commit_record_codec.PENDING_COMMITS_MAX + beyond)
    coordinator.state = replace(
        coordinator.state,
        term=replace(coordinator.term, delivery=replace(coordinator.term.delivery, pending=many)),
    )
    announces(coordinator, aside={})
    assert coordinator.phase is (Phase.RECOVERING if beyond else Phase.COMMITTING)


def test_what_cannot_be_read_is_read_again() -> None:
    coordinator = delivering(PATIENT)
    coordinator.pending = None
    coordinator.given(CallFailed("the catalog is away"))
    assert coordinator.phase is Phase.DELIVERING
    coordinator.waits(100)
    assert coordinator.reads_primary
    coordinator.pending = None
    coordinator.given(CallFailed("the catalog is away"))
    coordinator.waits(300)
    assert coordinator.phase is Phase.OPEN


def test_a_secondary_that_does_not_answer_holds_up_no_other() -> None:
    coordinator = delivering()
    away = coordinator.secondaries.pop(ONE)
    coordinator.follows()
    (delivery,) = coordinator.only(DeliverPendingCommits).deliveries
    assert delivery.base.table == OTHER
    coordinator.delivers()
    coordinator.secondaries[ONE] = away
    assert coordinator.phase is Phase.DELIVERING


def deleting(name: str) -> PendingCommit:
    return replace(pending(name, EPOCH - 1, 4), rows=0, deletes=2)


def test_key_files_go_with_the_read_that_strikes_their_pending_commit_off() -> None:
    stale = secondary(ONE, EPOCH - 1, 3)
    coordinator = following(deleting(ONE), pending(ONE, EPOCH - 1, 4), secondaries=(stale,))
    coordinator.until(Phase.DELIVERING)
    coordinator.follows()
    asked_for = coordinator.wants(DeliverPendingCommits)
    assert asked_for
    coordinator.delivers()
    assert not coordinator.wants(AcknowledgeDelivered)
    coordinator.follows()
    assert coordinator.term.delivery.pending == ()
    assert coordinator.only(AcknowledgeDelivered).pending_commits == (deleting(ONE),)


def test_key_files_stay_while_what_is_pending_for_another_table_names_their_manifest() -> None:
    """Two tables in one location once staged under one path."""
    stale = (secondary(ONE, EPOCH - 1, 3), secondary(OTHER, EPOCH - 1, 3))
    same = replace(deleting(OTHER), manifest=deleting(ONE).manifest)
    coordinator = following(deleting(ONE), same, secondaries=stale)
    coordinator.until(Phase.DELIVERING)
    del coordinator.secondaries[OTHER]
    coordinator.follows()
    coordinator.delivers()
    coordinator.follows()
    assert coordinator.term.delivery.pending == (same,)
    assert not coordinator.wants(AcknowledgeDelivered)


def test_why_a_table_was_not_read_is_said_with_what_stays_pending() -> None:
    coordinator = delivering(replace(SETTINGS, delivery_timeout_ms=0))
    why = "HG-401 HG-103 table lake.one cannot be read: Forbidden"
    unread = SecondariesRead({OTHER: coordinator.secondaries[OTHER]}, unread={ONE: why})
    coordinator.looks(read=unread)
    coordinator.delivers()
    coordinator.looks(read=replace(unread, views={OTHER: coordinator.secondaries[OTHER]}))
    assert coordinator.phase is Phase.OPEN
    assert f"not read, so not delivered to: {why}" in coordinator.told
    assert f"rows stay pending for {ONE}" in coordinator.told
