"""Whatever foreign acts follow a rollback, no survivor is taken for proof of what it took away.

Each act is one that engines make; then everything expires that no ref needs, and old versions of
the metadata are deleted, as by Spark's ``expire_snapshots`` and ``remove_orphan_files``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contract.iceberg_table_world import ROWS_PER_FILE, IcebergWorld
from pyiceberg.manifest import DataFile

from headgate.control_protocol.ports import Lineage
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.iceberg import expired_lineage

Act = Callable[[IcebergWorld], None]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[IcebergWorld]:
    world = IcebergWorld(tmp_path)
    yield world
    world.close()


def compact(world: IcebergWorld) -> None:
    world.compact()


def append(world: IcebergWorld) -> None:
    world.append_foreign(77)


def overwrite(world: IcebergWorld) -> None:
    """The whole table, by as many rows as the tag knows (``INSERT OVERWRITE``)."""
    rows = [5] * (3 * ROWS_PER_FILE)
    world.table().overwrite(pa.table({"number": rows, "row": rows}))


def delete_an_old_row(world: IcebergWorld) -> None:
    world.table().delete("row == 0 and number == 1")


def append_one_row(world: IcebergWorld) -> None:
    world.table().append(pa.table({"number": [78], "row": [0]}))


def files_of(world: IcebergWorld, snapshot_id: int) -> dict[int, DataFile]:
    """The live data files of a snapshot, by the number that their rows say."""
    table = world.table()
    tasks = table.scan(snapshot_id=snapshot_id).plan_files()
    found = {}
    for task in tasks:
        bound = task.file.lower_bounds[table.schema().find_field("number").field_id]
        found[int.from_bytes(bound, "little")] = task.file
    return found


def add_again(world: IcebergWorld, *files: Any) -> None:
    """As a cherry-pick, or ``add_files``, brings files back that a rollback took away."""
    table = world.table()
    with table.transaction() as change, change.update_snapshot().fast_append() as update:
        for file in files:
            update.append_data_file(file)


def rolled_back(world: IcebergWorld, by: int) -> tuple[int, int]:
    """Three commits of the sink, of which the last ones are taken back: return both heads."""
    table = world.open()
    view, heads = claim_table(table), []
    for number in (1, 2, 3):
        view = require_landed(
            commit(table, view, record(1, number, 3 * number), world.write_file(number))
        )
        assert view.head is not None
        heads.append(view.head)
    world.roll_back(heads[-1 - by])
    return heads[-1 - by], heads[-1]


def forgotten(world: IcebergWorld) -> Lineage:
    world.expire_all()
    world.lose_history()
    return world.open().read().lineage


@pytest.mark.parametrize(
    "acts",
    [
        (append, compact),
        (append, compact, compact),
        (compact, append, compact),
        (append, overwrite),
        (append, overwrite, compact),
        (delete_an_old_row, append, append_one_row, compact),
        (append, append, delete_an_old_row, compact),
        (append, append),
    ],
    ids=lambda acts: "-".join(act.__name__ for act in acts),
)
def test_a_rollback_under_foreign_acts_is_never_taken_for_their_work(
    world: IcebergWorld, acts: tuple[Act, ...]
) -> None:
    rolled_back(world, 1)
    for act in acts:
        act(world)
    assert forgotten(world) is Lineage.UNDECIDABLE
    assert 3 not in world.visible_file_numbers()


def test_a_branch_set_to_a_copy_with_as_many_rows_is_not_the_tags(world: IcebergWorld) -> None:
    before, _ = rolled_back(world, 1)
    world.table().manage_snapshots().create_branch(before, "copy").commit()
    world.append_foreign(77, branch="copy")
    world.append_foreign(78, branch="copy")
    copied = world.table().metadata.refs["copy"].snapshot_id
    world.roll_back(copied)
    world.table().delete("number == 78")
    world.table().manage_snapshots().remove_branch("copy").commit()
    world.compact()
    assert forgotten(world) is Lineage.UNDECIDABLE


def test_the_newest_file_brought_back_alone_is_no_proof_of_those_before(
    world: IcebergWorld,
) -> None:
    """A cherry-pick of the last commit behind a rollback by two: the second commit is lost."""
    _, last = rolled_back(world, 2)
    add_again(world, files_of(world, last)[3])
    world.append_foreign(77)
    assert forgotten(world) is Lineage.UNDECIDABLE
    assert world.visible_file_numbers() == [1, 3, 77]


def all_brought_back(world: IcebergWorld) -> None:
    """Behind a rollback by two, and rewritten: only the rows themselves show it."""
    _, last = rolled_back(world, 2)
    files = files_of(world, last)
    add_again(world, files[2])
    add_again(world, files[3])


def test_all_rows_brought_back_by_hand_are_proof(world: IcebergWorld) -> None:
    """Whoever did it, the rows are exactly those that the sink committed: nothing is lost."""
    all_brought_back(world)
    with world.table().update_schema() as update:
        update.add_column("note", world.table().schema().find_field("row").field_type)
    world.compact()
    assert forgotten(world) is Lineage.CONTAINS_TAG


def test_rows_of_a_large_table_are_not_read(
    world: IcebergWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expired_lineage, "ROWS_MAX", 8)
    all_brought_back(world)
    world.compact()
    assert forgotten(world) is Lineage.UNDECIDABLE


def test_rows_that_were_deleted_before_the_last_commit_are_not_brought_back_unseen(
    world: IcebergWorld,
) -> None:
    """The branch is set to before a deletion, and filled up to as many rows."""
    table = world.open()
    view = require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    before = view.head
    assert before is not None
    world.table().delete("row == 0 and number == 1")
    require_landed(commit(table, table.read(), record(1, 2, 3)))
    world.roll_back(before)
    world.table().delete("row == 1 and number == 1")
    world.compact()
    assert forgotten(world) is Lineage.UNDECIDABLE
