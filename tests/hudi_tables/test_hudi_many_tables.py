"""Hudi tables that routes name, with everything real except Kafka."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hudi_tables.world import ARCHIVED_SOON, QUICK, HudiWorld
from many_tables_of_a_kind import CHANGES, DECLARED, EVERY, MANY, PLACES

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_format_registry import secondary_table_spec
from headgate.control_protocol.ports import CommitAttempt
from headgate.control_protocol.testing.contract.ledger import record_with_pending
from headgate.control_protocol.testing.contract.world import claim_table, require_landed
from headgate.data_plane.routing.routes import RAW_NAME_PROPERTY
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import AuditReport
from headgate.operations.many_tables.list import list_tables
from headgate.tables.hudi.table_format import HudiFormat
from headgate.tables.hudi.table_properties import HudiLocation
from headgate.tables.hudi.upsert_table import HudiKeyedJava
from headgate.tables.hudi.write_client import HudiJava
from headgate.testing.contract import (
    ManyTablesSinkContract,
    SuspensionSinkContract,
)
from headgate.testing.contract.world import (
    BEGIN,
    COLUMNS,
    expected_zone_by_key,
    many_tables_toml,
    recurring_key,
    source_coordinates,
    upsert_or_delete_value,
)
from headgate.testing.contract.world import sometimes_bad_value as value
from headgate.testing.sink_in_process import SinkInProcess

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


class HudiSinkWorld:
    """Tables below a folder, which one session fills."""

    table_lines = 'type = "hudi"'
    quarantine_lines = ""

    def __init__(self, home: Path, bundle: Path, lock: dict[str, str]) -> None:
        self.lake, self._bundle = home / "lake", bundle
        self._properties = {**lock, **QUICK}

    @property
    def further_sections(self) -> str:
        return f'[catalog.properties]\n"spark.jars" = "{self._bundle}"\n'

    def location_lines(self, name: str) -> str:
        given = self._properties.items()
        inline = ", ".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in given)
        return f'location = "{self.lake}/{name}"\nproperties = {{ {inline} }}'

    def rows(self, name: str) -> list[dict[str, Any]]:
        return by_rust(self.lake / name)

    @contextmanager
    def lock_table(self, name: str) -> Iterator[None]:
        place = HudiLocation.from_spec(
            secondary_table_spec(parse(many_tables_toml(self)), f"db.{name}")
        )
        with HudiJava(place, place.read_config_ensuring_uuid().schema)._holding_lock():
            yield

    def take_table_away(self, name: str) -> None:
        (self.lake / name).rename(self.lake.with_name("away"))

    def bring_table_back(self, name: str) -> None:
        away = self.lake.with_name("away")
        while away.exists():  # a call of the dead process makes the folder again, for its lock
            shutil.rmtree(self.lake / name, ignore_errors=True)
            with suppress(OSError):
                away.rename(self.lake / name)

    @contextmanager
    def damage_table(self, name: str) -> Iterator[None]:
        """Somebody has the table log its changes."""
        properties = self.lake / name / ".hoodie" / "hoodie.properties"
        sound = properties.read_text()
        properties.write_text(f"{sound}hoodie.table.cdc.enabled=true\n")
        yield
        properties.write_text(sound)


class TestHudiSink(ManyTablesSinkContract, SuspensionSinkContract):
    @pytest.fixture
    def world(
        self, tmp_path: Path, bundle: Path, lock: dict[str, str], spark: Any
    ) -> HudiSinkWorld:
        return HudiSinkWorld(tmp_path, bundle, lock)


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
            sink.begin_life()
            sink.produce(30)
            sink.run_until_settled()
        every = (*EVERY, "zone_b", "zone_c")
        assert (
            places(lake, *every) == places_by_spark(spark, lake, *every) == source_coordinates(sink)
        )
        zones = Counter(row["zone"] for row in by_rust(lake / "orders"))
        assert zones == {"a": 18, "b": 18, "c": 18}
        assert len(list((lake / "orders").glob("zone=*"))) == 3
        layout = HudiFormat().file_schema(secondary_table_spec(settings, "db.zone_a"))
        assert layout.properties == {RAW_NAME_PROPERTY: "db.zone_a"}
        assert not audit(settings, with_source=False).findings
    finally:
        sink.end_lives()


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
    shop = SinkInProcess(settings, upsert_or_delete_value, recurring_key)
    try:
        shop.begin_life()
        shop.produce(50)
        shop.run_until_settled()
        place = HudiLocation.from_spec(secondary_table_spec(settings, "db.orders"))
        with HudiKeyedJava(
            place, place.read_config_ensuring_uuid().schema
        )._holding_lock():  # nobody can deliver to it
            for _ in range(2):
                shop.produce(25)
                shop.run_until(
                    lambda: shop.tables_with_pending_commits() == {"db.orders"} and shop.lag() == 0
                )
            assert any("are pending for db.orders" in text for text in told(settings).remarks)
            shop.end_lives()
        shop.begin_life()
        shop.run_until_settled()
        shop.produce(3)
        shop.run_until_settled()
        expected = expected_zone_by_key(103)
        found = spark.read.format("hudi").load(str(lake / "orders")).select("id", "zone")
        assert dict(map(tuple, found.collect())) == expected
        assert found.count() == len(expected)
        assert {row["id"]: row["zone"] for row in by_rust(lake / "orders")} == expected
        assert len(places(lake, "returns")) == 103
        report = told(settings)
        assert not report.findings
        assert f"db.orders: each of {len(expected)} live rows has a key of its own" in report.proven
        (orders,) = (each for each in list_tables(settings).tables if each.table == "db.orders")
        assert (orders.state, orders.keys is not None) == ("open", True)
    finally:
        shop.end_lives()


def told(settings: SinkSettings) -> AuditReport:
    return audit(settings, with_source=False)


def test_ledger_2_what_was_filled_is_known_when_the_decision_is_archived(
    tmp_path: Path, spark: Any, lock: dict[str, str]
) -> None:
    world = HudiWorld(tmp_path, spark, lock, properties=ARCHIVED_SOON)
    table = world.open()
    view = require_landed(
        table.commit(CommitAttempt(claim_table(table), record_with_pending(1, "lake.a")))
    )
    for number in range(8):
        world.append_foreign(number)
    java = HudiJava(world.place, world.place.read_config_ensuring_uuid().schema)
    assert java.has_archived_commits(java.load_meta_client())
    assert not any(str(view.tag) in path.name for path in world.timeline("*.commit"))
    assert world.open().read().filled == {"lake.a": "u1"}
