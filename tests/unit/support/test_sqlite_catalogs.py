"""Catalogs whose statements are sent as text say and leave what pyiceberg's own methods do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy.exc import OperationalError
from support.sqlite_catalogs import REPLACED

SCHEMA = Schema(NestedField(1, "n", LongType(), required=False))


@pytest.fixture(params=["theirs", "ours"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "theirs":
        with_theirs(monkeypatch)
    return tmp_path


def with_theirs(patch: pytest.MonkeyPatch) -> None:
    for method in REPLACED:
        name = method.__name__
        patch.setattr(SqlCatalog, name, getattr(SqlCatalog, name).__wrapped__)


def opened(folder: Path) -> SqlCatalog:
    uri = f"sqlite:///{folder}/catalog.sqlite?timeout=0.1"
    return SqlCatalog("lake", uri=uri, warehouse=folder.as_uri())


def database(folder: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(folder / "catalog.sqlite"))


def set_property(table: Any, value: str) -> None:
    with table.transaction() as transaction:
        transaction.set_properties(told=value)


def said(folder: Path, ask: Any, *arguments: Any) -> Any:
    try:
        found = ask(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, both say it
        return type(error), str(error).replace(str(folder), "")
    return found if isinstance(found, bool) else type(found)


def life(folder: Path) -> Iterator[Any]:
    """What namespaces and tables are answered with, refusals included."""
    catalog = opened(folder)
    yield said(folder, catalog.create_table, "db.t", SCHEMA)
    yield said(folder, catalog.create_namespace, "db.inner")
    for name in ("db", "db.inner", "d_", "d_.inner", " db", "", ("db", "inner"), "other"):
        yield name, said(folder, catalog.namespace_exists, name)
    yield said(folder, catalog.create_table, "db.inner.t", SCHEMA)
    yield said(folder, catalog.create_table, "db.inner.t", SCHEMA)
    for name in ("db.inner.t", ("db", "inner", "t"), "db.t", "db. inner.t", "t", "lake.db.inner.t"):
        yield name, said(folder, catalog.load_table, name)
    table, late = (catalog.load_table("db.inner.t") for _ in range(2))
    yield said(folder, set_property, table, "1")
    yield catalog.load_table("db.inner.t").properties
    yield said(folder, set_property, late, "1")
    yield said(folder, catalog.drop_table, "db.inner.t")
    yield said(folder, set_property, table, "2")
    yield said(folder, catalog.load_table, "db.inner.t")


def test_both_answer_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    answers = list(life(ours))
    with_theirs(monkeypatch)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    assert answers == list(life(theirs))
    assert (NoSuchTableError, "Table does not exist: db.inner.t") in answers


def test_whoever_comes_second_fails_and_changes_nothing(folder: Path) -> None:
    catalog = opened(folder)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", SCHEMA)
    write = catalog._write_metadata

    def another_first(*arguments: Any, **named: Any) -> None:
        write(*arguments, **named)
        set_property(opened(folder).load_table("db.t"), "theirs")

    catalog._write_metadata = another_first  # type: ignore[method-assign]
    with pytest.raises(CommitFailedException, match=r"updated by another process: db\.t"):
        set_property(table, "ours")
    assert catalog.load_table("db.t").properties == {"told": "theirs"}


def test_the_former_place_is_kept(folder: Path) -> None:
    catalog = opened(folder)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", SCHEMA)
    before = table.metadata_location
    set_property(table, "1")
    with database(folder) as connection:
        rows = connection.execute("SELECT * FROM iceberg_tables").fetchall()
    assert rows == [("lake", "db", "t", table.metadata_location, before, "TABLE")]
    assert table.metadata_location != before


def test_a_locked_database_is_told_by_sqlalchemy(folder: Path) -> None:
    catalog = opened(folder)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", SCHEMA)
    with database(folder) as other:
        other.execute("BEGIN EXCLUSIVE")
        for ask in (lambda: catalog.load_table("db.t"), lambda: set_property(table, "1")):
            with pytest.raises(OperationalError, match="database is locked"):
                ask()
    set_property(table, "2")
    assert catalog.load_table("db.t").properties == {"told": "2"}


def test_a_view_is_no_table(folder: Path) -> None:
    catalog = opened(folder)
    catalog.create_namespace("db")
    catalog.create_table("db.t", SCHEMA)
    with database(folder) as connection, connection:
        connection.execute("UPDATE iceberg_tables SET iceberg_type = 'VIEW'")
    with pytest.raises(NoSuchTableError):
        catalog.load_table("db.t")


def test_a_catalog_of_former_days_is_read(folder: Path) -> None:
    catalog = opened(folder)
    catalog.create_namespace("db")
    catalog.create_table("db.t", SCHEMA)
    with database(folder) as connection, connection:
        connection.execute("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type")
    again = opened(folder)
    table = again.load_table("db.t")
    set_property(table, "1")
    assert again.load_table("db.t").properties == {"told": "1"}
