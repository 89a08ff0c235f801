"""Each cell of the page's table of commands by kinds of sinks, as the command line has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from many_iceberg_tables import ADDED, KEYED, ManyTables
from many_tables_of_a_kind import MANY, ONE
from support.local_catalog import local_catalog
from support.maintained import Maintained, text
from unit.runtime.test_sink_with_quarantine_of_another_format import text_of

from headgate.config.load import parse
from headgate.operations.cli.main import main
from headgate.testing.contract.world import sometimes_bad_value as value
from headgate.testing.sink_in_process import SinkInProcess

HUDI_FILE = """
name = "trips"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[table]
type = "hudi"
identifier = "db.trips"
location = "/lake/trips"
[[table.columns]]
name = "id"
type = "long"
[table.properties]
"hoodie.write.lock.provider" = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
"hoodie.write.lock.zookeeper.url" = "zk1"
"hoodie.write.lock.zookeeper.base_path" = "/hudi"
[spark]
writer = "in-process"
"""
ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/table-formats/comparison.md").read_text()
COMMANDS = {
    "audit": ("audit", "--no-source"),
    "tables": ("tables",),
    "maintain": ("maintain", "--dry-run"),
    "delete": ("delete", "--where", "{column} = 1", "--dry-run"),
    "rollback": ("rollback", "1.1", "--dry-run"),
    "tables resume TABLE --replay": ("tables", "resume", "{table}", "--replay"),
    "tables resume TABLE --reread": ("tables", "resume", "{table}", "--reread"),
}
"""Those that need no Kafka, or only at their end; ``SINK`` comes behind the first word."""

NEEDS_BROKER = {"rollback"}

SINKS = (
    "one Iceberg table",
    "many",
    "one with a key among many",
    "Delta",
    "Delta, Iceberg quarantine",
    "many Delta tables",
    "Hudi",
)


def rows_of_page() -> dict[str, list[str]]:
    _, _, behind = PAGE.partition("## What each command does")
    lines = [line for line in behind.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert rows[0][1:-1] == list(SINKS)
    return {row[0].strip("`"): row[1:-1] for row in rows[2:]}


ROWS = rows_of_page()


class World:
    """The file of a sink that has filled something, one of its tables, and a column of that."""

    def __init__(self, file: Path, table: str, column: str, close: Callable[[], Any]) -> None:
        self.file, self.table, self.column, self.close = file, table, column, close


def of_one(home: Path) -> World:
    local = local_catalog(home)
    (home / "sink.toml").write_text(text(home))
    sink = Maintained(local.catalog, parse(text(home)))
    sink.commits(3)
    return World(home / "sink.toml", "db.trips", "day", local.catalog.close)


def of_many(home: Path, table: str = ADDED) -> World:
    names = ("orders", "returns") if table == KEYED else ("returns", "other")
    shop = ManyTables(home, *names)
    shop.sink.begin_life()
    shop.commits(3)
    shop.sink.end_lives()
    return World(shop.file, table, "id", shop.close)


def of_delta(home: Path, tables: str = ONE, *, apart: bool = False) -> World:
    written = text_of(home, tables)
    if not apart:
        written = written.partition('type = "iceberg"\n[quarantine.catalog]')[0]
    (home / "sink.toml").write_text(written)
    sink = SinkInProcess(parse(written), value)
    sink.begin_life()
    sink.produce(10)
    sink.run_until_settled()
    sink.end_lives()
    return World(home / "sink.toml", "db.orders", "id", lambda: None)


def of_hudi(home: Path) -> World:
    (home / "sink.toml").write_text(HUDI_FILE)
    return World(home / "sink.toml", "db.trips", "id", lambda: None)


WORLDS: dict[str, Callable[[Path], World]] = {
    "one Iceberg table": of_one,
    "many": of_many,
    "one with a key among many": lambda home: of_many(home, KEYED),
    "Delta": of_delta,
    "Delta, Iceberg quarantine": lambda home: of_delta(home, apart=True),
    "many Delta tables": lambda home: of_delta(home, MANY),
    "Hudi": of_hudi,
}


@pytest.fixture(params=SINKS)
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, World]]:
    made = WORLDS[request.param](tmp_path)
    yield SINKS.index(request.param), made
    made.close()


def test_each_cell_of_the_page_is_what_the_command_does(sink: tuple[int, World]) -> None:
    column, world = sink
    wrong = []
    for name, (command, *arguments) in COMMANDS.items():
        cell = ROWS[name][column]
        if cell.startswith("tested in"):
            continue
        given = [part.format(table=world.table, column=world.column) for part in arguments]
        said = CliRunner().invoke(main, [command, str(world.file), *given])
        failed = said.exception if not isinstance(said.exception, SystemExit) else None
        code = re.search(r"HG-\d+", cell)
        right = code[0] in said.output if code else said.exit_code in (0, 1)
        if name in NEEDS_BROKER and not code:  # behind everything that would refuse it
            right = said.exit_code == 3 and "HG-401" in said.output
        if failed or not right:
            wrong.append((name, cell, said.exit_code, said.output[-300:], failed))
    assert wrong == []


def test_the_page_names_tests_that_exist() -> None:
    _, _, behind = PAGE.partition("## What each command does")
    named = re.findall(r"`(tests/[\w/.]+)`", behind)
    assert len(named) >= len(ROWS)
    assert [path for path in named if not (ROOT / path).exists()] == []
