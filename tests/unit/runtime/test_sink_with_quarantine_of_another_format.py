"""A Delta table whose quarantine is Iceberg, with everything that is real but Kafka."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from many_tables_of_a_kind import ONE, PLACES
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from headgate.config.load import parse
from headgate.control_protocol.errors import HeadgateError, TableUnfit, Unreachable
from headgate.control_protocol.ports import Unknown
from headgate.operations.access.tables import open_tables_for_reading
from headgate.operations.audit.audit import audit
from headgate.operations.check.required_grants import Role, sink_grant_commands
from headgate.operations.check.table import NotChecked, check_catalog_rights, check_quarantine
from headgate.operations.control.maintain import maintain
from headgate.operations.status.rejected_records import read_newest_rejected_records
from headgate.operations.status.status import read_status
from headgate.runtime.maintenance.table_maintenance import Done
from headgate.tables.iceberg.maintenance.snapshot_selection import KEEP_MIN, MAX_AGE_MS
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import CREATED_MS
from headgate.testing.contract.world import BEGIN, COLUMNS, source_coordinates
from headgate.testing.contract.world import sometimes_bad_value as value
from headgate.testing.sink_in_process import SinkInProcess

ASIDE = """
type = "iceberg"
[quarantine.catalog]
name = "aside"
[quarantine.catalog.properties]
type = "sql"
uri = "sqlite:///LAKE/aside.sqlite"
warehouse = "file://LAKE/warehouse"
"""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "lake").mkdir()
    return tmp_path / "lake"


def text_of(lake: Path, tables: str = ONE) -> str:
    return (BEGIN + tables + ASIDE).replace("LAKE", str(lake)).replace("COLUMNS", COLUMNS)


@pytest.fixture
def shop(lake: Path) -> Iterator[SinkInProcess]:
    sink = SinkInProcess(parse(text_of(lake)), value)
    yield sink
    sink.end_lives()


def catalog(lake: Path) -> Catalog:
    return load_catalog(
        "aside", type="sql", uri=f"sqlite:///{lake}/aside.sqlite", warehouse=f"file://{lake}"
    )


def kept(lake: Path, name: str = "db.orders_quarantine") -> list[tuple[Any, ...]]:
    rows = catalog(lake).load_table(name).scan(selected_fields=PLACES).to_arrow().to_pylist()
    return sorted(tuple(row[place] for place in PLACES) for row in rows)


def filled(lake: Path, *names: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for name in names:
        rows = DeltaTable(lake / name).to_pyarrow_table(columns=list(PLACES)).to_pylist()
        found += [tuple(row[place] for place in PLACES) for row in rows]
    return found


def test_bad_records_are_in_an_iceberg_table_and_all_others_in_the_delta_table(
    shop: SinkInProcess, lake: Path
) -> None:
    shop.begin_life()
    shop.produce(30)
    shop.run_until_settled()
    assert sorted(filled(lake, "orders") + kept(lake)) == source_coordinates(shop)
    assert len(kept(lake)) == 9
    assert not (lake / "orders_quarantine").exists()
    assert not audit(shop.settings, with_source=False).findings
    with open_tables_for_reading(shop.settings) as primary:
        newest = read_newest_rejected_records(primary)
    assert {record.offset for record in newest} <= {7, 17, 27}
    assert read_status(shop.settings).pending_rows == 0


def _lost(*_: Any) -> Any:
    return Unknown("nobody answers")


def test_a_catalog_that_is_gone_at_a_start_stops_it_before_anything_is_decided(
    shop: SinkInProcess, lake: Path
) -> None:
    shop.begin_life()
    shop.produce(30)
    shop.run_until_settled()
    shop.end_lives()
    decided = DeltaTable(lake / "orders").version()
    database = lake / "aside.sqlite"
    sound = database.read_bytes()
    database.write_bytes(b"no database" * 1_000)
    with pytest.raises(HeadgateError):
        shop.begin_life()
    assert DeltaTable(lake / "orders").version() == decided
    database.write_bytes(sound)
    shop.begin_life()
    shop.produce(30)
    shop.run_until_settled()
    assert sorted(filled(lake, "orders") + kept(lake)) == source_coordinates(shop)


PLACED = (
    NestedField(1, "topic", StringType(), required=True),
    NestedField(2, "partition", LongType()),
    NestedField(3, "offset", LongType()),
    NestedField(4, "sink", StringType()),
)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (PLACED[:2], "no column offset, no column sink"),
        ((*PLACED[2:], NestedField(1, "topic", StringType())), "no column partition"),
        (
            (*PLACED[:1], NestedField(2, "partition", StringType()), *PLACED[2:]),
            "partition is string, not int",
        ),
        ((*PLACED, NestedField(5, "seen_by", StringType(), required=True)), "seen_by is required"),
    ],
)
def test_hg153_a_table_made_by_hand_that_cannot_be_the_quarantine(
    shop: SinkInProcess, lake: Path, columns: tuple[NestedField, ...], why: str
) -> None:
    with closing(catalog(lake)) as theirs:
        theirs.create_namespace("db")
        theirs.create_table("db.orders_quarantine", Schema(*columns))
    with pytest.raises(TableUnfit, match=why):
        check_quarantine(shop.settings)
    with pytest.raises(TableUnfit, match=why):
        shop.begin_life()


def test_a_table_made_by_hand_gets_what_it_has_columns_for(shop: SinkInProcess, lake: Path) -> None:
    with closing(catalog(lake)) as theirs:
        theirs.create_namespace("db")
        seen_by = NestedField(5, "seen_by", StringType())
        theirs.create_table("db.orders_quarantine", Schema(*PLACED, seen_by))
    assert "exists (iceberg, UUID" in check_quarantine(shop.settings)
    shop.begin_life()
    shop.produce(30)
    shop.run_until_settled()
    assert sorted(filled(lake, "orders") + kept(lake)) == source_coordinates(shop)


def test_good_records_do_not_wait_for_a_catalog_that_is_down_and_bad_ones_do(
    shop: SinkInProcess, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad: set[int] = {7}
    shop.value = lambda at, offset: b"{broken" if offset in bad else value(at, 1)
    shop.begin_life()
    shop.produce(30)
    shop.run_until_settled()
    with monkeypatch.context() as down:
        down.setattr(SqlCatalog, "load_table", _down)
        shop.produce(30)
        shop.run_until(lambda: shop.lag() == 0)
        bad.add(65)
        shop.produce(30)
        turns = iter(range(200))
        shop.run_until(lambda: next(turns, None) is None)
        assert shop.lag() == 90
        assert not shop.tables_with_pending_commits()
    shop.run_until_settled()
    assert sorted(filled(lake, "orders") + kept(lake)) == source_coordinates(shop)
    assert len(kept(lake)) == 6


def _down(*_: Any) -> Any:
    raise OSError("connection refused")


def test_check_asks_the_quarantines_catalog_and_shows_no_secret(
    shop: SinkInProcess, lake: Path
) -> None:
    assert "does not exist yet" in check_quarantine(shop.settings)
    with pytest.raises(NotChecked, match="the next start creates it"):
        check_catalog_rights(shop.settings, shop.settings.quarantine.table)
    shop.begin_life()
    assert "may be committed" in check_catalog_rights(shop.settings, shop.settings.quarantine.table)
    uri = "postgresql+psycopg2://me:hidden@127.0.0.1:1/lake"
    text = text_of(lake).replace(f"sqlite:///{lake}/aside.sqlite", uri)
    with pytest.raises(Unreachable) as told:
        check_quarantine(parse(text))
    assert "hidden" not in f"{told.value} {told.value.hint}"


def test_the_rights_are_those_of_each_catalog(lake: Path) -> None:
    uri = "postgresql+psycopg2://me:hidden@127.0.0.1:1/lake"
    settings = parse(text_of(lake).replace(f"sqlite:///{lake}/aside.sqlite", uri))
    told = sink_grant_commands(settings, Role.SINK, "ann")
    assert "load and commit, and create, db.orders\n" in told
    assert "for db.orders_quarantine, and every table" in told
    assert 'GRANT SELECT, UPDATE, INSERT ON iceberg_tables TO "ann";' in told
    assert "hidden" not in told


MAINTAINED = "\n[maintenance]\nfiles_min = 2\norphans_after_ms = 86400000\n"


def done_to(shop: SinkInProcess, *steps: str) -> Done:
    (done,) = maintain(shop.settings, (), steps, dry_run=False, on_progress=lambda *_: None)
    return done


def test_its_small_files_become_few(lake: Path) -> None:
    shop = SinkInProcess(parse(text_of(lake) + MAINTAINED), value)
    try:
        shop.begin_life()
        for _ in range(3):
            shop.produce(10)
            shop.run_until_settled()
        done = done_to(shop, "compact")
        assert (done.table, done.into_files) == ("db.orders_quarantine", 1)
        assert done.compacted_files >= 3
        shop.produce(10)
        shop.run_until_settled()
    finally:
        shop.end_lives()
    assert sorted(filled(lake, "orders") + kept(lake)) == source_coordinates(shop)
    assert not audit(shop.settings, with_source=False).findings


def test_orphan_1_orphans_go_and_what_the_delta_table_owes_stays(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = SinkInProcess(parse(text_of(lake) + MAINTAINED), value)
    shop.begin_life()
    shop.produce(30)
    shop.run_until_settled()
    with monkeypatch.context() as catalog_down:
        catalog_down.setattr(IcebergTable, "send_commit", _lost)
        shop.produce(30)
        shop.run_until(
            lambda: (
                shop.lag() == 0 and shop.tables_with_pending_commits() == {"db.orders_quarantine"}
            )
        )
        shop.end_lives()
    (live, *_) = (lake / "warehouse").rglob("data/headgate/**/*.parquet")
    orphan = live.with_name("orphan.parquet")
    orphan.write_bytes(live.read_bytes())
    aside = catalog(lake).load_table("db.orders_quarantine")
    aside.transaction().set_properties({CREATED_MS: "0"}).commit_transaction()
    for file in (lake / "warehouse").rglob("*"):
        os.utime(file, (1, 1))
    done = done_to(shop, "orphans")
    assert (done.orphans, done.left) == (1, [])
    assert not orphan.exists()
    shop.begin_life()
    shop.produce(30)
    shop.run_until_settled()
    shop.end_lives()
    assert sorted(filled(lake, "orders") + kept(lake)) == source_coordinates(shop)
    assert not audit(shop.settings, with_source=False).findings


def test_its_old_snapshots_expire_and_nothing_that_was_delivered_goes(lake: Path) -> None:
    shop = SinkInProcess(parse(text_of(lake) + MAINTAINED), value)
    name = "db.orders_quarantine"
    try:
        shop.begin_life()
        for _ in range(4):
            shop.produce(10)
            shop.run_until_settled()
        table = catalog(lake).load_table(name)
        before = len(table.snapshots())
        with table.transaction() as change:
            change.set_properties({MAX_AGE_MS: "1", KEEP_MIN: "1"})
        done = done_to(shop, "expire")
        after = len(catalog(lake).load_table(name).snapshots())
        assert (done.table, done.expired_snapshots) == (name, before - after)
        assert after < before
        shop.produce(10)
        shop.run_until_settled()
        shop.begin_life()
        shop.produce(10)
        shop.run_until_settled()
    finally:
        shop.end_lives()
    assert sorted(filled(lake, "orders") + kept(lake)) == source_coordinates(shop)
    assert not audit(shop.settings, with_source=False).findings


@pytest.mark.wide
def test_it_is_maintained_beside_the_stream(
    lake: Path,
) -> None:
    text = text_of(lake) + MAINTAINED + "compact = true\ninterval_ms = 1000\n"
    shop = SinkInProcess(parse(text), value)

    def compacted() -> bool:
        table = catalog(lake).load_table("db.orders_quarantine")
        return any(s.summary and s.summary.operation.value == "replace" for s in table.snapshots())

    try:
        shop.begin_life()
        for _ in range(3):
            shop.produce(10)
            shop.run_until_settled()
        shop.run_until(compacted)
    finally:
        shop.end_lives()
    assert sorted(filled(lake, "orders") + kept(lake)) == source_coordinates(shop)
