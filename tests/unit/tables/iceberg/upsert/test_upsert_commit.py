"""A keyed table's index and its set of dead rows are caches: what they know of a head that is gone
changes nothing (KEY-7). Key files go only with their commit (KEY-2)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from contract.iceberg_table_world import LyingCatalog
from pyiceberg.table import CommitTableResponse
from support.keyed_world import Event, KeyedWorld, keyed_table, rows_of
from support.local_catalog import local_catalog

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.errors import LogUnreadable, TableChanged
from headgate.control_protocol.ports import Unknown


def put(*keys: int) -> list[Event]:
    return [Event((key,), "a") for key in keys]


def test_key_7_rows_that_a_rollback_made_live_again_are_found(tmp_path: Path) -> None:
    """With the fourth commit, a merge has left their keys out of the index, for they are dead."""
    local = local_catalog(tmp_path)
    world = KeyedWorld.create(local.catalog, 3)
    for begin in (0, 9):
        world.commit(put(*range(begin, begin + 9)))
    head, fold = world.load().current_snapshot(), dict(world.source.fold)
    assert head is not None
    for _ in range(4):
        world.commit(put(*range(18)))

    world.roll_back(head.snapshot_id)
    world.source.fold = fold

    assert world.commit(put(*range(3))) == KeyCounts(updated=3)
    assert rows_of(world.load().scan().to_arrow()) == world.source.expected_rows()
    local.catalog.close()


def test_key_2_key_files_outlive_an_answer_that_does_not_show_their_commit(
    tmp_path: Path,
) -> None:
    """A cache before the catalog says that all is well, and shows the table as it was."""
    local = local_catalog(tmp_path)
    world = KeyedWorld.create(local.catalog, 3)
    world.commit(put(1, 2))
    lying = LyingCatalog(local.catalog)
    world.table = keyed_table(lying, ("id",))  # type: ignore[arg-type]
    attempt = world.attempt(world.files([Event((1,))]))
    before = world.load()
    stale = CommitTableResponse(
        metadata=before.metadata, metadata_location=before.metadata_location
    )

    lying.lies.append(lambda _: stale)
    assert isinstance(world.table.commit(attempt), Unknown)

    assert world.land(world.again(attempt)) == KeyCounts(deleted=1)
    assert rows_of(world.load().scan().to_arrow()) == world.source.expected_rows()
    local.catalog.close()


def test_key_7_a_live_file_that_is_damaged_inside_stops_the_sink(tmp_path: Path) -> None:
    """pyarrow raises ``OSError`` for it, as for a store that is to be asked again."""
    local = local_catalog(tmp_path)
    world = KeyedWorld.create(local.catalog, 3)
    world.commit(put(1, 2))
    (task,) = world.load().scan().plan_files()
    path = Path(task.file.file_path.removeprefix("file://"))
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(60) + content[64:])
    world.restart("two")
    with pytest.raises(LogUnreadable, match=path.name):
        world.commit(put(1))
    local.catalog.close()


@pytest.mark.parametrize("version", [2, 3])
def test_key_6_rows_die_in_files_of_a_partition_spec_whose_column_is_gone(
    tmp_path: Path, version: int
) -> None:
    """The column's type is in an older schema; once an engine has removed that, nowhere."""
    local = local_catalog(tmp_path)
    world = KeyedWorld.create(local.catalog, version, ["zone"])
    world.commit(put(1, 2, 3))
    with world.load().update_spec() as spec:
        spec.remove_field("zone")
    with world.load().update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("zone")

    assert world.commit(put(1)) == KeyCounts(updated=1)
    world.restart("two")
    assert world.commit([Event((2,))]) == KeyCounts(deleted=1)
    assert sorted(world.load().scan().to_arrow()["id"].to_pylist()) == [1, 3]

    file = Path(world.load().metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text())
    now = [
        each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"]
    ]
    file.write_text(json.dumps(metadata | {"schemas": now}))
    with pytest.raises(TableChanged, match="partition spec 0"):
        world.table.commit(world.attempt(world.files(put(3))))
    local.catalog.close()
