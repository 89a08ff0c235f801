"""Batches of several stages on real Spark: transforms and distribution, judged by their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from integration.oracle import assert_exactly_once, read_source
from integration.spark.connect_port import connect_port
from integration.spark.spark_process import SparkProcess
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import IdentityTransform
from support.local_catalog import LocalCatalog, local_catalog

from headgate.operations.demo.producer import ensure_topic

pytestmark = [pytest.mark.integration, pytest.mark.spark]

PARTITIONS, ZONES = 4, 8
EACH = 50_000  # per partition: so many make a share of each
COLUMNS = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
SCHEMA = pa.schema(
    [("vendor", pa.int64()), ("fare", pa.float64()), ("zone", pa.string()), *COLUMNS]
)
FILTER = "select vendor, fare * 2 as fare, zone from records where vendor % 10 = 0"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCatalog]:
    local = local_catalog(tmp_path_factory.mktemp("shaped"))
    yield local
    local.catalog.close()


@pytest.fixture(scope="module")
def spark(catalog: LocalCatalog, bootstrap: str) -> Iterator[SparkProcess]:
    options = {"master": "local[2]", "parallelism": PARTITIONS}
    process = SparkProcess(options, catalog.properties, bootstrap)
    yield process
    process.close()


@pytest.fixture(scope="module")
def full_topic(bootstrap: str) -> str:
    """Every partition with records of every zone."""
    topic = f"shaped-{uuid4().hex}"
    ensure_topic(bootstrap, topic, partitions=PARTITIONS)
    settings = {"enable.idempotence": True, "queue.buffering.max.messages": 10**6}  # in order
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for number in range(EACH * PARTITIONS):
        zone = f"{number // PARTITIONS % ZONES}-zone"
        row = {"vendor": number, "fare": number / 4, "zone": zone}
        producer.produce(topic, json.dumps(row).encode(), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return topic


@pytest.fixture
def table(catalog: LocalCatalog, unique_name: str) -> str:
    name = f"db.{unique_name.replace('-', '_')}"
    with catalog.catalog.create_table(name, SCHEMA).update_spec() as spec:
        spec.add_field("zone", IdentityTransform())
    return name


Outcome = dict[str, Any]


@pytest.fixture
def written(spark: SparkProcess, table: str, full_topic: str) -> Callable[..., Outcome]:
    """The outcome of a batch of the whole topic, or of its first offsets."""

    def write(end: int = EACH, **shaping: str) -> Outcome:
        spark.call("shape", **shaping)
        ranges = {str(partition): [0, end] for partition in range(PARTITIONS)}
        spark.call("submit", number=1, table=table, topic=full_topic, ranges=ranges)
        outcome: Outcome = spark.call("outcome")
        return outcome

    return write


def rows_of(outcome: Outcome) -> pa.Table:
    assert outcome["kind"] == "BatchWritten", outcome
    files = [path.removeprefix("file://") for path in outcome["files"]]
    return pa.concat_tables(pq.ParquetFile(file).read() for file in files)


@pytest.mark.parametrize(
    ("distribution", "files"),
    [
        pytest.param("none", PARTITIONS * ZONES, marks=pytest.mark.wide),
        ("hash", ZONES),
        pytest.param("range", ZONES, marks=pytest.mark.wide),
    ],
)
def test_tasks_times_partition_values_do_not_make_as_many_files_when_distributed(
    written: Callable[..., Outcome],
    full_topic: str,
    bootstrap: str,
    distribution: str,
    files: int,
) -> None:
    outcome = written(distribution=distribution)
    assert_exactly_once(rows_of(outcome), read_source(bootstrap, full_topic))
    assert len(outcome["files"]) == files
    counts = [(p["records"], p["skipped"]) for p in outcome["partitions"].values()]
    assert counts == [(EACH, 0)] * PARTITIONS


def test_the_tables_property_decides_unless_the_sink_file_does(
    written: Callable[..., Outcome], catalog: LocalCatalog, table: str
) -> None:
    loaded = catalog.catalog.load_table(table)
    with loaded.transaction() as transaction:
        transaction.set_properties({"write.distribution-mode": "hash"})
    assert len(written()["files"]) == ZONES
    assert len(written(distribution="none")["files"]) == PARTITIONS * ZONES


@pytest.mark.parametrize("distribution", [pytest.param("none", marks=pytest.mark.wide), "hash"])
def test_a_filter_is_counted_and_every_row_knows_its_record(
    written: Callable[..., Outcome],
    full_topic: str,
    bootstrap: str,
    distribution: str,
) -> None:
    outcome = written(sql=FILTER, distribution=distribution)
    rows = rows_of(outcome)
    everything = {number: set() for number in range(PARTITIONS)}
    for number in range(0, EACH * PARTITIONS, 10):
        everything[number % PARTITIONS].add(number // PARTITIONS)
    source = {
        (full_topic, number): pa.array(sorted(offsets), pa.int64())
        for number, offsets in everything.items()
    }
    assert_exactly_once(rows, source)
    assert pc.all(pc.equal(rows["fare"], pc.divide(rows["vendor"], 2.0))).as_py()
    numbers = pc.add(pc.multiply(rows["offset"], PARTITIONS), rows["partition"])
    assert pc.all(pc.equal(numbers, rows["vendor"])).as_py()
    counts = {int(p): (r["records"], r["skipped"]) for p, r in outcome["partitions"].items()}
    assert counts == {p: (len(o), EACH - len(o)) for p, o in everything.items()}


def test_a_function_of_somebodys_gets_and_gives_a_dataframe(
    written: Callable[..., Outcome],
) -> None:
    rows = rows_of(written(1_000, function="transforms_for_tests:cheap"))
    assert rows.num_rows == 400
    assert set(rows["zone"].to_pylist()) == {str(number) for number in range(ZONES)}


WIDE = pytest.mark.wide
"""What another row shows of a function, or of another distribution."""


@pytest.mark.parametrize(
    ("shaping", "fatal", "told"),
    [
        ({"sql": "select vendor, fare / (vendor - 9) as fare, zone from records"}, "HG-207",
         "transform.sql: ArithmeticException: [DIVIDE_BY_ZERO]"),
        ({"sql": "select vendor, cast(fare as string) as fare, zone from records"}, "HG-100",
         "transform.sql gives 'fare' as string, the table has double"),
        pytest.param({"sql": "select nothing from records"}, "HG-100",
         "transform.sql: AnalysisException: [UNRESOLVED_COLUMN", marks=WIDE),
        ({"sql": "select vendor from records where false"}, "HG-212",
         "gave rows without reading its records"),
        pytest.param({"sql": "select explode(array(1, 2)) as vendor from records"}, "HG-100",
         "a function of several rows is not taken", marks=WIDE),
        ({"sql": "select vendor, 7 as _headgate_record from records"}, "HG-100",
         "transform.sql names _headgate_record"),
        ({"function": "transforms_for_tests:doubled"}, "HG-212",
         "gives 4,000 rows more than it got records, as of"),
        pytest.param({"function": "transforms_for_tests:doubled", "distribution": "hash"}, "HG-212",
         "gives 4,000 rows more than it got records, as of", marks=WIDE),
        ({"function": "transforms_for_tests:renumbered"}, "HG-212",
         "gives rows of records that were not read"),
        pytest.param({"function": "transforms_for_tests:renumbered", "distribution": "hash"},
         "HG-212", "gives rows of records that were not read", marks=WIDE),
        ({"function": "transforms_for_tests:without_number"}, "HG-100",
         "loses the column _headgate_record"),
        pytest.param({"function": "transforms_for_tests:raising"}, "HG-212",
         "(transforms_for_tests:raising): ", marks=WIDE),
        ({"function": "transforms_for_tests:failing_in_a_task"}, "HG-207",
         "(transforms_for_tests:failing_in_a_task): PythonException: "),
        ({"function": "transforms_for_tests:killing_its_worker"}, None,
         "the Spark job failed: "),
        pytest.param({"function": "transforms_for_tests:of_one_row"}, "HG-100",
         "loses the column _headgate_record", marks=WIDE),
        ({"function": "transforms_for_tests:absent"}, "HG-100", "cannot be loaded"),
        pytest.param({"function": "no_such_package:absent"}, "HG-100", "cannot be loaded",
         marks=WIDE),
    ],
)  # fmt: skip
def test_what_a_transform_does_wrong_is_named_and_leaves_no_file(
    written: Callable[..., Outcome],
    catalog: LocalCatalog,
    table: str,
    shaping: dict[str, str],
    fatal: str | None,
    told: str,
) -> None:
    outcome = written(1_000, **shaping)
    assert (outcome["kind"], outcome["fatal"]) == ("BatchFailed", fatal), outcome
    assert told in outcome["reason"]
    assert "\n" not in outcome["reason"]
    assert not list(Path(catalog.warehouse, *table.split(".")).rglob("*.parquet"))


EVERY_TYPE = pa.schema(
    [
        ("i", pa.int32()),
        ("d", pa.decimal128(20, 5)),
        ("b", pa.binary()),
        ("day", pa.date32()),
        ("naive", pa.timestamp("us")),
        ("t", pa.timestamp("us", "UTC")),
        ("f", pa.float32()),
        ("o", pa.bool_()),
        ("l", pa.list_(pa.struct([("x", pa.string()), ("y", pa.list_(pa.int64()))]))),
        ("m", pa.map_(pa.string(), pa.list_(pa.binary()))),
        ("s", pa.struct([("u", pa.string()), ("v", pa.map_(pa.string(), pa.int64()))])),
        *COLUMNS,
    ]
)
VALUES: list[dict[str, Any]] = [
    {
        "i": 1,
        "d": "123456789012345.12345",
        "b": "AAEC",
        "day": "2020-02-29",
        "naive": "1960-01-02T03:04:05.123456",
        "t": "2026-01-02T03:04:05.123456Z",
        "f": 1.5,
        "o": True,
        "l": [{"x": "a", "y": [1, None]}, None],
        "m": {"k": ["AAEC", None]},
        "s": {"u": "x", "v": {"q": 5}},
    },
    {},
    {"l": [], "m": {}, "s": {}},
]


def test_every_type_that_spark_knows_passes_as_it_is(
    spark: SparkProcess,
    catalog: LocalCatalog,
    bootstrap: str,
    unique_name: str,
    topic_factory: Callable[..., str],
) -> None:
    name, topic = f"db.{unique_name.replace('-', '_')}", topic_factory(1)
    catalog.catalog.create_table(name, EVERY_TYPE)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in VALUES:
        producer.produce(topic, json.dumps(value).encode(), partition=0)
    assert producer.flush(60) == 0
    found = []
    for shaping in ({}, {"sql": "select * from records"}):
        spark.call("shape", **shaping)
        spark.call("submit", number=1, table=name, topic=topic, ranges={"0": [0, len(VALUES)]})
        found.append(rows_of(spark.call("outcome")))
    straight, through_spark = found
    assert straight["d"][0].as_py() == Decimal("123456789012345.12345")
    assert through_spark.equals(straight)


def test_range_cuts_an_unpartitioned_table_along_its_sort_order(
    spark: SparkProcess, catalog: LocalCatalog, unique_name: str, full_topic: str, bootstrap: str
) -> None:
    name = f"db.{unique_name.replace('-', '_')}"
    with catalog.catalog.create_table(name, SCHEMA).update_sort_order() as order:
        order.desc("vendor", IdentityTransform(), NullOrder.NULLS_LAST)
    spark.call("shape", distribution="range")
    ranges = {str(partition): [0, EACH] for partition in range(PARTITIONS)}
    spark.call("submit", number=1, table=name, topic=full_topic, ranges=ranges)
    outcome = spark.call("outcome")
    assert_exactly_once(rows_of(outcome), read_source(bootstrap, full_topic))
    files = [rows_of({**outcome, "files": [path]})["vendor"] for path in outcome["files"]]
    for vendors in files:
        assert vendors.to_pylist() == sorted(vendors.to_pylist(), reverse=True)
    spans = sorted((pc.min(vendors).as_py(), pc.max(vendors).as_py()) for vendors in files)
    assert len(spans) == PARTITIONS
    packet = 1024 * PARTITIONS  # rows of a share are every fourth number
    assert all(before[1] - after[0] < packet for before, after in pairwise(spans))


@pytest.mark.soak
def test_all_of_it_through_spark_connect(
    catalog: LocalCatalog, table: str, full_topic: str, bootstrap: str
) -> None:
    options = {"remote": "local[2]", "parallelism": PARTITIONS}
    with connect_port(), closing(SparkProcess(options, catalog.properties, bootstrap)) as spark:
        for sql, mode in (
            (FILTER, "none"),
            (FILTER, "range"),
            ("select nope from records", "hash"),
        ):
            spark.call("shape", sql=sql, distribution=mode)
            ranges = {str(partition): [0, EACH] for partition in range(PARTITIONS)}
            spark.call("submit", number=1, table=table, topic=full_topic, ranges=ranges)
            outcome = spark.call("outcome")
            if sql == FILTER:
                rows = rows_of(outcome)
                assert sorted(rows["vendor"].to_pylist()) == list(range(0, EACH * PARTITIONS, 10))
                skipped = sum(result["skipped"] for result in outcome["partitions"].values())
                assert rows.num_rows + skipped == EACH * PARTITIONS
                assert (len(outcome["files"]) == ZONES) is (mode == "range")
    assert outcome["fatal"] == "HG-100"


@pytest.mark.parametrize("distribution", [pytest.param("none", marks=pytest.mark.wide), "hash"])
def test_a_poison_record_is_named_from_within_a_job_of_several_stages(
    spark: SparkProcess,
    catalog: LocalCatalog,
    table: str,
    bootstrap: str,
    topic_factory: Callable[..., str],
    distribution: str,
) -> None:
    topic = topic_factory(1)
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in (b'{"vendor": 1, "fare": 2}', b"not json"):
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0
    spark.call("shape", sql="select * from records", distribution=distribution)
    spark.call("submit", number=1, table=table, topic=topic, ranges={"0": [0, 2]})
    outcome = spark.call("outcome")
    assert (outcome["kind"], outcome["fatal"]) == ("BatchFailed", "HG-207"), outcome
    assert outcome["reason"].startswith(f"HG-207 {topic} partition 0 offset 1:")
    assert outcome["first"] == {"0": 1}
    assert not list(Path(catalog.warehouse, *table.split(".")).rglob("*.parquet"))
