"""A Delta table whose quarantine is Iceberg, with everything that is real but Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from many_tables_of_a_kind import BEGIN, COLUMNS, EVERY, MANY, PLACES, source, value
from pyiceberg.catalog import Catalog, load_catalog
from sink_in_process import SinkInProcess

from headgate.control_protocol.errors import HeadgateError
from headgate.operations.audit import audit
from headgate.operations.bad_records import last_bad_records
from headgate.operations.status import status
from headgate.operations.table_access import opened_reader
from headgate.operations.tables import tables
from headgate.sink.load import parse
from headgate.tables.iceberg.table import IcebergTable

ONE = """
[table]
type = "delta"
identifier = "db.orders"
location = "LAKE/orders"
create = true
columns = COLUMNS
[table.record_columns]
topic = "topic"
partition = "partition"
offset = "offset"
[quarantine]
policy = "quarantine"
per_thousand_max = 1000
"""
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
    sink.die()


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


def test_point_14_bad_records_are_in_an_iceberg_table_and_all_others_in_the_delta_table(
    shop: SinkInProcess, lake: Path
) -> None:
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    assert sorted(filled(lake, "orders") + kept(lake)) == source(shop)
    assert len(kept(lake)) == 9
    assert not (lake / "orders_quarantine").exists()
    assert not audit(shop.settings, with_source=False).findings
    with opened_reader(shop.settings) as lead:
        newest = last_bad_records(shop.settings, lead)
    assert {record.offset for record in newest} <= {7, 17, 27}
    assert status(shop.settings).owed_rows == 0


def test_point_14_whoever_comes_next_pays_what_a_dead_coordinator_decided(
    shop: SinkInProcess, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    with monkeypatch.context() as catalog_down:
        catalog_down.setattr(IcebergTable, "sent", _lost)
        shop.produce(30)
        shop.until(lambda: shop.lag() == 0 and shop.owed() == {"db.orders_quarantine"})
        assert len(kept(lake)) == 9
        assert status(shop.settings).owed_rows == 9
        assert "are owed to the quarantine" in " ".join(
            audit(shop.settings, with_source=False).remarks
        )
        shop.die()
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    assert sorted(filled(lake, "orders") + kept(lake)) == source(shop)
    assert len(kept(lake)) == 27
    assert not audit(shop.settings, with_source=False).findings


def _lost(*_: Any) -> Any:
    from headgate.control_protocol.ports import Unknown

    return Unknown("nobody answers")


def test_point_14_q5_what_the_quarantine_has_is_not_put_again_where_the_table_went_back(
    shop: SinkInProcess, lake: Path
) -> None:
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    before = DeltaTable(lake / "orders").version()
    shop.produce(30)
    shop.until_settled()
    shop.die()
    DeltaTable(lake / "orders").restore(before)
    text = text_of(lake).replace("[coordinator]", '[coordinator]\non_rollback = "follow-table"')
    shop.settings = parse(text)
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    shop.die()
    assert sorted(filled(lake, "orders") + kept(lake)) == source(shop)
    assert len(kept(lake)) == 27


def test_point_14_many_delta_tables_have_one_iceberg_quarantine(lake: Path) -> None:
    shop = SinkInProcess(parse(text_of(lake, MANY)), value)
    try:
        shop.begin()
        shop.produce(30)
        shop.until_settled()
        *routed, _ = EVERY
        assert sorted(filled(lake, *routed) + kept(lake, "db.rejected")) == source(shop)
        assert tables(shop.settings).exit_code == 0
        assert not audit(shop.settings, with_source=False).findings
    finally:
        shop.die()


def test_point_14_a_catalog_that_is_gone_at_a_start_stops_it_before_anything_is_decided(
    shop: SinkInProcess, lake: Path
) -> None:
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    shop.die()
    decided = DeltaTable(lake / "orders").version()
    database = lake / "aside.sqlite"
    sound = database.read_bytes()
    database.write_bytes(b"no database" * 1_000)
    with pytest.raises(HeadgateError):
        shop.begin()
    assert DeltaTable(lake / "orders").version() == decided
    database.write_bytes(sound)
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    assert sorted(filled(lake, "orders") + kept(lake)) == source(shop)
