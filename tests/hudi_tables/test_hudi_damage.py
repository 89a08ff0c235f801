"""Hudi tables that somebody has damaged by hand: what each command says, and that nothing of it is
hidden or made worse."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hudi_tables.sinks import HudiSink
from hudi_tables.world import QUICK
from hudi_tables.zookeeper import zookeeper

from headgate.operations.cli import main
from headgate.operations.demo.broker import EmbeddedKafka, fetch_broker_jars

pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

COMMANDS = ("status", "check", "audit")


def newest(table: Path) -> Path:
    return max((table / ".hoodie" / "timeline").glob("*_*.commit"))


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def spread(table: Path) -> None:
    path = table / ".hoodie" / "hoodie.properties"
    path.write_text(re.sub(r"^([^#=]+)=", r"\1 = ", path.read_text(), flags=re.MULTILINE))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a base file is gone": lambda t: next(t.glob("zone=a/*.parquet")).unlink(),
    "a base file is cut off": lambda t: cut_off(next(t.glob("zone=a/*.parquet"))),
    "the newest commit is cut off": lambda t: cut_off(newest(t)),
    "the newest commit is empty": lambda t: newest(t).write_bytes(b""),
    "the newest commit is gone": lambda t: newest(t).unlink(),
    "the timeline is gone": lambda t: shutil.rmtree(t / ".hoodie" / "timeline"),
    "the sink's own files are gone": lambda t: shutil.rmtree(t / ".hoodie" / ".aux"),
    "newest.json is cut off": lambda t: cut_off(t / ".hoodie/.aux/headgate/sink/newest.json"),
    "properties are edited": spread,
    "properties are cut off": lambda t: cut_off(t / ".hoodie" / "hoodie.properties"),
    "properties are gone": lambda t: (t / ".hoodie" / "hoodie.properties").unlink(),
    "the metadata table is gone": lambda t: shutil.rmtree(t / ".hoodie" / "metadata"),
}


@pytest.mark.timeout(3000)
def test_explore(tmp_path: Path, bundle: Path, tmp_path_factory: Any) -> None:
    with (
        zookeeper(tmp_path_factory.mktemp("zookeeper")) as server,
        EmbeddedKafka(tmp_path / "kafka", fetch_broker_jars(), heap="256m") as broker,
    ):
        settings = {**server.lock(), **QUICK}
        sink = HudiSink(tmp_path, broker.bootstrap, settings, bundle)
        try:
            sink.produce(100)
            process = sink.start()
            sink.waits_for(100)
            sink.produce(100)
            sink.waits_for(200)
            process.terminate()
            assert process.wait(120) == 0
            shutil.copytree(sink.location, tmp_path / "kept")
            for name, damage in DAMAGE.items():
                shutil.rmtree(sink.location)
                shutil.copytree(tmp_path / "kept", sink.location)
                damage(sink.location)
                look(name, sink)
            shutil.rmtree(sink.location)
            shutil.copytree(tmp_path / "kept", sink.location)
            server.kill()
            look("lock gone", sink)
        finally:
            sink.close()


def look(name: str, sink: HudiSink) -> None:
    print("=====", name, flush=True)
    for command in COMMANDS:
        done = CliRunner().invoke(main, [command, str(sink.file)])
        print("--", command, done.exit_code, repr(done.exception)[:300], flush=True)
        print(done.output[-900:], flush=True)
