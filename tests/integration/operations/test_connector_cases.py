"""What Iceberg asks of its own sink in Kafka Connect, from outside, asked of headgate.

The cases are those of the integration tests of Iceberg's connector 1.12.0, told in words of our
own: a connector is created by Connect's REST interface, a few records come, and the table is looked
at. They differ in one place: a connector's position in a snapshot is a sink's commit record.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, HourTransform
from pyiceberg.types import (
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)
from support.connect_shim import ConnectShim
from support.local_catalog import local_catalog

pytestmark = [pytest.mark.integration, pytest.mark.wide]

NOW_MS = 1_780_000_000_000
THREE_DAYS_MS = 3 * 86_400_000
COLUMNS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "type", StringType(), required=True),
    NestedField(3, "ts", TimestamptzType(), required=True),
    NestedField(4, "payload", StringType(), required=True),
    identifier_field_ids=[1],
)
BY_DAY = PartitionSpec(PartitionField(3, 1000, DayTransform(), "ts_day"))
CONNECT_SCHEMA = {
    "type": "struct",
    "fields": [
        {"field": "id", "type": "int64", "optional": False},
        {"field": "type", "type": "string", "optional": False},
        {
            "field": "ts",
            "type": "int64",
            "optional": False,
            "name": "org.apache.kafka.connect.data.Timestamp",
        },
        {"field": "payload", "type": "string", "optional": False},
        {"field": "op", "type": "string", "optional": True},
    ],
}
EITHER = pytest.mark.parametrize(
    ("schemas", "branch"), [(True, ""), (False, "test_branch")], ids=["schemas", "branch"]
)


class Case:
    """A topic of two partitions, a catalog with the namespace ``test``, and Connect."""

    def __init__(self, folder: Path, bootstrap: str, topic: str, shim: ConnectShim) -> None:
        self.local = local_catalog(folder)
        self.catalog: Catalog = self.local.catalog
        self.catalog.create_namespace("test")
        self.topic, self._bootstrap, self._shim = topic, bootstrap, shim
        self.name = f"test_connector-{uuid.uuid4()}"

    def send(self, *events: tuple[int, str, int, str], schemas: bool) -> None:
        producer = kafka.Producer({"bootstrap.servers": self._bootstrap})
        for number, kind, time_ms, payload in events:
            value: Any = {"id": number, "type": kind, "ts": time_ms, "payload": payload, "op": None}
            if schemas:
                value = {"schema": CONNECT_SCHEMA, "payload": value}
            producer.produce(self.topic, json.dumps(value), key=str(number))
        producer.flush()

    def start(self, branch: str = "", *, schemas: bool, **more: str) -> tuple[int, Any]:
        """Create the connector; return code and value of the answer."""
        converter = "org.apache.kafka.connect.json.JsonConverter"
        config = {
            "topics": self.topic,
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "tasks.max": 2,
            "consumer.override.auto.offset.reset": "earliest",
            "key.converter": converter,
            "key.converter.schemas.enable": False,
            "value.converter": converter,
            "value.converter.schemas.enable": str(schemas).lower(),
            "iceberg.control.commit.interval-ms": 1000,
            "iceberg.control.commit.timeout-ms": 2**31 - 1,
            "iceberg.kafka.auto.offset.reset": "earliest",
            "iceberg.catalog.type": "jdbc",
            "iceberg.catalog": "local",
            "iceberg.catalog.uri": f"jdbc:sqlite:{self.local.database}",
            "iceberg.catalog.warehouse": self.local.warehouse.as_uri(),
            **({"iceberg.tables.default-commit-branch": branch} if branch else {}),
            **more,
        }
        return self.ask("POST", "/connectors", {"name": self.name, "config": config})

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self._shim.url + path, data, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.status, json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def rows(self, table: str, branch: str = "") -> list[dict[str, Any]]:
        """Return the rows once there are some, and the newest snapshot is the sink's."""
        return self._filled(table, branch).scan(**_use(self, table, branch)).to_arrow().to_pylist()

    def files(self, table: str, branch: str = "") -> list[tuple[Any, int]]:
        """Return partition and number of rows of each data file."""
        tasks = self._filled(table, branch).scan(**_use(self, table, branch)).plan_files()
        return [(task.file.partition, task.file.record_count) for task in tasks]

    def _filled(self, table: str, branch: str, timeout_s: float = 60) -> Table:
        until = time.monotonic() + timeout_s
        while True:
            try:
                found = self.catalog.load_table(table)
                head = found.snapshot_by_name(branch or "main")
                if head and any(found.scan(snapshot_id=head.snapshot_id).plan_files()):
                    summary = head.summary.additional_properties
                    assert any(key.startswith("headgate.") for key in summary)
                    return found
            except NoSuchTableError:
                pass
            assert time.monotonic() < until, self.ask("GET", f"/connectors/{self.name}/status")
            time.sleep(0.2)


def _use(case: Case, table: str, branch: str) -> Mapping[str, Any]:
    head = case.catalog.load_table(table).snapshot_by_name(branch or "main")
    return {"snapshot_id": head.snapshot_id if head else None}


@pytest.fixture(scope="module")
def shim(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectShim]:
    worker = {"bootstrap.servers": bootstrap}
    with ConnectShim(tmp_path_factory.mktemp("connect"), worker) as shim:
        yield shim


@pytest.fixture
def case(
    tmp_path: Path, bootstrap: str, shim: ConnectShim, topic_factory: Callable[..., str]
) -> Iterator[Case]:
    made = Case(tmp_path, bootstrap, topic_factory(2), shim)
    yield made
    made.ask("DELETE", f"/connectors/{made.name}")


def two_events(case: Case, *, schemas: bool) -> None:
    case.send(
        (1, "type1", NOW_MS, "hello world!"),
        (2, "type2", NOW_MS - THREE_DAYS_MS, "having fun?"),
        schemas=schemas,
    )


@EITHER
def test_a_partitioned_table_gets_a_file_for_each_day(
    case: Case, branch: str, *, schemas: bool
) -> None:
    case.catalog.create_table("test.foobar", COLUMNS, partition_spec=BY_DAY)
    code, _ = case.start(branch, schemas=schemas, **{"iceberg.tables": "test.foobar"})
    assert code == 201
    two_events(case, schemas=schemas)
    wait_for_rows(case, "test.foobar", branch, 2)
    assert [rows for _, rows in case.files("test.foobar", branch)] == [1, 1]
    assert len({str(partition) for partition, _ in case.files("test.foobar", branch)}) == 2


@EITHER
def test_a_table_without_partitions_gets_all_rows(
    case: Case, branch: str, *, schemas: bool
) -> None:
    case.catalog.create_table("test.foobar", COLUMNS)
    case.start(branch, schemas=schemas, **{"iceberg.tables": "test.foobar"})
    two_events(case, schemas=schemas)
    rows = wait_for_rows(case, "test.foobar", branch, 2)
    assert sorted(row["payload"] for row in rows) == ["having fun?", "hello world!"]
    assert {int(row["ts"].timestamp() * 1000) for row in rows} == {
        NOW_MS,
        NOW_MS - THREE_DAYS_MS,
    }
    assert len(case.files("test.foobar", branch)) in (1, 2)


@EITHER
def test_a_table_gets_the_columns_that_records_have(
    case: Case, branch: str, *, schemas: bool
) -> None:
    two = Schema(
        NestedField(1, "id", IntegerType(), required=True),
        NestedField(2, "type", StringType(), required=True),
    )
    case.catalog.create_table("test.foobar", two)
    more = {"iceberg.tables": "test.foobar", "iceberg.tables.evolve-schema-enabled": "true"}
    case.start(branch, schemas=schemas, **more)
    two_events(case, schemas=schemas)
    wait_for_rows(case, "test.foobar", branch, 2)
    require_columns(case, "test.foobar", LongType if schemas else IntegerType, schemas=schemas)


@EITHER
def test_a_missing_table_is_created_from_the_records(
    case: Case, branch: str, *, schemas: bool
) -> None:
    more = {"iceberg.tables": "test.foobar", "iceberg.tables.auto-create-enabled": "true"}
    if schemas:
        more["iceberg.tables.default-partition-by"] = "hour(ts)"
    case.start(branch, schemas=schemas, **more)
    two_events(case, schemas=schemas)
    wait_for_rows(case, "test.foobar", branch, 2)
    require_columns(case, "test.foobar", LongType, schemas=schemas)
    spec = case.catalog.load_table("test.foobar").spec()
    assert [type(field.transform) for field in spec.fields] == [HourTransform] * schemas


ROUTES = {
    "by a pattern": {
        "iceberg.tables": "test.tbl1, test.tbl2",
        "iceberg.tables.route-field": "type",
        "iceberg.table.test.tbl1.route-regex": "type1",
        "iceberg.table.test.tbl2.route-regex": "type2",
    },
    "by a name": {
        "iceberg.tables.dynamic-enabled": "true",
        "iceberg.tables.route-field": "payload",
    },
}


@pytest.mark.parametrize("routes", ROUTES.values(), ids=ROUTES)
def test_records_go_to_the_tables_that_a_field_says(case: Case, routes: Mapping[str, str]) -> None:
    case.catalog.create_table("test.tbl1", COLUMNS, partition_spec=BY_DAY)
    case.catalog.create_table("test.tbl2", COLUMNS)
    case.start(schemas=True, **routes)
    events = ((n, f"type{n}", NOW_MS, f"test.tbl{n}") for n in (1, 2, 3))
    case.send(*events, schemas=True)
    for number in (1, 2):
        rows = wait_for_rows(case, f"test.tbl{number}", "", 1)
        assert [row["id"] for row in rows] == [number]
        assert [count for _, count in case.files(f"test.tbl{number}")] == [1]
    assert not case.catalog.table_exists("test.tbl3")


@pytest.mark.parametrize("routes", ROUTES.values(), ids=ROUTES)
def test_routed_tables_on_a_branch_are_refused_by_name(
    case: Case, routes: Mapping[str, str]
) -> None:
    code, answer = case.start("test_branch", schemas=False, **routes)
    assert code == 400
    assert "HG-285" in answer["message"]
    assert "default-commit-branch" in answer["message"]


def test_the_interface_tells_of_a_connector_from_its_start_to_its_end(case: Case) -> None:
    case.catalog.create_table("test.foobar", COLUMNS)
    case.start(schemas=True, **{"iceberg.tables": "test.foobar"})
    assert case.ask("GET", "/connectors")[1] == [case.name]
    at = f"/connectors/{case.name}"
    two_events(case, schemas=True)
    wait_for_rows(case, "test.foobar", "", 2)
    _, state = case.ask("GET", f"{at}/status")
    assert state["connector"]["state"] == "RUNNING"
    assert [task["state"] for task in state["tasks"]] == ["RUNNING"] * 2
    assert case.ask("PUT", f"{at}/pause")[0] == 202
    assert case.ask("PUT", f"{at}/resume")[0] == 202
    assert case.ask("DELETE", at)[0] == 204
    assert case.ask("GET", f"{at}/status")[0] == 404


def wait_for_rows(case: Case, table: str, branch: str, wanted: int) -> list[dict[str, Any]]:
    until = time.monotonic() + 60
    while len(rows := case.rows(table, branch)) < wanted:
        assert time.monotonic() < until, rows
        time.sleep(0.2)
    assert len(rows) == wanted
    return rows


def require_columns(case: Case, table: str, of_id: type, *, schemas: bool) -> None:
    """As records show them: a schema says what a time is, and that a column is there."""
    schema = case.catalog.load_table(table).schema()
    types = {field.name: type(field.field_type) for field in schema.fields}
    ts = types.pop("ts")
    wanted = {"id": of_id, "type": StringType, "payload": StringType}
    assert types == wanted | ({"op": StringType} if schemas else {})
    assert ts in ((TimestampType, TimestamptzType) if schemas else (LongType,))
