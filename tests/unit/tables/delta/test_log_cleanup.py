"""A sink's commits keep the log short: they write checkpoints, and remove what is too old."""

from __future__ import annotations

import os
import time
from pathlib import Path

from contract.delta_table_world import DeltaWorld

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.delta.reader import DeltaReader

_DAY_S = 24 * 3600


def log_of(world: DeltaWorld) -> Path:
    return Path(world.uri) / "_delta_log"


def versions(world: DeltaWorld) -> list[int]:
    return sorted(int(path.stem) for path in log_of(world).glob("0*.json"))


def checkpoints(world: DeltaWorld) -> list[int]:
    return sorted(int(path.name.partition(".")[0]) for path in log_of(world).glob("*.parquet"))


def age(world: DeltaWorld, days: int) -> None:
    for path in log_of(world).iterdir():
        at_s = time.time() - days * _DAY_S
        os.utime(path, (at_s, at_s))


def committed(world: DeltaWorld, view: TableView, *numbers: int) -> TableView:
    table = world.open()
    for number in numbers:
        view = require_landed(
            commit(table, view, record(1, number, number), world.write_file(number))
        )
    return view


def test_the_sink_s_commits_clean_up_the_log(tmp_path: Path) -> None:
    """Nobody else writes here, or calls for it."""
    world = DeltaWorld(tmp_path, properties={"delta.checkpointInterval": "5"})
    view = committed(world, claim_table(world.open()), *range(1, 11))
    assert checkpoints(world) == [4, 9]
    assert versions(world) == list(range(12))
    age(world, 31)
    view = committed(world, view, *range(11, 16))
    assert versions(world)[0] >= 9
    assert world.open().read() == view
    committed(world, view, 16)
    assert world.visible_file_numbers() == list(range(1, 17))
    assert not DeltaReader(world.place, SinkName("sink")).history().complete


def test_the_table_says_how_long_its_log_is_kept(tmp_path: Path) -> None:
    kept = {"delta.logRetentionDuration": "interval 40 days"}
    world = DeltaWorld(tmp_path, properties={"delta.checkpointInterval": "5", **kept})
    view = committed(world, claim_table(world.open()), *range(1, 6))
    age(world, 31)
    committed(world, view, *range(6, 16))
    assert versions(world)[0] == 0
    age(world, 41)
    committed(world, world.open().read(), *range(16, 21))
    assert versions(world)[0] > 0


def test_every_hundredth_version_has_a_checkpoint_unless_the_table_says_otherwise(
    tmp_path: Path,
) -> None:
    world = DeltaWorld(tmp_path)
    table = world.open()
    view = claim_table(table)
    for number in range(1, 100):
        view = require_landed(commit(table, view, record(1, number)))
    assert view.head == 100
    assert checkpoints(world) == [99]
