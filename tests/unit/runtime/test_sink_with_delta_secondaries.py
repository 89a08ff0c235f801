"""Delta tables that follow, with everything that is real but Kafka."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from many_tables_of_a_kind import DECLARED, EVERY, MANY, ONE, PLACES

from headgate.config.load import parse
from headgate.data_plane.batch.routes import RAW_NAME_PROPERTY
from headgate.operations.audit.audit import audit
from headgate.operations.many_tables.list import tables
from headgate.tables.delta import open_table
from headgate.testing.contract.world import BEGIN, COLUMNS, source
from headgate.testing.contract.world import some_bad as value
from headgate.testing.sink_in_process import SinkInProcess


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def shop(lake: Path) -> Iterator[SinkInProcess]:
    text = (BEGIN + MANY).replace("LAKE", str(lake)).replace("COLUMNS", COLUMNS)
    sink = SinkInProcess(parse(text), value)
    yield sink
    sink.die()


def places(lake: Path, *names: str) -> list[tuple[Any, ...]]:
    """Where the records of all these tables are from."""
    found: list[tuple[Any, ...]] = []
    for name in names:
        rows = DeltaTable(lake / name).to_pyarrow_table(columns=list(PLACES)).to_pylist()
        found += [tuple(row[place] for place in PLACES) for row in rows]
    return sorted(found)


def blocked(table: Path) -> Path:
    """What stands where the table's next version would be put: nobody can deliver to it."""
    place = table / "_delta_log" / f"{DeltaTable(table).version() + 1:020}.json"
    place.mkdir()
    return place


def test_three_tables_and_what_no_route_takes(shop: SinkInProcess, lake: Path) -> None:
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    assert places(lake, *EVERY) == source(shop)
    assert len(places(lake, "zone_a")) == 9
    report = tables(shop.settings)
    assert {each.table: each.state for each in report.tables} == {
        "db.orders": "open",
        "db.returns": "open",
        "db.zone_a": "open",
    }
    assert report.exit_code == 0
    assert not audit(shop.settings, with_source=False).findings


def test_a_coordinator_dies_between_two_tables_and_one_is_dropped_meanwhile(
    shop: SinkInProcess, lake: Path, tmp_path: Path
) -> None:
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    place = blocked(lake / "zone_a")
    shop.produce(30)
    shop.until(lambda: shop.pending() == {"db.zone_a"} and shop.lag() == 0)
    shop.die()
    (lake / "returns").rename(tmp_path / "away")
    place.rmdir()
    shop.begin()
    shop.until(lambda: "db.returns" in shop.suspended())
    assert shop.suspended()["db.returns"].startswith("HG-102")
    shop.produce(30)
    shop.until_settled("db.returns")
    assert tables(shop.settings).exit_code == 1
    assert any(
        "db.returns is suspended" in text
        for text in audit(shop.settings, with_source=False).remarks
    )
    shutil.rmtree(lake / "returns", ignore_errors=True)
    (tmp_path / "away").rename(lake / "returns")
    shop.resume("db.returns")
    shop.until(lambda: shop.record is not None and not shop.record.suspended)
    shop.produce(30)
    shop.until_settled()
    assert places(lake, *EVERY) == source(shop)
    assert len(places(lake, "returns")) > 60
    assert not audit(shop.settings, with_source=False).findings


def test_suspend_1_a_table_whose_log_is_damaged_is_suspended_and_all_others_go_on(
    shop: SinkInProcess, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_table, "_PAUSE_S", 0.0)
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    newest = max((lake / "orders" / "_delta_log").glob("*.json"))
    sound = newest.read_bytes()
    newest.write_bytes(sound[: len(sound) // 2])
    shop.produce(30)
    shop.until(lambda: "db.orders" in shop.suspended())
    assert shop.suspended()["db.orders"].startswith("HG-256")
    shop.until_settled("db.orders")
    states = {each.table: each.state for each in tables(shop.settings).tables}
    assert states == {"db.orders": "suspended", "db.returns": "open", "db.zone_a": "open"}
    newest.write_bytes(sound)
    shop.resume("db.orders")
    shop.until(lambda: shop.record is not None and not shop.record.suspended)
    shop.until_settled()
    assert places(lake, *EVERY) == source(shop)


def test_create_1_tables_of_fields_are_made_of_what_records_show(lake: Path) -> None:
    text = (BEGIN + MANY).replace("LAKE", str(lake)).replace('"declared"', '"infer"')
    text = text.replace(DECLARED, "")
    sink = SinkInProcess(parse(text), value)
    (lake / "no_table").mkdir(parents=True)  # a folder beside the tables
    try:
        sink.begin()
        sink.produce(30)
        sink.until_settled()
        sink.begin()
        sink.produce(30)
        sink.until_settled()
        every = ("orders", "returns", "zone_a", "zone_b", "zone_c", "rejected")
        assert places(lake, *every) == source(sink)
        assert len(places(lake, "zone_c")) == 18
        made = DeltaTable(lake / "zone_a")
        assert RAW_NAME_PROPERTY in made.metadata().configuration
        assert [field.name for field in made.schema().fields][:2] == ["id", "zone"]
    finally:
        sink.die()


def test_quarantine_3_what_the_quarantine_has_is_not_put_again_where_the_table_went_back(
    lake: Path,
) -> None:
    text = (BEGIN + ONE).replace("LAKE", str(lake)).replace("COLUMNS", COLUMNS)
    sink = SinkInProcess(parse(text), value)
    sink.begin()
    sink.produce(30)
    sink.until_settled()
    before = DeltaTable(lake / "orders").version()
    sink.produce(30)
    sink.until_settled()
    sink.die()
    DeltaTable(lake / "orders").restore(before)
    text = text.replace("[coordinator]", '[coordinator]\non_rollback = "follow-table"')
    sink.settings = parse(text)
    sink.begin()
    sink.produce(30)
    sink.until_settled()
    sink.die()
    assert places(lake, "orders", "orders_quarantine") == source(sink)
    assert len(places(lake, "orders_quarantine")) == 27
