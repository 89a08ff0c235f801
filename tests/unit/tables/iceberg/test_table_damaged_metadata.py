"""A commit onto damaged metadata is refused by name; it loses nothing and ends no process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from contract.iceberg_table_world import IcebergWorld

from headgate.control_protocol.errors import LogUnreadable
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.storage.avro_integrity import describe_avro_damage


@pytest.fixture
def world(tmp_path: Path) -> Iterator[IcebergWorld]:
    world = IcebergWorld(tmp_path)
    yield world
    world.close()


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def nothing(_: bytes) -> bytes:
    return b""


def header_alone(data: bytes) -> bytes:
    """Cut off before the first block: by itself, it is a list of nothing."""
    return next(data[:n] for n in range(1, len(data)) if not describe_avro_damage(data[:n]))


@pytest.mark.parametrize("damage", [half, nothing, header_alone])
def test_a_commit_onto_a_damaged_manifest_list_is_refused_by_name(
    world: IcebergWorld, damage: Callable[[bytes], bytes]
) -> None:
    """Read as empty, it would take all rows before this commit out of the table."""
    table = world.open()
    view = require_landed(commit(table, claim_table(table), record(1, 1), world.write_file(1)))
    snapshot = world.table().current_snapshot()
    assert snapshot
    path = Path(snapshot.manifest_list.removeprefix("file://"))
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.raises(LogUnreadable, match=f"cannot be read: .*{path.name} is damaged"):
        commit(table, view, record(1, 2), world.write_file(2))
    path.write_bytes(whole)
    require_landed(commit(table, view, record(1, 2), world.write_file(2)))
    assert world.visible_file_numbers() == [1, 2]


def test_a_manifest_that_was_cut_off_between_two_files_is_not_rewritten(
    world: IcebergWorld,
) -> None:
    """It seems whole: what is merged into another manifest would lack the files behind the cut."""
    with world.table().transaction() as change:
        change.set_properties({"commit.manifest.min-count-to-merge": "2"})
    table = world.open()
    view = require_landed(
        commit(table, claim_table(table), record(1, 1), world.write_file(1), world.write_file(2))
    )
    snapshot = world.table().current_snapshot()
    assert snapshot
    (manifest,) = snapshot.manifests(world.table().io)
    path = Path(manifest.manifest_path.removeprefix("file://"))
    whole = path.read_bytes()
    first = [n for n in range(1, len(whole)) if not describe_avro_damage(whole[:n])][1]
    path.write_bytes(whole[:first])
    with pytest.raises(LogUnreadable, match="it lists 1 of 2 files"):
        commit(table, view, record(1, 2), world.write_file(3))
    path.write_bytes(whole)
    require_landed(commit(table, view, record(1, 2), world.write_file(3)))
    assert world.visible_file_numbers() == [1, 2, 3]
