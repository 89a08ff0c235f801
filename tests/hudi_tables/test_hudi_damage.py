"""Hudi tables that somebody has damaged by hand: what each command says, and that nothing of it is
hidden or made worse."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hudi_tables.test_hudi_sink import started
from hudi_tables.zookeeper import zookeeper

from headgate.operations.cli.main import main
from headgate.tables.hudi.table_properties import AUX

pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

UNREACHED = "no ZooKeeper can be reached"
COMMANDS = ("status", "check", "audit")
WELL = (0, 0, 0)
FOUND = (0, 0, 1)
"""Status and check read no files of rows: the audit does."""
STOPPED = (1, 1, 1)
"""And so does ``run``."""
LATER = (3, 3, 3)
"""It may be whole in a moment: a sink tries again."""


def newest(table: Path) -> Path:
    return max((table / ".hoodie" / "timeline").glob("*_*.commit"))


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def spread(table: Path) -> None:
    path = table / ".hoodie" / "hoodie.properties"
    path.write_text(re.sub(r"^([^#=\n]+)=", r"\1 = ", path.read_text(), flags=re.MULTILINE))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def base_file(table: Path) -> Path:
    return next(table.glob("zone=a/*.parquet"))


def record(table: Path) -> Path:
    (path,) = (table / AUX / "sink" / "landed").iterdir()
    return path


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGE: dict[str, tuple[Callable[[Path], Any], tuple[int, int, int], str]] = {
    "a base file is gone": (lambda t: base_file(t).unlink(), FOUND, "file-missing"),
    "a base file is cut off": (lambda t: cut_off(base_file(t)), FOUND, "file-size"),
    "a base file is zeroed": (lambda t: zeroed(base_file(t)), FOUND, "file-unreadable"),
    "the metadata table is gone": (
        lambda t: shutil.rmtree(t / HOODIE / "metadata"),
        WELL,
        "none lost",
    ),
    "the sink's own files are gone": (
        lambda t: shutil.rmtree(t / HOODIE / ".aux"),
        WELL,
        "none lost",
    ),
    "properties are edited": (spread, WELL, "none lost"),
    "properties are cut off": (
        lambda t: cut_off(t / HOODIE / "hoodie.properties"),
        LATER,
        "restore the file",
    ),
    "the newest commit is cut off": (lambda t: cut_off(newest(t)), STOPPED, "HG-256"),
    "the newest commit is empty": (lambda t: newest(t).write_bytes(b""), STOPPED, "HG-256"),
    "the timeline is gone": (lambda t: shutil.rmtree(t / HOODIE / "timeline"), STOPPED, "HG-256"),
    "the copy of the record is cut off": (lambda t: cut_off(record(t)), STOPPED, "HG-256"),
    "the newest commit is gone": (lambda t: newest(t).unlink(), STOPPED, "HG-201"),
    "properties are gone": (
        lambda t: (t / HOODIE / "hoodie.properties").unlink(),
        STOPPED,
        "HG-202",
    ),
}
HOODIE = ".hoodie"


@pytest.mark.timeout(1_800)
def test_without_its_lock_a_sink_waits_and_says_so_and_without_its_own_files_it_stops(
    tmp_path: Path, bundle: Path
) -> None:
    (tmp_path / "zookeeper").mkdir()
    with zookeeper(tmp_path / "zookeeper") as server:
        settings = server.lock(session_ms=6_000)
        server.kill()
        with started(tmp_path, bundle, settings) as sink:
            sink.produce(100)
            process = sink.start()
            sink.wait(lambda: UNREACHED in sink.said(), "what it waits for at the start")
            told = CliRunner().invoke(main, ["check", str(sink.file)])
            assert (told.exit_code, UNREACHED in told.output) == (3, True), told.output
            assert not sink.ids()
            server.start()
            sink.waits_for(100)
            server.kill()
            before = len(sink.said())
            sink.produce(100)
            sink.wait(lambda: UNREACHED in sink.said()[before:], "what it waits for in mid-run")
            assert sink.ids() == Counter(range(100))
            assert process.poll() is None
            server.start()
            sink.waits_for(200)
            shutil.rmtree(sink.location / ".hoodie" / ".aux" / "headgate")
            sink.produce(100)
            assert process.wait(300) == 1
            assert "headgate: HG-215" in sink.said()
            assert sink.ids() == Counter(range(200))
            resume = ["resume", str(sink.file), "--accept", "HG-215=restart"]
            told = CliRunner().invoke(main, resume)
            assert told.exit_code == 0, told.output
            process = sink.start()
            sink.waits_for(300)
            process.terminate()
            assert process.wait(120) == 0, sink.said()[-4000:]
            assert sink.ids() == Counter(range(300))
            told = CliRunner().invoke(main, ["audit", str(sink.file)])
            assert "none lost" in told.output, told.output


@pytest.mark.timeout(3_000)
def test_what_is_damaged_is_named_and_stops_the_sink_or_costs_nothing(
    tmp_path: Path, bundle: Path, lock: dict[str, str]
) -> None:
    kept = tmp_path / "kept"
    with started(tmp_path, bundle, lock) as sink:
        for number in (1, 2):
            sink.produce(100)
            if number == 1:
                process = sink.start()
            sink.waits_for(100 * number)
        process.terminate()
        assert process.wait(120) == 0, sink.said()[-4000:]
        shutil.copytree(sink.location, kept)
        for name, (damage, codes, said) in DAMAGE.items():
            shutil.rmtree(sink.location)
            shutil.copytree(kept, sink.location)
            damage(sink.location)
            done = [CliRunner().invoke(main, [each, str(sink.file)]) for each in COMMANDS]
            told = "".join(each.output for each in done)
            assert tuple(each.exit_code for each in done) == codes, (name, told)
            assert {type(each.exception) for each in done} <= {SystemExit, type(None)}, name
            assert said in told, (name, told)
        process = sink.start()  # of the last one; the others stop in the same way
        assert process.wait(120) == 1
        assert "headgate: HG-202" in sink.said()
