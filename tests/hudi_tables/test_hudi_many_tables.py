"""Hudi tables that routes name, with everything real except Kafka."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hudi_tables.world import ARCHIVED_SOON, QUICK, HudiWorld
from many_tables_of_a_kind import (
    BEGIN,
    CHANGES,
    COLUMNS,
    DECLARED,
    EVERY,
    MANY,
    PLACES,
    changing,
    fold,
    source,
    value,
)
from sink_in_process import SinkInProcess

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_formats import secondary_spec
from headgate.control_protocol.ports import CommitAttempt
from headgate.control_protocol.testing.contract.ledger import owing
from headgate.control_protocol.testing.contract.world import claimed, landed
from headgate.data_plane.batch.routes import RAW_NAME_PROPERTY
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import AuditReport
from headgate.operations.many_tables.list import tables
from headgate.tables.hudi.table_format import HudiFormat
from headgate.tables.hudi.table_properties import HudiLocation
from headgate.tables.hudi.upsert_table import HudiKeyedJava
from headgate.tables.hudi.write_client import HudiJava

hudi = pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

pytestmark = pytest.mark.timeout(900)

Settings = Callable[..., SinkSettings]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def said(lake: Path, bundle: Path, lock: dict[str, str], spark: Any) -> Settings:
    """The settings of a sink file; ``spark`` is the session in which it commits."""

    def parsed(text: str = BEGIN + MANY, **properties: str) -> SinkSettings:
        given = {**lock, **QUICK, **properties}
        inline = ", ".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in given.items())
        text = text.replace('type = "delta"', 'type = "hudi"').replace("COLUMNS", COLUMNS)
        text = text.replace("valid_through_refresh_ms = 3600000\n", "")
        text = text.replace('LAKE/{table}"', f'{lake}/{{table}}"\nproperties = {{ {inline} }}')
        return parse(f'{text}[catalog.properties]\n"spark.jars" = "{bundle}"\n')

    return parsed


@pytest.fixture
def shop(said: Settings) -> Iterator[SinkInProcess]:
    sink = SinkInProcess(said(), value)
    yield sink
    sink.die()


def places(lake: Path, *names: str) -> list[tuple[Any, ...]]:
    """Where the records of all these tables are from, as hudi-rs reads them."""
    found = [row for name in names for row in by_rust(lake / name)]
    return sorted(tuple(row[place] for place in PLACES) for row in found)


def by_rust(folder: Path) -> list[dict[str, Any]]:
    read = hudi.HudiTableBuilder.from_base_uri(str(folder)).build().read()
    return [row for batch in read for row in batch.to_pylist()]


def places_by_spark(spark: Any, lake: Path, *names: str) -> list[tuple[Any, ...]]:
    found = [
        tuple(row)
        for name in names
        for row in spark.read.format("hudi").load(str(lake / name)).select(*PLACES).collect()
    ]
    return sorted(found)


def test_three_tables_and_what_no_route_takes(shop: SinkInProcess, lake: Path, spark: Any) -> None:
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    assert places(lake, *EVERY) == places_by_spark(spark, lake, *EVERY) == source(shop)
    assert len(places(lake, "zone_a")) == 9
    states = {each.table: each.state for each in tables(shop.settings).tables}
    assert states == dict.fromkeys(("db.orders", "db.returns", "db.zone_a"), "open")
    assert not audit(shop.settings, with_source=False).findings


def test_a_coordinator_dies_between_two_tables_and_one_is_renamed_meanwhile(
    shop: SinkInProcess, lake: Path, spark: Any, tmp_path: Path
) -> None:
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    place = HudiLocation.of(secondary_spec(shop.settings, "db.zone_a"))
    with HudiJava(place, place.config().schema)._lock():  # nobody can deliver to it
        shop.produce(30)
        shop.until(lambda: shop.pending() == {"db.zone_a"} and shop.lag() == 0)
        shop.die()
    (lake / "returns").rename(tmp_path / "away")
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
    assert places(lake, *EVERY) == places_by_spark(spark, lake, *EVERY) == source(shop)
    assert len(places(lake, "returns")) > 60
    assert not audit(shop.settings, with_source=False).findings


def test_suspend_1_a_table_whose_columns_others_changed_is_suspended_and_all_others_go_on(
    shop: SinkInProcess, lake: Path
) -> None:
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    properties = lake / "orders" / ".hoodie" / "hoodie.properties"
    sound = properties.read_text()
    properties.write_text(f"{sound}hoodie.table.cdc.enabled=true\n")
    shop.produce(30)
    shop.until(lambda: "db.orders" in shop.suspended())
    assert "logs its changes" in shop.suspended()["db.orders"]
    shop.until_settled("db.orders")
    states = {each.table: each.state for each in tables(shop.settings).tables}
    assert states == {"db.orders": "suspended", "db.returns": "open", "db.zone_a": "open"}
    properties.write_text(sound)
    shop.resume("db.orders")
    shop.until(lambda: shop.record is not None and not shop.record.suspended)
    shop.until_settled()
    assert places(lake, *EVERY) == source(shop)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_create_1_tables_of_fields_are_made_of_what_records_show_with_partitions(
    said: Settings, lake: Path, spark: Any, kind: str
) -> None:
    text = (BEGIN + MANY).replace('"declared"', '"infer"\npartition_by = ["zone"]')
    settings = said(text.replace(DECLARED, ""), **{"hoodie.table.type": kind})
    sink = SinkInProcess(settings, value)
    (lake / "no_table").mkdir(parents=True)  # a folder beside the tables
    try:
        for _ in range(2):
            sink.begin()
            sink.produce(30)
            sink.until_settled()
        every = (*EVERY, "zone_b", "zone_c")
        assert places(lake, *every) == places_by_spark(spark, lake, *every) == source(sink)
        zones = Counter(row["zone"] for row in by_rust(lake / "orders"))
        assert zones == {"a": 18, "b": 18, "c": 18}
        assert len(list((lake / "orders").glob("zone=*"))) == 3
        layout = HudiFormat().file_schema(secondary_spec(settings, "db.zone_a"))
        assert layout.properties == {RAW_NAME_PROPERTY: "db.zone_a"}
        assert not audit(settings, with_source=False).findings
    finally:
        sink.die()


@pytest.mark.parametrize(
    ("kind", "index"), [("COPY_ON_WRITE", "SIMPLE"), ("MERGE_ON_READ", "BUCKET")]
)
def test_a_table_with_a_key_among_others_is_the_fold_of_its_topic_through_a_death(
    said: Settings, lake: Path, spark: Any, kind: str, index: str
) -> None:
    settings = said(
        CHANGES,
        **{"hoodie.table.type": kind, "hoodie.index.type": index},
        **{"hoodie.bucket.index.num.buckets": "2"},
    )
    shop = SinkInProcess(settings, changing, lambda _, offset: str(offset % 20).encode())
    try:
        shop.begin()
        shop.produce(50)
        shop.until_settled()
        place = HudiLocation.of(secondary_spec(settings, "db.orders"))
        with HudiKeyedJava(place, place.config().schema)._lock():  # nobody can deliver to it
            for _ in range(2):
                shop.produce(25)
                shop.until(lambda: shop.pending() == {"db.orders"} and shop.lag() == 0)
            assert any("are pending for db.orders" in text for text in told(settings).remarks)
            shop.die()
        shop.begin()
        shop.until_settled()
        shop.produce(3)
        shop.until_settled()
        expected = fold(103)
        found = spark.read.format("hudi").load(str(lake / "orders")).select("id", "zone")
        assert dict(map(tuple, found.collect())) == expected
        assert found.count() == len(expected)
        assert {row["id"]: row["zone"] for row in by_rust(lake / "orders")} == expected
        assert len(places(lake, "returns")) == 103
        report = told(settings)
        assert not report.findings
        assert f"db.orders: each of {len(expected)} live rows has a key of its own" in report.proven
        (orders,) = (each for each in tables(settings).tables if each.table == "db.orders")
        assert (orders.state, orders.keys is not None) == ("open", True)
    finally:
        shop.die()


def told(settings: SinkSettings) -> AuditReport:
    return audit(settings, with_source=False)


def test_ledger_2_what_was_filled_is_known_when_the_decision_is_archived(
    tmp_path: Path, spark: Any, lock: dict[str, str]
) -> None:
    world = HudiWorld(tmp_path, spark, lock, properties=ARCHIVED_SOON)
    table = world.open()
    view = landed(table.commit(CommitAttempt(claimed(table), owing(1, "lake.a"))))
    for number in range(8):
        world.append_foreign(number)
    java = HudiJava(world.place, world.place.config().schema)
    assert java.has_archived_commits(java.load_meta_client())
    assert not any(str(view.tag) in path.name for path in world.timeline("*.commit"))
    assert world.open().read().filled == {"lake.a": "u1"}
