"""A keyed table's index and its set of dead rows are caches: what they know of a head that is gone
changes nothing (KEY-7)."""

from __future__ import annotations

from pathlib import Path

from keyed_world import Event, KeyedWorld, shown
from local_catalog import local_catalog

from headgate.control_protocol.commit_record import KeyCounts


def put(*keys: int) -> list[Event]:
    return [Event((key,), "a") for key in keys]


def test_key_7_rows_that_a_rollback_made_live_again_are_found(tmp_path: Path) -> None:
    """With the fourth commit, a merge has left their keys out of the index, for they are dead."""
    local = local_catalog(tmp_path)
    world = KeyedWorld.made(local.catalog, 3)
    for begin in (0, 9):
        world.commit(put(*range(begin, begin + 9)))
    head, fold = world.loaded().current_snapshot(), dict(world.source.fold)
    assert head is not None
    for _ in range(4):
        world.commit(put(*range(18)))

    world.roll_back(head.snapshot_id)
    world.source.fold = fold

    assert world.commit(put(*range(3))) == KeyCounts(updated=3)
    assert shown(world.loaded().scan().to_arrow()) == world.source.expected()
    local.catalog.close()
