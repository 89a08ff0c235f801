"""The worlds of the sink contract: Iceberg on SQLite, Delta, Delta beside Iceberg, a folder."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog

from headgate.control_protocol.identifiers import SinkName, tag_name
from headgate.tables.delta import open_table


class FolderSinkWorld:
    """The format of docs/table-formats/writing-a-table-format.md, installed as its package is."""

    table_lines = 'type = "folder"'
    further_sections = ""

    def __init__(self, home: Path) -> None:
        self.lake = home / "lake"

    def location_lines(self, name: str) -> str:
        return f'location = "{self.lake}/{name}"'

    def rows(self, name: str) -> list[dict[str, Any]]:
        versions = (json.loads(each.read_text()) for each in (self.lake / name / "log").iterdir())
        paths = [path for version in versions for path, *_ in version["files"]]
        found = [pq.read_table(path.removeprefix("file://")).to_pylist() for path in paths]
        return [{"tip": None, **row} for rows in found for row in rows]


class DeltaSinkWorld:
    table_lines = 'type = "delta"'
    further_sections = quarantine_lines = ""

    def __init__(self, home: Path) -> None:
        self.lake = home / "lake"
        self.lake.mkdir()
        (self.lake / "no_table").mkdir()

    def location_lines(self, name: str) -> str:
        return f'location = "{self.lake}/{name}"'

    def rows(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(self.lake / name).to_pyarrow_table().to_pylist()
        return rows

    @contextmanager
    def lock_table(self, name: str) -> Iterator[None]:
        """Something stands where the table's next version would be put."""
        version = DeltaTable(self.lake / name).version() + 1
        place = self.lake / name / "_delta_log" / f"{version:020}.json"
        place.mkdir()
        yield
        place.rmdir()

    def take_table_away(self, name: str) -> None:
        (self.lake / name).rename(self.lake.with_name("away"))

    def bring_table_back(self, name: str) -> None:
        shutil.rmtree(self.lake / name, ignore_errors=True)
        self.lake.with_name("away").rename(self.lake / name)

    @contextmanager
    def damage_table(self, name: str) -> Iterator[None]:
        newest = max((self.lake / name / "_delta_log").glob("*.json"))
        sound = newest.read_bytes()
        newest.write_bytes(sound[: len(sound) // 2])
        with patch.object(open_table, "_PAUSE_S", 0.0):
            yield
        newest.write_bytes(sound)

    def version(self, name: str) -> int:
        return DeltaTable(self.lake / name).version()

    def restore(self, name: str, version: int) -> None:
        DeltaTable(self.lake / name).restore(version)


class IcebergSinkWorld:
    """A catalog in a SQLite file."""

    table_lines = ""
    quarantine_lines = ""

    def __init__(self, home: Path) -> None:
        self.database, self.warehouse = home / "catalog.sqlite", home / "warehouse"
        self.warehouse.mkdir()
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{self.database}",
            "warehouse": f"file://{self.warehouse}",
        }
        with self.catalog() as catalog:  # a catalog that is not there yet may have been lost
            catalog.create_namespace("db")

    @property
    def further_sections(self) -> str:
        lines = "".join(f'{name} = "{value}"\n' for name, value in self.properties.items())
        return f'[catalog]\nname = "local"\n[catalog.properties]\n{lines}'

    def location_lines(self, name: str) -> str:
        return ""

    def catalog(self) -> closing[Catalog]:
        return closing(load_catalog("local", **self.properties))

    def rows(self, name: str) -> list[dict[str, Any]]:
        with self.catalog() as catalog:
            rows: list[dict[str, Any]] = (
                catalog.load_table(f"db.{name}").scan().to_arrow().to_pylist()
            )
        return rows

    @contextmanager
    def lock_table(self, name: str) -> Iterator[None]:
        """The database refuses to move the table's pointer."""
        self._run(
            "CREATE TRIGGER locked BEFORE UPDATE ON iceberg_tables "
            f"WHEN NEW.table_name = '{name}' BEGIN SELECT RAISE(ABORT, 'locked'); END"
        )
        yield
        self._run("DROP TRIGGER locked")

    def _run(self, statement: str) -> None:
        with closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute(statement)

    def take_table_away(self, name: str) -> None:
        self._rename(name, "away")

    def bring_table_back(self, name: str) -> None:
        self._rename("away", name)

    def _rename(self, name: str, other: str) -> None:
        with self.catalog() as catalog:
            catalog.rename_table(f"db.{name}", f"db.{other}")

    def version(self, name: str) -> int:
        with self.catalog() as catalog:
            head = catalog.load_table(f"db.{name}").current_snapshot()
        assert head is not None
        return head.snapshot_id

    def restore(self, name: str, version: int) -> None:
        with self.catalog() as catalog:
            catalog.load_table(f"db.{name}").manage_snapshots().rollback_to_snapshot(
                version
            ).commit()

    def delete_tag(self, name: str) -> None:
        with self.catalog() as catalog:
            tag = tag_name(SinkName("shop"))
            catalog.load_table(f"db.{name}").manage_snapshots().remove_tag(tag).commit()


ASIDE = ("orders_quarantine", "rejected")


class DeltaBesideIcebergWorld(DeltaSinkWorld):
    """Its quarantine is an Iceberg table."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.aside = IcebergSinkWorld(home)

    @property
    def quarantine_lines(self) -> str:
        own = self.aside.further_sections.replace("[catalog", "[quarantine.catalog")
        return f'type = "iceberg"\n{own}'

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self.aside.rows(name) if name in ASIDE else super().rows(name)

    def lock_table(self, name: str) -> Any:
        return self.aside.lock_table(name) if name in ASIDE else super().lock_table(name)
