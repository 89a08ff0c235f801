"""One table of many does not answer: each command reports it, does the others, and exits with 3."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from many_iceberg_tables import ADDED, ASIDE, KEYED, LEDGER, ManyTables
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from support.local_catalog import LocalCatalog

from headgate.operations.cli.main import main
from headgate.tables.iceberg.catalog import load_catalog

OTHER = "db.frozen"


@dataclass
class Shop:
    """The sink's file, and its catalog."""

    file: Path
    catalog: Catalog


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalCatalog, Path]:
    """What a sink of many tables has filled, and a copy of all its files."""
    home, kept = tmp_path_factory.mktemp("shop"), tmp_path_factory.mktemp("kept")
    made = ManyTables(home, "orders", "returns", "frozen")
    made.sink.begin_life()
    made.commits(2)
    made.close()
    shutil.copytree(home, kept, dirs_exist_ok=True)
    return made.local, kept


@pytest.fixture
def shop(filled: tuple[LocalCatalog, Path]) -> Iterator[Shop]:
    """As the sink left it: each test damages some of its files."""
    local, kept = filled
    home = local.database.parent
    shutil.rmtree(home)
    shutil.copytree(kept, home)
    catalog = load_catalog(local.name, local.properties)
    yield Shop(home / "shop.toml", catalog)
    catalog.close()


def path_of(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def no_metadata(table: Table) -> None:
    path_of(table.metadata_location).unlink()


def damaged_metadata(table: Table) -> None:
    path_of(table.metadata_location).write_text('{"format-version": 2')


def no_manifest_list(table: Table) -> None:
    snapshot = table.current_snapshot()
    assert snapshot
    path_of(snapshot.manifest_list).unlink()


def damaged_manifest_list(table: Table) -> None:
    snapshot = table.current_snapshot()
    assert snapshot
    path_of(snapshot.manifest_list).write_bytes(b"not Avro")


def cut_manifest_list(table: Table) -> None:
    snapshot = table.current_snapshot()
    assert snapshot
    cut(path_of(snapshot.manifest_list))


def cut_manifest(table: Table) -> None:
    snapshot = table.current_snapshot()
    assert snapshot
    cut(path_of(snapshot.manifests(table.io)[0].manifest_path))


def cut(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])


LOST = [
    no_metadata,
    damaged_metadata,
    no_manifest_list,
    damaged_manifest_list,
    cut_manifest_list,
    cut_manifest,
]


def run(shop: Shop | ManyTables, *command: str) -> tuple[int, Any]:
    name, *more = command
    said = CliRunner().invoke(main, [name, str(shop.file), *more])
    assert said.exception is None or isinstance(said.exception, SystemExit), said.exception
    return said.exit_code, said.output


@pytest.mark.parametrize("lost", LOST[:2])
@pytest.mark.parametrize("name", [ADDED, KEYED])
def test_tables_lists_it_as_unreachable_and_all_others(shop: Shop, lost: Any, name: str) -> None:
    lost(shop.catalog.load_table(name))
    code, said = run(shop, "tables", "--json")
    assert code == 3, said
    listed = {each["table"]: each for each in json.loads(said)["tables"]}
    states = {table: each["state"] for table, each in listed.items()}
    assert states == {**dict.fromkeys((ADDED, KEYED, OTHER), "open"), name: "unreachable"}
    assert f"table {name} cannot be read" in listed[name]["reason"]


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("name", [ADDED, KEYED])
def test_audit_examines_all_others_and_says_that_nothing_is_proven_of_it(
    shop: Shop, lost: Any, name: str
) -> None:
    lost(shop.catalog.load_table(name))
    code, said = run(shop, "audit", "--no-source", "--json")
    assert code == 3, said
    report = json.loads(said)
    assert (report["verdict"], report["unread"]) == ("not proven", [name])
    assert any(f"table {name} cannot be read" in text for text in report["unproven"])
    assert "live files of 2 tables: each of the right size" in " ".join(report["proven"])
    assert run(shop, "audit", "--no-source", "--accept-unproven")[0] == 3


@pytest.mark.parametrize("lost", LOST)
def test_maintain_maintains_all_others(shop: Shop, lost: Any) -> None:
    lost(shop.catalog.load_table(ADDED))
    code, said = run(shop, "maintain", "--json")
    assert code == 3, said
    done = {each["table"]: each["failed"] for each in json.loads(said)}
    assert ADDED in done.pop(ADDED)
    assert done == {KEYED: "", ASIDE: ""}


@pytest.mark.parametrize("command", [("status",), ("check",), ("rollback", "1.1", "--dry-run")])
@pytest.mark.parametrize("lost", LOST)
def test_no_command_ends_with_a_traceback(shop: Shop, lost: Any, command: tuple[str, ...]) -> None:
    lost(shop.catalog.load_table(ADDED))
    code, said = run(shop, *command)
    assert code in (0, 1, 2, 3), said


@pytest.mark.parametrize("name", [ASIDE, LEDGER])
@pytest.mark.parametrize("command", [("audit", "--no-source"), ("maintain",)])
def test_without_ledger_or_quarantine_a_command_says_so(
    shop: Shop, name: str, command: tuple[str, ...]
) -> None:
    no_metadata(shop.catalog.load_table(name))
    code, said = run(shop, *command)
    assert code == 3, said
    assert f"table {name} cannot be read" in said


@pytest.mark.parametrize("lost", [damaged_manifest_list, cut_manifest_list])
@pytest.mark.parametrize("name", [ASIDE, LEDGER])
def test_a_damaged_list_of_ledger_or_quarantine_is_named_with_its_table(
    shop: Shop, name: str, lost: Any
) -> None:
    table = shop.catalog.load_table(name)
    lost(table)
    snapshot = table.current_snapshot()
    assert snapshot
    code, said = run(shop, "audit", "--no-source")
    assert code == 1, said
    assert f"HG-256 table {name} cannot be read: {snapshot.manifest_list} is damaged" in said
    for command in (("status",), ("tables",), ("maintain",), ("check",)):
        assert run(shop, *command)[0] in (0, 1, 2, 3)


@pytest.mark.parametrize("lost", LOST)
def test_a_quarantine_that_cannot_be_read_gives_nothing_back_by_name(shop: Shop, lost: Any) -> None:
    lost(shop.catalog.load_table(ASIDE))
    code, said = run(shop, "tables", "resume", "--replay")
    assert code in (1, 3), said
    assert f"table {ASIDE} cannot be read" in said


def test_rows_are_deleted_nowhere_while_one_table_would_keep_them_unsaid(tmp_path: Path) -> None:
    shop = ManyTables(tmp_path, "returns", "frozen")
    shop.sink.begin_life()
    shop.commits(2)
    shop.sink.end_lives()
    no_metadata(shop.catalog.load_table(ADDED))
    try:
        code, said = run(shop, "delete", "--where", "id = 1", "--yes")
        assert code == 3, said
        assert f"table {ADDED} cannot be read" in said
        assert run(shop, "delete", "--where", "id = 1", "--yes", "--table", OTHER)[0] == 0
    finally:
        shop.close()
