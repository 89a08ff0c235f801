"""``headgate check`` on catalogs, tables and storage that are wrong in one way each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField, StringType
from unit.operations.filled_table import FilledTable

from headgate.config.setting_types import Properties
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_settings import ColumnSettings
from headgate.control_protocol.errors import (
    CatalogRefused,
    ConfigurationError,
    HeadgateError,
    HistoryUndecidable,
    KeyUnfit,
    MissingRights,
    SinkNameTaken,
    TableChanged,
    TableMissing,
    TableRolledBack,
    TableUnfit,
    TagMissing,
    Unreachable,
)
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.coordinator.settings import CoordinatorSettings, RollbackPolicy
from headgate.operations.check import table
from headgate.operations.check.table import NotChecked, TableCheck
from headgate.runtime.sink_tables import SinkTables

COLUMNS = (
    ColumnSettings(name="topic", type="string", from_record=True),
    ColumnSettings(name="offset", type="long", from_record=True),
)


def with_table(settings: SinkSettings, **changes: Any) -> SinkSettings:
    return replace(settings, table=replace(settings.table, **changes))


def with_catalog(settings: SinkSettings, **properties: str) -> SinkSettings:
    known = {**settings.catalog.properties, **properties}
    return replace(settings, catalog=replace(settings.catalog, properties=Properties(known)))


def tree(home: Path) -> dict[Path, int]:
    """Every file with its time of change: what a check must leave as it is."""
    return {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()}


def test_a_good_table_passes_every_question_and_nothing_changes(
    filled: FilledTable, settings: SinkSettings, tmp_path: Path
) -> None:
    filled.good_start()
    before = tree(tmp_path)
    check = TableCheck(with_table(settings, columns=COLUMNS))
    assert check.check_catalog() == "'default' (sql) opens"
    assert check.check_table().startswith("db.trips exists")
    assert check.check_columns() == "3 in the table, 3 of them declared here and equal"
    assert check.check_file_properties() == "as the table's properties ask"
    assert check.check_sink_state() == "goes on after transaction 1.2 of group headgate-trips"
    assert check.check_storage() == f"{tmp_path}/warehouse/db/trips may be written"
    assert tree(tmp_path) == before


def test_rights_are_asked_of_a_catalog_that_is_open(
    filled: FilledTable, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's answers nothing any more once it is closed."""
    filled.good_start()
    closed: list[object] = []

    def close(catalog: SqlCatalog) -> None:
        closed.append(catalog)

    def asked(table: Table) -> str:
        assert closed
        assert table.catalog not in closed
        return "may be committed"

    monkeypatch.setattr(SqlCatalog, "close", close)
    monkeypatch.setattr("headgate.operations.check.table.check_commit_rights", asked)
    check = TableCheck(settings)
    check.check_table()
    assert check.check_rights() == "may be committed"


def test_a_table_that_the_first_start_creates(settings: SinkSettings, tmp_path: Path) -> None:
    check = TableCheck(with_table(settings, create=True, columns=COLUMNS))
    assert "the first start creates it" in check.check_catalog()
    assert "the first start creates it" in check.check_table()
    assert not check.has_found_table
    assert "may be written" in check.check_storage()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sink.toml"]


def test_a_missing_catalog_file_without_leave_to_create(settings: SinkSettings) -> None:
    with pytest.raises(TableMissing, match="does not exist yet"):
        TableCheck(settings).check_catalog()


def test_an_empty_catalog_is_not_touched(settings: SinkSettings, tmp_path: Path) -> None:
    (tmp_path / "catalog.db").touch()
    check = TableCheck(settings)
    check.check_catalog()
    with pytest.raises(TableMissing, match="the catalog is empty"):
        check.check_table()
    assert (tmp_path / "catalog.db").stat().st_size == 0


def test_a_missing_table(filled: FilledTable, settings: SinkSettings) -> None:
    with pytest.raises(TableMissing, match=r"db\.other") as caught:
        TableCheck(with_table(settings, identifier="db.other")).check_table()
    assert "table.create" in caught.value.hint


def test_an_unreadable_catalog(settings: SinkSettings, tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(ConfigurationError, match="not a database"):
        TableCheck(settings).check_table()


def test_a_catalog_server_that_is_down(settings: SinkSettings) -> None:
    down = with_catalog(settings, type="rest", uri="http://127.0.0.1:1")
    with pytest.raises(Unreachable, match="cannot be opened"):
        TableCheck(down).check_catalog()


def test_lost_table_metadata(filled: FilledTable, settings: SinkSettings) -> None:
    Path(filled.table.metadata_location.removeprefix("file://")).unlink()
    with pytest.raises(Unreachable, match="cannot be read"):
        TableCheck(settings).check_table()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (ColumnSettings(name="fare", type="double"), "db.trips has no column 'fare'"),
        (
            ColumnSettings(name="offset", type="string", from_record=True),
            "column 'offset' of db.trips is long, the sink file says string",
        ),
    ],
)
def test_a_column_that_is_not_as_declared(
    filled: FilledTable, settings: SinkSettings, column: ColumnSettings, message: str
) -> None:
    check = TableCheck(with_table(settings, columns=(column,)))
    check.check_table()
    with pytest.raises(TableChanged) as caught:
        check.check_columns()
    assert caught.value.message == message


def test_the_sink_name_under_another_group(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    other = replace(settings, source=replace(settings.source, group_id="other"))
    with pytest.raises(SinkNameTaken, match="'headgate-trips'"):
        TableCheck(other).check_sink_state()


def test_a_first_start(filled: FilledTable, settings: SinkSettings) -> None:
    filled.table.transaction().remove_properties("headgate.trips.claimed").commit_transaction()
    assert TableCheck(settings).check_sink_state() == "a first start; it starts at earliest"


def test_a_deleted_tag(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.table.manage_snapshots().remove_tag("headgate-trips").commit()
    with pytest.raises(TagMissing):
        TableCheck(settings).check_sink_state()


def test_a_rolled_back_table_and_its_policy(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    second = filled.table.metadata.snapshots[1].snapshot_id
    filled.table.manage_snapshots().rollback_to_snapshot(second).commit()
    with pytest.raises((TableRolledBack, HistoryUndecidable)):
        TableCheck(settings).check_sink_state()
    policy = CoordinatorSettings(on_rollback=RollbackPolicy.FOLLOW_TABLE)
    assert "1.1" in TableCheck(replace(settings, coordinator=policy)).check_sink_state()


# ------------------------------------------------------------------------------------------ rights


@contextmanager
def nobody() -> Iterator[None]:
    """As a user without rights; an ordinary user has none where a folder's mode says so."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_storage_that_may_not_be_written(
    filled: FilledTable, settings: SinkSettings, tmp_path: Path
) -> None:
    data = tmp_path / "warehouse" / "db" / "trips" / "data"
    data.mkdir()
    check = TableCheck(settings)
    check.check_table()
    open_to_all(tmp_path)
    data.chmod(0o555)
    try:
        with nobody(), pytest.raises(MissingRights, match="files cannot be written under"):
            check.check_storage()
    finally:
        data.chmod(0o755)


def open_to_all(folder: Path) -> None:
    """So that a right is missing only where the test takes it away."""
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.getuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o755)
    for path in folder.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)


def test_a_catalog_file_that_may_not_be_written(
    filled: FilledTable, settings: SinkSettings, tmp_path: Path
) -> None:
    open_to_all(tmp_path)
    (tmp_path / "catalog.db").chmod(0o444)
    with nobody(), pytest.raises(MissingRights, match="may not be written"):
        TableCheck(settings).check_catalog()


def test_a_location_that_cannot_be_a_folder(settings: SinkSettings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = TableCheck(with_catalog(settings, warehouse=f"file://{tmp_path}/file/warehouse"))
    with pytest.raises(MissingRights, match="is not a folder"):
        check.check_storage()


def test_properties_that_files_cannot_follow_are_told(
    filled: FilledTable, settings: SinkSettings
) -> None:
    with filled.table.transaction() as change:
        change.set_properties({"write.parquet.page-version": "v2"})
    check = TableCheck(settings)
    check.check_table()
    told = "not supported: write.parquet.page-version = v2: data pages are of version 1"
    assert check.check_file_properties() == told
    with filled.table.transaction() as change:
        change.set_properties({"write.parquet.compression-codec": "lzo"})
    check = TableCheck(settings)
    check.check_table()
    with pytest.raises(ConfigurationError, match="lzo"):
        check.check_file_properties()


def test_key_1_a_key_that_the_table_cannot_have_is_told(
    filled: FilledTable, settings: SinkSettings
) -> None:
    """A column may be null in the table though the sink file, which declares none, cannot know."""
    check = TableCheck(with_table(settings, key=("topic",)))
    check.check_table()
    with pytest.raises(KeyUnfit, match="column 'topic' is not required"):
        check.check_columns()
    with filled.table.update_schema(allow_incompatible_changes=True) as change:
        change.update_column("topic", required=True)
    with filled.table.transaction() as properties:
        properties.set_properties({"write.format.default": "orc"})
    check = TableCheck(with_table(settings, key=("topic",)))
    check.check_table()
    with pytest.raises(KeyUnfit, match="wants its files in orc"):
        check.check_columns()


@pytest.mark.parametrize("kind", ["orc", "avro"])
def test_a_tables_other_format_is_followed(
    filled: FilledTable, settings: SinkSettings, kind: str
) -> None:
    with filled.table.transaction() as change:
        change.set_properties({"write.format.default": kind})
    check = TableCheck(settings)
    check.check_table()
    assert check.check_file_properties() == "as the table's properties ask"
    with filled.table.transaction() as change:
        change.set_properties({f"write.{kind}.compression-codec": "lzo"})
    check = TableCheck(settings)
    check.check_table()
    with pytest.raises(ConfigurationError, match="lzo"):
        check.check_file_properties()


@pytest.mark.usefixtures("filled")
def test_who_neither_commits_nor_creates_needs_no_writable_catalog(
    settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise MissingRights("may not be written")

    monkeypatch.setattr(table, "require_writable_sqlite_catalog", refuse)
    with pytest.raises(MissingRights):
        TableCheck(settings).check_catalog()
    assert "opens" in TableCheck(settings, commits=False, creates=False).check_catalog()
    absent = with_table(settings, identifier="db.none", create=True, columns=COLUMNS)
    nowhere = with_catalog(absent, warehouse="file:///proc/none")
    with pytest.raises(HeadgateError):
        TableCheck(nowhere).check_table()
    told = TableCheck(nowhere, commits=False, creates=False).check_table()
    assert "does not exist yet" in told


def test_a_place_that_the_catalog_chooses_is_said_to_be_unchecked(
    settings: SinkSettings,
) -> None:
    check = TableCheck(with_catalog(settings, warehouse="trips"))
    with pytest.raises(NotChecked, match="writing to trips was not tried"):
        check.check_storage()


# ------------------------------------------------------------------------------- what cannot work


def test_a_catalog_whose_folder_is_missing(settings: SinkSettings) -> None:
    absent = with_catalog(settings, uri="sqlite:////absent/lake/catalog.db")
    with pytest.raises(ConfigurationError, match="the folder /absent/lake does not exist"):
        TableCheck(with_table(absent, create=True, columns=COLUMNS)).check_catalog()


def test_a_catalog_of_a_type_that_does_not_exist(settings: SinkSettings) -> None:
    with pytest.raises(CatalogRefused, match="is not a catalog that pyiceberg has"):
        TableCheck(with_catalog(settings, type="sqll")).check_catalog()


def test_a_catalog_that_cannot_be_the_lock(settings: SinkSettings, tmp_path: Path) -> None:
    hive = with_catalog(settings, type="hive", uri="thrift://127.0.0.1:1")
    with pytest.raises(CatalogRefused, match="can lose a commit"):
        TableCheck(with_table(hive, create=True, columns=COLUMNS)).check_catalog()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sink.toml"]


@pytest.mark.parametrize(
    ("warehouse", "message"),
    [
        ("file:///proc/lake", "/proc/lake is not storage"),
        ("/sys/lake", "/sys/lake is not storage"),
        ("s4://bucket/lake", "headgate cannot write to a s4 address"),
    ],
)
def test_a_warehouse_that_is_none(settings: SinkSettings, warehouse: str, message: str) -> None:
    wanted = with_table(with_catalog(settings, warehouse=warehouse), create=True, columns=COLUMNS)
    check = TableCheck(wanted)
    with pytest.raises(ConfigurationError, match=message):
        check.check_storage()


def edited(filled: FilledTable, change: Callable[[dict[str, Any]], None]) -> None:
    """The table's metadata file as another program would have written it."""
    path = Path(filled.table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))


def test_a_partition_transform_that_nobody_here_knows(
    filled: FilledTable, settings: SinkSettings
) -> None:
    field = {"source-id": 3, "field-id": 1000, "name": "z", "transform": "zorder[4]"}
    edited(filled, lambda table: table["partition-specs"][0]["fields"].append(field))
    check = TableCheck(settings)
    check.check_table()
    with pytest.raises(TableChanged, match=r"partition field z: the transform .* is not known"):
        check.check_columns()


def test_a_column_that_cannot_hold_the_records_offset(
    filled: FilledTable, settings: SinkSettings
) -> None:
    def dated(table: dict[str, Any]) -> None:
        table["schemas"][0]["fields"][2]["type"] = "date"

    edited(filled, dated)
    kind = ColumnSettings(name="offset", type="date", from_record=True)
    check = TableCheck(with_table(settings, columns=(kind,)))
    check.check_table()
    with pytest.raises(TableChanged, match="cannot hold the records' offset"):
        check.check_columns()


@pytest.mark.parametrize(
    "key", ["history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"]
)
def test_a_retention_below_one(filled: FilledTable, settings: SinkSettings, key: str) -> None:
    filled.table.transaction().set_properties({key: "-1"}).commit_transaction()
    check = TableCheck(settings)
    check.check_table()
    with pytest.raises(ConfigurationError, match="cannot be '-1'"):
        check.check_columns()


def test_an_interval_of_ages(settings: SinkSettings) -> None:
    with pytest.raises(ConfigurationError, match="at most a year"):
        replace(settings, coordinator=CoordinatorSettings(commit_interval_ms=10**15))


def test_the_quarantine_is_asked_for_and_so_at_a_start(
    filled: FilledTable, catalog: SqlCatalog, settings: SinkSettings
) -> None:
    filled.good_start()
    kept = replace(settings.quarantine, policy=Disposal.QUARANTINE, table="db.aside")
    settings = replace(settings, quarantine=kept)
    assert "does not exist yet" in TableCheck(settings).check_quarantine()
    catalog.create_table("db.aside", Schema(NestedField(1, "topic", StringType())))
    tables = SinkTables.from_open_catalog(settings, catalog)
    for ask in (TableCheck(settings).check_quarantine, tables.prepare_quarantine):
        with pytest.raises(TableUnfit, match="no column partition, no column offset, no column"):
            ask()
    catalog.drop_table("db.aside")
    tables.prepare_quarantine()
    assert "exists (iceberg, UUID" in TableCheck(settings).check_quarantine()
