"""The Spark writer in every kind of session: what its outcomes claim is what its files hold."""

from __future__ import annotations

import base64
import json
import pickle
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from integration.data_plane.every_type import add_files
from integration.oracle import assert_exactly_once, read_source
from integration.readers import read_with_pyiceberg
from integration.spark.cluster import standalone_cluster
from integration.spark.connect_port import connect_port
from integration.spark.spark_process import SparkProcess
from pyiceberg.transforms import BucketTransform
from support.local_catalog import LocalCatalog, local_catalog
from support.object_store import BUCKET, ObjectStore

from headgate.control_protocol.identifiers import SinkName
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.reader import IcebergReader

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.wide]

RECORDS = 60_000
COLUMNS = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
SECRETS = {
    "token": "a-token-of-the-catalog",
    "credential": "client:secret-of-the-catalog",
    "oauth2-server-uri": "https://user:password@tokens.example.com",
    "client.secret-access-key": "a-key-for-files",
}
SCHEMA = pa.schema([("vendor", pa.int64()), ("fare", pa.float64()), *COLUMNS])


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCatalog]:
    local = local_catalog(tmp_path_factory.mktemp("spark"))
    yield local
    local.catalog.close()


@pytest.fixture(
    scope="module",
    params=[
        "local[2]",
        "connect",
        pytest.param("standalone", marks=pytest.mark.soak),
    ],
)
def spark(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    catalog: LocalCatalog,
    bootstrap: str,
) -> Iterator[SparkProcess]:
    with ExitStack() as stack:
        options: dict[str, Any] = {"master": request.param}
        if request.param == "connect":
            stack.enter_context(connect_port())
            options = {"remote": "local[2]"}
        elif request.param == "standalone":
            folder = tmp_path_factory.mktemp("cluster")
            options["master"] = stack.enter_context(standalone_cluster(folder, workers=2))
            options["conf"] = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
        process = SparkProcess(options, {**catalog.properties, **SECRETS}, bootstrap)
        stack.callback(process.close)
        yield process


@pytest.fixture
def table(catalog: LocalCatalog, unique_name: str) -> str:
    name = f"db.{unique_name.replace('-', '_')}"
    catalog.catalog.create_table(name, SCHEMA)
    return name


@pytest.fixture
def fill(bootstrap: str) -> Callable[..., None]:
    def filled(topic: str, partition: int, count: int, value: bytes | None = None) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 10**6})
        for number in range(count):
            row = value or json.dumps({"vendor": number, "fare": number / 4}).encode()
            producer.produce(topic, row, partition=partition)
        assert producer.flush(60) == 0

    return filled


@pytest.fixture
def stalling(
    bootstrap: str, topic_factory: Callable[..., str], fill: Callable[..., None]
) -> Iterator[str]:
    """A topic whose first ten offsets a reader waits for: their transaction is still open."""
    topic = topic_factory(1)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(10):
        producer.produce(topic, b"{}", partition=0)
    producer.flush()
    yield topic
    producer.abort_transaction()


def rows_of(paths: list[str]) -> pa.Table:
    files = [path.removeprefix("file://") for path in paths]
    return pa.concat_tables(pq.ParquetFile(file).read() for file in files)


def test_a_batch_of_several_partitions_is_cut_to_the_cores_and_joined_again(
    spark: SparkProcess,
    table: str,
    bootstrap: str,
    topic_factory: Callable[..., str],
    fill: Callable[..., None],
) -> None:
    topic = topic_factory(3)
    fill(topic, 0, 2 * RECORDS)
    fill(topic, 1, 5)
    ranges = {"0": [0, 2 * RECORDS], "1": [0, 5], "2": [0, 0]}
    assert spark.call("parallelism") == 2
    spark.call("submit", number=7, table=table, topic=topic, ranges=ranges)
    outcome = spark.call("outcome")
    assert (outcome["kind"], outcome["number"]) == ("BatchWritten", 7), outcome
    claimed = {p: result["records"] for p, result in outcome["partitions"].items()}
    assert claimed == {"0": 2 * RECORDS, "1": 5, "2": 0}
    assert len(outcome["files"]) == 2
    assert_exactly_once(rows_of(outcome["files"]), read_source(bootstrap, topic))


@pytest.mark.parametrize("kind", ["orc", "avro"])
def test_tasks_write_other_formats_into_partitions(
    spark: SparkProcess,
    catalog: LocalCatalog,
    table: str,
    bootstrap: str,
    topic_factory: Callable[..., str],
    fill: Callable[..., None],
    kind: str,
) -> None:
    """pyiceberg reads ORC; Avro is read by the reader of the audit."""
    loaded = catalog.catalog.load_table(table)
    with loaded.transaction() as change:
        change.set_properties({"write.format.default": kind})
        with change.update_spec() as update:
            update.add_field("vendor", BucketTransform(4), "bucket")
    topic = topic_factory(2)
    fill(topic, 0, 400)
    fill(topic, 1, 300)
    ranges = {"0": [0, 400], "1": [0, 300]}
    spark.call("submit", number=1, table=table, topic=topic, ranges=ranges)
    outcome = spark.call("outcome")
    assert outcome["kind"] == "BatchWritten", outcome
    assert {Path(path).suffix for path in outcome["files"]} == {f".{kind}"}
    add_files(loaded, pickle.loads(base64.b64decode(outcome["written"])))
    tasks = list(loaded.refresh().scan().plan_files())
    assert {task.file.partition[0] for task in tasks} == {0, 1, 2, 3}
    _, files = IcebergReader(loaded, SinkName("sink"), "main").scan(SCHEMA.names)
    seen = [pa.Table.from_batches(file.batches()).select(SCHEMA.names) for file in files]
    assert_exactly_once(seen, read_source(bootstrap, topic))
    if kind == "orc":
        seen = [read_with_pyiceberg(loaded.metadata_location)]
        assert_exactly_once(seen, read_source(bootstrap, topic))
    vendors = sorted(vendor for rows in seen for vendor in rows["vendor"].to_pylist())
    assert vendors == sorted([*range(400), *range(300)])


def test_what_tasks_are_given_has_no_secret_of_the_catalog(
    spark: SparkProcess,
    catalog: LocalCatalog,
    table: str,
    topic_factory: Callable[..., str],
    fill: Callable[..., None],
) -> None:
    """Every function that Spark packed for its workers is searched.

    Files on a disk need no keys; which ones travel for a store, ``test_tasks_payloads`` asks.
    """
    topic = topic_factory(1)
    fill(topic, 0, 5)
    spark.call("submit", number=1, table=table, topic=topic, ranges={"0": [0, 5]})
    assert spark.call("outcome")["kind"] == "BatchWritten"
    found = spark.call("sent", texts=[*SECRETS.values(), str(catalog.database), topic])
    assert found == [topic]


@pytest.mark.soak
def test_executors_that_know_nothing_write_with_the_keys_of_the_sink_file(
    object_store: ObjectStore,
    tmp_path: Path,
    bootstrap: str,
    topic_factory: Callable[..., str],
    fill: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    local = local_catalog(tmp_path)
    properties = {**local.properties, **object_store.s3()}
    with load_catalog("local", properties) as on_s3:
        name = f"db.w{uuid.uuid4().hex[:10]}"
        location = on_s3.create_table(name, SCHEMA).location()
    topic = topic_factory(2)
    fill(topic, 0, 50)
    fill(topic, 1, 50)
    with standalone_cluster(tmp_path, workers=2) as master:
        conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
        process = SparkProcess({"master": master, "conf": conf}, properties, bootstrap)
        try:
            ranges = {"0": [0, 50], "1": [0, 50]}
            process.call("submit", number=1, table=name, topic=topic, ranges=ranges)
            outcome = process.call("outcome")
        finally:
            process.close()
    assert outcome["kind"] == "BatchWritten", outcome
    keys = set(object_store.keys(location.removeprefix(f"s3://{BUCKET}/")))
    assert {path.removeprefix(f"s3://{BUCKET}/") for path in outcome["files"]} <= keys
    local.catalog.close()


def test_tasks_on_a_cluster_run_the_package_that_was_sent(
    spark: SparkProcess, request: pytest.FixtureRequest
) -> None:
    sent = ["headgate.zip" in place for place in spark.call("shipped")]
    assert sent == [("standalone" in request.node.name)] * 2


def test_workers_on_this_machine_are_forked_when_everything_is_imported(
    spark: SparkProcess, request: pytest.FixtureRequest
) -> None:
    spark.call("shipped")  # a job: now there are workers
    ours = any(runs(process, OUR_DAEMON) for process in descendants(spark.pid))
    assert ours is ("[local" in request.node.name)


def test_a_poison_record_fails_the_batch_in_its_own_words_and_leaves_no_file(
    spark: SparkProcess,
    table: str,
    catalog: LocalCatalog,
    topic_factory: Callable[..., str],
    fill: Callable[..., None],
) -> None:
    topic = topic_factory(2)
    fill(topic, 0, RECORDS)
    fill(topic, 1, RECORDS)
    fill(topic, 1, 1, b"not json")
    ranges = {"0": [0, RECORDS], "1": [0, RECORDS + 1]}
    spark.call("submit", number=1, table=table, topic=topic, ranges=ranges)
    outcome = spark.call("outcome")
    assert outcome["kind"] == "BatchFailed"
    assert outcome["fatal"] == "HG-207"
    assert outcome["reason"].startswith(f"HG-207 {topic} partition 1 offset {RECORDS}:")
    assert "\n" not in outcome["reason"]
    assert not list(Path(catalog.warehouse, *table.split(".")).rglob("*.parquet"))
    assert outcome["first"] == {"1": RECORDS}
    before = {"0": [0, RECORDS], "1": [0, RECORDS]}
    spark.call("submit", number=2, table=table, topic=topic, ranges=before)
    assert spark.call("outcome")["kind"] == "BatchWritten"


def test_an_abandoned_batch_is_cancelled_and_never_heard_of(
    spark: SparkProcess,
    table: str,
    stalling: str,
    topic_factory: Callable[..., str],
    fill: Callable[..., None],
) -> None:
    topic = topic_factory(1)
    fill(topic, 0, 5)
    begun = time.monotonic()
    spark.call("submit", number=1, table=table, topic=stalling, ranges={"0": [0, 10]})
    spark.call("submit", number=2, table=table, topic=topic, ranges={"0": [0, 5]})
    outcome = spark.call("outcome")
    assert (outcome["kind"], outcome["number"]) == ("BatchWritten", 2), outcome
    assert time.monotonic() - begun < 50, "the reader of an open transaction gives up after 60 s"


def test_a_killed_python_worker_costs_one_try(
    spark: SparkProcess,
    request: pytest.FixtureRequest,
    table: str,
    stalling: str,
    topic_factory: Callable[..., str],
    fill: Callable[..., None],
) -> None:
    if "standalone" in request.node.name:
        pytest.skip("there the executors are no children of the session's process")
    topic = topic_factory(1)
    fill(topic, 0, 5)
    spark.call("submit", number=1, table=table, topic=stalling, ranges={"0": [0, 10]})
    outcome = None
    while outcome is None:
        kill_python_workers(spark.pid)
        outcome = spark.call("outcome", timeout_ms=200)
    assert (outcome["kind"], outcome["fatal"]) == ("BatchFailed", None), outcome
    assert outcome["reason"].startswith("the Spark job failed: "), outcome
    assert "\n" not in outcome["reason"]
    spark.call("submit", number=2, table=table, topic=topic, ranges={"0": [0, 5]})
    assert spark.call("outcome")["kind"] == "BatchWritten"


def test_a_session_that_died_ends_the_sink_instead_of_failing_for_ever(
    catalog: LocalCatalog,
    table: str,
    bootstrap: str,
    topic_factory: Callable[..., str],
    fill: Callable[..., None],
) -> None:
    topic = topic_factory(1)
    fill(topic, 0, 5)
    process = SparkProcess({"master": "local[2]"}, catalog.properties, bootstrap)
    try:
        assert process.call("parallelism") == 2
        for child in descendants(process.pid):
            if child.name() == "java":
                child.kill()
        process.call("submit", number=1, table=table, topic=topic, ranges={"0": [0, 5]})
        outcome = process.call("outcome")
    finally:
        process.close()
    assert (outcome["kind"], outcome["fatal"]) == ("BatchFailed", "HG-210"), outcome


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


OUR_DAEMON, SPARKS_DAEMON = "headgate.data_plane.spark.pyspark_daemon", "pyspark.daemon"


def runs(process: psutil.Process | None, *modules: str) -> bool:
    with suppress(psutil.NoSuchProcess):  # some of Spark's helpers live for a moment only
        return process is not None and not set(modules).isdisjoint(process.cmdline())
    return False


def kill_python_workers(pid: int) -> None:
    """All that Spark's Python daemon has forked now."""
    for child in descendants(pid):
        with suppress(psutil.NoSuchProcess):
            if runs(child.parent(), OUR_DAEMON, SPARKS_DAEMON):
                child.kill()
