"""Snapshots of a keyed table expire: a Puffin file stays as long as one vector in it is needed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.readers import read_snapshot_with_duckdb
from support.keyed_world import Event, KeyedWorld, rows_of
from support.local_catalog import local_catalog

from headgate.tables.iceberg.maintenance import snapshot_expiry
from headgate.tables.iceberg.manifests_v3 import read_live_entries, read_manifest_list
from headgate.tables.iceberg.upsert.position_deletes import sole_referenced_data_file

pytestmark = pytest.mark.integration

ASKED = {
    "history.expire.max-snapshot-age-ms": "1",
    "history.expire.min-snapshots-to-keep": "2",
    "commit.manifest.min-count-to-merge": "3",
}
KEYS, ROUNDS = 60, 24
Fold = list[tuple[Any, ...]]


@pytest.mark.wide
@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.wide), 3])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_every_kept_snapshot_has_its_delete_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, seed: int
) -> None:
    monkeypatch.setattr(snapshot_expiry, "DUE_MIN", 3)
    chance = random.Random(f"{version} {seed}")
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, version, ("zone",), **ASKED)
    kept: dict[str, Fold] = {}
    partly_live = snapshots = 0
    for number in range(ROUNDS):
        few = chance.sample(range(KEYS), chance.choice((1, 2, 25)))
        world.commit([Event((key,), chance.choice([None, *"abcd"])) for key in few])
        if number % 5 == 1:
            head = world.load().current_snapshot()
            assert head is not None
            world.load().manage_snapshots().create_tag(head.snapshot_id, f"at-{number}").commit()
            kept[f"at-{number}"] = world.source.expected_rows()
        if number % 6 == 5:
            world.restart(f"c{number}")
        table = world.load()
        snapshots += 1
        assert missing(world) == []
        partly_live += version == 3 and any(_in_one_file(world))
        for ref, fold in {**kept, "main": world.source.expected_rows()}.items():
            snapshot_id = table.metadata.refs[ref].snapshot_id
            assert rows_of(table.scan(snapshot_id=snapshot_id).to_arrow()) == fold, ref
            if number % 8 == 7:
                read = read_snapshot_with_duckdb(table.metadata_location, snapshot_id)
                assert rows_of(read) == fold, ref
    assert len(world.load().snapshots()) < snapshots, "something expired"
    assert version == 2 or partly_live, "a Puffin file lost some of its vectors, and stayed"


def missing(world: KeyedWorld) -> list[str]:
    """What snapshots refer to and nobody finds."""
    table = world.load()
    paths: set[str] = set()
    for snapshot in table.snapshots():
        manifests = read_manifest_list(table.io, snapshot.manifest_list)
        paths |= {snapshot.manifest_list, *(each.manifest_path for each in manifests)}
        entries = (entry for each in manifests for entry in read_live_entries(table.io, each))
        paths |= {entry.data_file.file_path for entry in entries}
    return sorted(path for path in paths if not table.io.new_input(path).exists())


def _in_one_file(world: KeyedWorld) -> Iterator[bool]:
    """Of each Puffin file of the head, whether others than its live vectors are in it."""
    live: dict[str, int] = {}
    for files in world.delete_files().values():
        for file in files:
            assert sole_referenced_data_file(file)
            live[file.file_path] = live.get(file.file_path, 0) + 1
    for path, count in live.items():
        octets = Path(path.removeprefix("file://")).read_bytes()
        yield octets.count(b'"deletion-vector-v1"') > count
