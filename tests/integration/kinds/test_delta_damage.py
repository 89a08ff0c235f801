"""Delta tables that somebody has damaged by hand: what each command says, and that nothing of it is
hidden or made worse."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from integration.conftest import Deploy
from integration.kinds.test_delta import delta

from headgate.operations.cli.main import main

pytestmark = [pytest.mark.integration, pytest.mark.wide]

COMMANDS = ("status", "check", "audit")
WELL = (0, 0, 0)
FOUND = (0, 0, 1)
"""Status and check read no files of rows: the audit does."""
STOPPED = (1, 1, 1)
"""And so does ``run``."""


def log(table: Path, pattern: str, place: int = -1) -> Path:
    return sorted((table / "_delta_log").glob(pattern))[place]


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def rows(table: Path) -> Path:
    return next(table.glob("data/**/*.parquet"))


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGE: dict[str, tuple[Callable[[Path], None], tuple[int, int, int], str]] = {
    "a file of rows is gone": (lambda t: rows(t).unlink(), FOUND, "file-missing"),
    "a file of rows is cut off": (lambda t: cut_off(rows(t)), FOUND, "record-lost"),
    "the newest version is gone": (lambda t: log(t, "0*.json").unlink(), WELL, "none lost"),
    "an old version is gone": (
        lambda t: log(t, "0*.json", 2).unlink(),
        WELL,
        "their commits cannot be examined",
    ),
    "the newest version is cut off": (lambda t: cut_off(log(t, "0*.json")), STOPPED, "HG-256"),
    "a version before it is gone": (lambda t: log(t, "0*.json", -2).unlink(), STOPPED, "HG-256"),
    "an old version is cut off": (lambda t: cut_off(log(t, "0*.json", 2)), STOPPED, "HG-256"),
    "the checkpoint is cut off": (lambda t: cut_off(log(t, "*.parquet")), STOPPED, "HG-256"),
    "the checkpoint is zeroed": (lambda t: zeroed(log(t, "*.parquet")), STOPPED, "HG-256"),
    "the log is gone": (lambda t: shutil.rmtree(t / "_delta_log"), STOPPED, "HG-202"),
}


def test_what_is_damaged_is_named_and_stops_the_sink_or_costs_nothing(
    deploy: Deploy, tmp_path: Path
) -> None:
    table, kept = tmp_path / "lake" / "rows", tmp_path / "kept"
    sink = deploy(delta(table))
    sink.rows = lambda: DeltaTable(table).to_pyarrow_table()  # type: ignore[method-assign]
    sink.start()
    for number in range(6):
        sink.produce(100)
        sink.wait_until_lag_zero()
        if number == 3:
            DeltaTable(table).create_checkpoint()
    sink.stop()
    shutil.copytree(table, kept)
    for name, (damage, codes, said) in DAMAGE.items():
        shutil.rmtree(table)
        shutil.copytree(kept, table)
        damage(table)
        done = [CliRunner().invoke(main, [each, str(sink.sink_file)]) for each in COMMANDS]
        told = "".join(each.output for each in done)
        assert tuple(each.exit_code for each in done) == codes, (name, told)
        assert {type(each.exception) for each in done} <= {SystemExit, type(None)}, name
        assert said in told, (name, told)
        if codes == STOPPED:
            sink.start()
            sink.stopped_by_itself(said)
    shutil.rmtree(table)
    shutil.copytree(kept, table)
    log(table, "0*.json").unlink()
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert sink.judge().rows == sink.produced
