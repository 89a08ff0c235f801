"""A secondary table of a kind with drafts of ours: it serves one thread at a time, though several
call it, and takes transactions in their order (KEY-3, PENDING-5, PENDING-7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from contract.delta_table_world import DeltaWorld
from contract.small_target import SmallKeyedWorld
from deltalake import DeltaTable

from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.ports import CommitAttempt, Refused, Staging
from headgate.control_protocol.testing.contract.secondaries import delivery_record
from headgate.control_protocol.testing.contract.world import KeyChange, require_landed
from headgate.tables.delta.table import DeltaSinkTable
from headgate.tables.staged_file_lists import StagedFileLists
from headgate.tables.unstaged_secondary_table import FileListSecondaryTable, FixedColumns

_MOMENT_S = 0.2
"""So long the other thread has to meet the delivery, which ends whether it did or not."""


def _tidies(secondary: FileListSecondaryTable, _: DeltaWorld) -> None:
    secondary.delete_undecided_manifests(Epoch(2), frozenset())


def _drafts(secondary: FileListSecondaryTable, world: DeltaWorld) -> None:
    transaction = TransactionId(Epoch(1), TransactionNumber(2))
    file = world.write_file(2)
    secondary.stage(Staging(secondary.read(), transaction, Sender("member", "1"), (file,)))


@pytest.mark.parametrize("beside", [_tidies, _drafts])
def test_pending_5_who_looks_at_a_table_beside_its_delivery_does_not_move_what_that_was_made_for(
    tmp_path: Path, beside: Callable[[FileListSecondaryTable, DeltaWorld], None]
) -> None:
    """The delivery landed behind a rival's, of which it knew nothing: both were told so."""
    world = DeltaWorld(tmp_path)
    rival, file = world.open(), world.write_file(1)
    others: list[Thread] = []

    def write(table: DeltaTable, *arguments: Any, **named: Any) -> None:
        require_landed(rival.commit(CommitAttempt(rival.read(), delivery_record(1, 1))))
        others.append(Thread(target=beside, args=(secondary, world)))
        others[0].start()
        others[0].join(_MOMENT_S)
        table.create_write_transaction(*arguments, **named)

    table = DeltaSinkTable(world.place, SinkName("sink"), write)
    drafts = StagedFileLists({}, world.place.location, SinkName("sink"), kept_ms=0)
    secondary = FileListSecondaryTable(table, FixedColumns(table), drafts)
    outcome = secondary.commit(
        CommitAttempt(secondary.read(), delivery_record(1, 1), files=(file,))
    )
    others[0].join()
    assert isinstance(outcome, Refused)
    assert world.visible_file_numbers() == []


def test_pending_7_what_the_newest_delivery_was_made_of_outlives_new_epochs(tmp_path: Path) -> None:
    """A replica that is promoted without it is delivered to again, from its draft: a new epoch that
    had seen it delivered had cleared that away."""
    world = DeltaWorld(tmp_path)
    first = opened(world)
    transaction = TransactionId(Epoch(1), TransactionNumber(1))
    drafted = Staging(first.read(), transaction, Sender("member", "1"), (world.write_file(1),))
    pending_commits = first.stage(drafted)
    require_landed(
        first.commit(
            CommitAttempt(first.read(), delivery_record(1, 1), pending_commits=pending_commits)
        )
    )
    opened(world).delete_undecided_manifests(Epoch(2), frozenset())
    _lose_newest_version(tmp_path)
    again = opened(world)
    require_landed(
        again.commit(
            CommitAttempt(again.read(), delivery_record(1, 1), pending_commits=pending_commits)
        )
    )
    assert world.visible_file_numbers() == [1]
    later = opened(world)
    require_landed(later.commit(CommitAttempt(later.read(), delivery_record(2, 1))))
    later.delete_undecided_manifests(Epoch(3), frozenset())
    assert not list(tmp_path.rglob("1-*.json"))


def test_key_3_of_the_transactions_of_one_delivery_the_later_one_is_newer(tmp_path: Path) -> None:
    """Whatever their offsets, for a topic may have been re-created between them."""
    world = SmallKeyedWorld()
    table = world.open()
    drafts = StagedFileLists({}, tmp_path.as_uri(), SinkName("sink"), kept_ms=0)
    secondary = FileListSecondaryTable(table, FixedColumns(table), drafts)

    def staged(number: int, *changes: KeyChange) -> tuple[PendingCommit, ...]:
        transaction = TransactionId(Epoch(1), TransactionNumber(number))
        files = world.write_changes(*changes)
        here = replace(secondary.read(), location=tmp_path.as_uri())
        return secondary.stage(Staging(here, transaction, Sender("member", "1"), files))

    before = staged(1, KeyChange(1, "old", 90), KeyChange(2, "old", 91), KeyChange(3, None, 92))
    anew = staged(2, KeyChange(1, "new", 0), KeyChange(2, None, 1), KeyChange(3, "new", 2))
    attempt = CommitAttempt(
        secondary.read(), delivery_record(1, 2), pending_commits=(*anew, *before)
    )
    require_landed(secondary.commit(attempt))
    assert world.read_rows() == {1: "new", 3: "new"}


def opened(world: DeltaWorld) -> FileListSecondaryTable:
    table = world.open()
    return FileListSecondaryTable(
        table,
        FixedColumns(table),
        StagedFileLists({}, world.place.location, SinkName("sink"), kept_ms=0),
    )


def _lose_newest_version(folder: Path) -> None:
    *_, newest = sorted(folder.rglob("_delta_log/*.json"))
    newest.unlink()
