"""The audit of a keyed table says what is wrong, and what it did not compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from support.keyed_world import COLUMNS, NAME, SINK, Event, KeyedWorld
from support.local_catalog import LocalCatalog

from headgate.config.load import parse
from headgate.config.maintenance_settings import MaintenanceSettings
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.table_history import FileRows, TableReader
from headgate.operations.audit.audit import audit
from headgate.operations.audit.keyed_tables import NOT_COMPARED
from headgate.operations.audit.report import AuditReport, Verdict
from headgate.operations.audit.table_records import (
    TableRecords,
    count_rows_and_distinct_keys,
    scan_staged_files,
)
from headgate.runtime.maintenance.table_maintenance import Round
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.upsert.delete_manifests import Deletions
from headgate.tables.iceberg.upsert.upsert_commit import KeyedBy, KeyedRows

SINK_FILE = """
name = "{sink}"
[source]
topics = ["topic"]
group_id = "group"
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[catalog]
name = "{catalog}"
[catalog.properties]
{properties}
[table]
identifier = "{table}"
key = ["id"]
[table.record_columns]
partition = "from_partition"
offset = "from_offset"
"""


@pytest.fixture
def world(sqlite_catalog: LocalCatalog) -> KeyedWorld:
    made = KeyedWorld.create(sqlite_catalog.catalog, 2)
    made.commit([put(n) for n in range(9)])
    made.commit([put(n) for n in range(3)], [Event((8,))])
    return made


def put(key: int) -> Event:
    return Event((key,), "a")


def settings(sqlite_catalog: LocalCatalog) -> SinkSettings:
    properties = "\n".join(
        f'{name} = "{value}"' for name, value in sqlite_catalog.properties.items()
    )
    return parse(
        SINK_FILE.format(sink=SINK, catalog=sqlite_catalog.name, properties=properties, table=NAME)
    )


def judged(sqlite_catalog: LocalCatalog) -> AuditReport:
    return audit(settings(sqlite_catalog), with_source=False)


def test_what_was_not_compared_is_unproven(sqlite_catalog: LocalCatalog, world: KeyedWorld) -> None:
    assert world.load()
    report = judged(sqlite_catalog)
    assert report.findings == ()
    assert report.verdict is Verdict.NOT_PROVEN
    assert report.live_rows == 8
    assert "each of 8 live rows has a key of its own" in report.proven
    assert "8 rows are live: as many as the commits inserted and did not delete" in report.proven
    assert (
        "2 commits made as many rows die as they updated, deleted and superseded" in report.proven
    )
    assert NOT_COMPARED in report.unproven


def test_after_a_compaction_of_the_sinks_own_the_same_is_proven(
    sqlite_catalog: LocalCatalog, world: KeyedWorld
) -> None:
    meanwhile = [[put(3), put(30), Event((4,))]]

    def commit_once() -> None:
        if meanwhile:
            world.commit(meanwhile.pop())

    one = Round(
        replace(
            settings(sqlite_catalog),
            maintenance=MaintenanceSettings(files_min=2, dead_per_thousand=1),
        ),
        sqlite_catalog.catalog,
        NAME,
        quiet=commit_once,
    )

    one.compact()

    assert one.done.compacted_files > 0
    report = judged(sqlite_catalog)
    assert report.findings == ()
    rows = len(world.source.fold)
    assert report.live_rows == rows
    assert (
        f"{rows} rows are live: as many as the commits inserted and did not delete" in report.proven
    )
    assert (
        "3 commits made as many rows die as they updated, deleted and superseded" in report.proven
    )


def test_a_key_that_is_there_twice_is_found(
    sqlite_catalog: LocalCatalog, world: KeyedWorld
) -> None:
    """Somebody else appends a row whose key is there, and nobody asks him for his key."""
    row = dict.fromkeys(COLUMNS) | {"id": 5, "name": ""}
    table = world.load()
    kind = schema_to_pyarrow(table.schema(), include_field_ids=False)
    table.append(pa.Table.from_pylist([row], kind))
    report = judged(sqlite_catalog)
    (found,) = report.findings
    assert (found.what, found.evidence) == ("key-twice", "9 live rows have 8 different keys")
    assert any("others changed the table" in told for told in report.unproven)


def test_a_delete_file_that_is_gone_is_found(
    sqlite_catalog: LocalCatalog, world: KeyedWorld
) -> None:
    ((file,),) = world.delete_files().values()
    world.load().io.delete(file.file_path)
    assert "file-missing" in {found.what for found in judged(sqlite_catalog).findings}


class Miscounting(KeyedRows):
    """Counts an update where its delete files have none."""

    def build_deletions_by_key(self, *args: Any, **named: Any) -> Deletions:
        return replace(
            super().build_deletions_by_key(*args, **named), counts=KeyCounts(inserted=1, updated=1)
        )


def test_a_commit_that_miscounts_its_changes_is_found(
    sqlite_catalog: LocalCatalog, world: KeyedWorld
) -> None:
    keyed = Miscounting(KeyedBy(("id",), "from_partition", "from_offset"))
    world.table = IcebergTable(sqlite_catalog.catalog, NAME, SINK, threads=False, keyed=keyed)
    world.commit([put(20), put(21)])
    wrong = {found.what: found.evidence for found in judged(sqlite_catalog).findings}
    said = "2 rows came and 0 died; its record counts 1 inserted, 1 updated"
    assert said in wrong["change-count"]


class Rows:
    """``TableReader.scan`` over one file of the keys, which counts how often it is read."""

    def __init__(self, keys: list[int]) -> None:
        self.keys, self.scans = pa.array(keys, pa.int64()), 0

    def scan(self, columns: Sequence[str]) -> tuple[int, Iterator[FileRows]]:
        self.scans += 1
        batches = [pa.record_batch([self.keys], list(columns))]
        return 1, iter([FileRows("f", 1, lambda: iter(batches), lambda: iter(batches))])


@pytest.mark.parametrize(("memory_bytes", "scans"), [(64_064, 1), (64_063, 2), (6_400, 11)])
def test_keys_beyond_the_memory_are_counted_in_parts(memory_bytes: int, scans: int) -> None:
    rows = Rows([*range(1_000), 7])
    assert count_rows_and_distinct_keys(
        cast("TableReader", rows), ("id",), 1_001, memory_bytes
    ) == (1_001, 1_000)
    assert rows.scans == scans


def test_a_file_without_a_column_is_said() -> None:
    (file,) = Rows([1]).scan(["id"])[1]
    with pytest.raises(ValueError, match="no column topic"):
        scan_staged_files([file], ("topic", "id", "id"), TableRecords())
