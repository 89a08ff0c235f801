"""TABLE-4: reading tells where the branch stands to the tag; all but two answers are named
errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator, with_foreign_commit
from protocol.following import ONE, OTHER, delivering
from protocol.values import ALICE, SINK, offsets, record, status, view

from headgate.control_protocol.commit_record import offset_metadata_of_table
from headgate.control_protocol.errors import (
    HistoryUndecidable,
    StopSink,
    TableRecreated,
    TableRolledBack,
    TagMissing,
)
from headgate.control_protocol.machine_io import Stop
from headgate.control_protocol.ports import Lineage, TableView
from headgate.coordinator.inputs_and_actions import CallFailed, LeadershipGained, Look
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import (
    CoordinatorSettings,
    RollbackPolicy,
    TableRecreatedPolicy,
    TagMissingPolicy,
)

NEWEST, OLDER = record(EPOCH - 1, 4, offsets(10, 20)), record(EPOCH - 1, 2, offsets(5, 6))


def table(lineage: Lineage) -> TableView:
    missing = lineage is Lineage.TAG_MISSING
    found = view(None if missing else NEWEST, on_branch=OLDER)
    return replace(found, lineage=lineage)


@pytest.mark.parametrize(
    ("lineage", "error"),
    [
        (Lineage.ROLLED_BACK, TableRolledBack),
        (Lineage.UNDECIDABLE, HistoryUndecidable),
        (Lineage.TAG_MISSING, TagMissing),
    ],
)
def test_f67_a_contradiction_stops_the_sink_with_a_name(
    lineage: Lineage, error: type[StopSink]
) -> None:
    coordinator = leading(table(lineage), SETTINGS)

    assert type(coordinator.error) is error
    assert coordinator.error.hint


@pytest.mark.parametrize("lineage", [Lineage.CONTAINS_TAG, Lineage.FRESH])
def test_the_two_ordinary_answers_do_not(lineage: Lineage) -> None:
    found = view(NEWEST) if lineage is Lineage.CONTAINS_TAG else view(None)

    assert leading(found, SETTINGS).phase is Phase.RECOVERING


@pytest.mark.parametrize(
    ("lineage", "policy", "begins_at"),
    [
        (Lineage.ROLLED_BACK, {"on_rollback": RollbackPolicy.FOLLOW_TABLE}, offsets(5, 6)),
        (Lineage.ROLLED_BACK, {"on_rollback": RollbackPolicy.KEEP_OFFSETS}, offsets(10, 20)),
        (Lineage.UNDECIDABLE, {"on_rollback": RollbackPolicy.KEEP_OFFSETS}, offsets(10, 20)),
        (Lineage.TAG_MISSING, {"on_tag_missing": TagMissingPolicy.FOLLOW_TABLE}, offsets(5, 6)),
    ],
)
def test_a_policy_says_where_to_go_on_and_begins_with_a_new_epoch(
    lineage: Lineage, policy: dict[str, RollbackPolicy], begins_at: object
) -> None:
    coordinator = leading(table(lineage), replace(SETTINGS, **policy))
    coordinator.until(Phase.OPEN)

    assert coordinator.term.progress.offsets == begins_at
    assert coordinator.term.epoch == EPOCH


def test_where_nothing_can_be_followed_follow_table_is_no_way_out() -> None:
    follow = replace(SETTINGS, on_rollback=RollbackPolicy.FOLLOW_TABLE)

    assert leading(table(Lineage.UNDECIDABLE), follow).wants(Stop)


def test_a_tag_moved_by_hand_behind_the_branchs_newest_record_is_missing() -> None:
    moved = view(OLDER, on_branch=NEWEST)

    assert isinstance(leading(moved, SETTINGS).error, TagMissing)


def test_f68_a_table_created_anew_is_told_from_a_first_start_by_the_groups_note() -> None:
    coordinator = leading(view(None, uuid="uuid-2"), SETTINGS)
    coordinator.note = offset_metadata_of_table("uuid-1", SINK)
    coordinator.start = offsets(0, 0)
    coordinator.described()

    assert isinstance(coordinator.error, TableRecreated)


def test_x7_a_table_created_anew_in_mid_commit_stops_the_sink() -> None:
    coordinator = Coordinator.at(Phase.CLAIMING)
    coordinator.refused()
    coordinator.reads(view(None, uuid="uuid-2"))
    coordinator.reads()
    coordinator.described()

    assert isinstance(coordinator.error, TableRecreated)


def test_restart_fills_the_new_table_from_the_start() -> None:
    restart = replace(SETTINGS, on_table_recreated=TableRecreatedPolicy.RESTART)
    coordinator = leading(view(None, uuid="uuid-2"), restart)
    coordinator.note = offset_metadata_of_table("uuid-1", SINK)
    coordinator.start = offsets(3, 4)
    coordinator.until(Phase.OPEN)

    assert coordinator.term.progress.offsets == offsets(3, 4)


LOOKS = replace(SETTINGS, table_check_interval_ms=3 * SETTINGS.commit_interval_ms)


def next_end(coordinator: Coordinator) -> None:
    """To the end of one more transaction, in which nobody had anything."""
    coordinator.until(Phase.OPEN)
    coordinator.waits(SETTINGS.commit_interval_ms)


def nobody_has_anything(coordinator: Coordinator) -> None:
    coordinator.until(Phase.COLLECTING)
    progress = coordinator.term.progress
    empty = status(100 + progress.number, {at: (n, n) for at, n in progress.offsets.items()})
    coordinator.hears(empty, ALICE, transaction=coordinator.term.previous_transaction_number)
    coordinator.waits(1)


def idle_until_it_looks(coordinator: Coordinator) -> None:
    for _ in range(5):
        next_end(coordinator)
        if coordinator.reads_primary:
            return
        coordinator.pending = coordinator.only(Look)
        nobody_has_anything(coordinator)
    raise AssertionError("never looked at the table")


def test_an_idle_sink_renews_its_tag_after_foreign_commits() -> None:
    coordinator = Coordinator.at(Phase.OPEN, LOOKS)
    idle_until_it_looks(coordinator)
    coordinator.reads(with_foreign_commit(coordinator.table))
    nobody_has_anything(coordinator)

    assert coordinator.phase is Phase.COMMITTING
    coordinator.refused()
    coordinator.reads()
    coordinator.lands()
    assert coordinator.phase is Phase.SETTLING
    assert coordinator.term.primary.view.head == coordinator.term.primary.view.tag
    next_end(coordinator)
    coordinator.pending = coordinator.only(Look)
    nobody_has_anything(coordinator)
    assert coordinator.phase is Phase.SETTLING, "once is enough"


def test_an_idle_sink_lets_its_tag_be_where_only_tags_of_others_are_above() -> None:
    """Two idle sinks on one table would else renew their tags because of each other, for ever."""
    coordinator = Coordinator.at(Phase.OPEN, LOOKS)
    idle_until_it_looks(coordinator)
    coordinator.reads(replace(with_foreign_commit(coordinator.table), only_tags_above=True))
    nobody_has_anything(coordinator)

    assert coordinator.phase is Phase.SETTLING


def test_it_commits_nothing_where_nobody_else_has() -> None:
    coordinator = Coordinator.at(Phase.OPEN, LOOKS)
    idle_until_it_looks(coordinator)
    coordinator.reads()
    nobody_has_anything(coordinator)

    assert coordinator.phase is Phase.SETTLING
    next_end(coordinator)
    assert not coordinator.reads_primary, "not at every end"


def test_an_end_waits_for_a_catalog_that_does_not_answer_and_asks_the_same_again() -> None:
    coordinator = Coordinator.at(Phase.OPEN, LOOKS)
    idle_until_it_looks(coordinator)
    asked = coordinator.only(Look)
    coordinator.given(CallFailed("the catalog is away"))
    coordinator.waits(SETTINGS.retry_backoff_max_ms)

    assert coordinator.only(Look) == asked
    coordinator.reads()
    assert coordinator.phase is Phase.CLOSING
    nobody_has_anything(coordinator)
    assert coordinator.phase is Phase.SETTLING


def test_a_sink_that_commits_looks_round_as_often_as_an_idle_one() -> None:
    settings = replace(LOOKS, tag_refresh_interval_ms=1)
    coordinator = Coordinator.at(Phase.OPEN, settings)
    looks = []
    for _ in range(6):
        next_end(coordinator)
        looks.append(coordinator.reads_primary)
        coordinator.pending = asked = coordinator.only(Look)
        if asked.primary:
            coordinator.reads()
        nobody_has_anything(coordinator)

    assert looks == [False, False, True, False, False, True]


@pytest.mark.parametrize("name", ["", ONE])
def test_what_a_delivery_saw_of_others_is_found_by_the_look_round_all_the_same(name: str) -> None:
    """A commit of others between a decision, or a delivery, and the read that follows it."""
    coordinator = delivering(LOOKS)
    if not name:
        coordinator.reads(with_foreign_commit(coordinator.table))
    else:
        coordinator.reads()
        coordinator.delivers()
        coordinator.follows(with_foreign_commit(coordinator.secondaries[name]))
    coordinator.until(Phase.OPEN)
    idle_until_it_looks(coordinator)
    coordinator.looks()
    nobody_has_anything(coordinator)

    assert coordinator.phase is Phase.COMMITTING
    renewed = {pending.table for pending in coordinator.attempt.record.pending_commits}
    assert renewed == {ONE, OTHER}
    coordinator.until(Phase.OPEN)
    idle_until_it_looks(coordinator)
    coordinator.looks()
    nobody_has_anything(coordinator)
    assert coordinator.phase is Phase.SETTLING, "once is enough"


def test_a_table_rolled_back_under_an_idle_sink_is_found() -> None:
    coordinator = Coordinator.at(Phase.OPEN, LOOKS)
    idle_until_it_looks(coordinator)
    back = replace(coordinator.table, head=1, lineage=Lineage.ROLLED_BACK)
    coordinator.reads(back)
    coordinator.described()
    nobody_has_anything(coordinator)
    coordinator.refused()
    coordinator.reads()
    coordinator.reads()

    assert isinstance(coordinator.error, TableRolledBack)


def leading(found: TableView, settings: CoordinatorSettings) -> Coordinator:
    coordinator = Coordinator(found, settings)
    coordinator.given(LeadershipGained())
    coordinator.reads()
    return coordinator
