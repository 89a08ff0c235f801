"""Runs a sink whose table is Hudi, in separate processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from hudi_tables.bundle import with_s3
from integration.sink_file import COORDINATES, Sections, default_sections, patient, toml
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from repository.tree import ROOT
from support.object_store import BUCKET, KEY, REGION, SECRET, ObjectStore

from headgate.config.load import load
from headgate.config.table_format_registry import primary_table_spec, secondary_table_spec
from headgate.control_protocol.table_format import TableSpec
from headgate.operations.cli.main import main
from headgate.operations.demo.producer import ensure_topic
from headgate.tables.hudi.jvm import open_spark_context
from headgate.tables.hudi.table_properties import HudiLocation
from headgate.tables.hudi.write_client import HudiJava

hudi = pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

JOB = ROOT / "runtime" / "spark_submit.py"
WAIT_S_MAX = 200
TOPIC = "trips"


class HudiSink:
    """One sink file, and the processes that run it."""

    def __init__(
        self,
        home: Path,
        bootstrap: str,
        hudi_settings: Mapping[str, str],
        jar: Path,
        key: str = "",
    ) -> None:
        self.location = home / "lake" / "trips"
        self.aside = home / "lake" / "trips_quarantine"
        self.file = home / "sink.toml"
        self.produced = self.spoiled = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._stack = ExitStack()
        self._home = home
        sections = {
            **default_sections(home, bootstrap, [TOPIC], "trips"),
            "catalog.properties": {"spark.jars": str(jar), "spark.driver.memory": "768m"},
            "quarantine": {"policy": "quarantine", "per_thousand_max": 1_000},
            **self.filled(dict(hudi_settings), key),
        }
        self.file.write_text(toml(patient(sections)))
        ensure_topic(bootstrap, TOPIC, partitions=2)

    def filled(self, properties: dict[str, str], key: str) -> Sections:
        """What the sink file says of its table."""
        return {
            "table": {
                "type": "hudi",
                "identifier": "db.trips",
                "location": self.address(self.location),
                "create": True,
                **({"key": [key]} if key else {"partition_by": ["zone"]}),
            },
            "table.columns": {
                "columns": {"id": {"type": "long", "required": bool(key)}, "zone": "string"}
            },
            "table.properties": properties,
        }

    @property
    def tables(self) -> Sequence[Path]:
        return [self.location]

    def wanted(self) -> Sequence[TableSpec]:
        """What the sink file declares about the tables."""
        return [primary_table_spec(load(self.file))]

    def produce(self, count: int) -> None:
        for number in range(self.produced, self.produced + count):
            value = json.dumps({"id": number, "zone": "abc"[number % 3]})
            self._producer.produce(TOPIC, value.encode(), partition=number % 2)
        self._producer.flush(30)
        self.produced += count

    def spoil(self, count: int) -> None:
        """Records that become no row, with a header that says which they are."""
        for number in range(self.spoiled, self.spoiled + count):
            headers = [("number", str(number).encode())]
            self._producer.produce(TOPIC, b"{broken", partition=number % 2, headers=headers)
        self._producer.flush(30)
        self.spoiled += count

    def change(self, ids: Iterable[int], zone: str | None) -> None:
        """A row for each id; without a zone its row goes."""
        for number in ids:
            value = None if zone is None else json.dumps({"id": number, "zone": zone}).encode()
            self._producer.produce(TOPIC, value, str(number), partition=number % 2)
        self._producer.flush(30)

    @property
    def command(self) -> Sequence[str | Path]:
        return [Path(sys.executable).with_name("headgate"), "run", self.file]

    def start(self) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._home / "run.log").open("ab"))
        process = subprocess.Popen(
            self.command, stdout=log, stderr=log, cwd=self._home, start_new_session=True
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def begin(self) -> subprocess.Popen[bytes]:
        """Start with 300 rows and 20 spoiled records, which are there when this returns."""
        self.produce(300)
        self.spoil(20)
        process = self.start()
        self.waits_for(300)
        self.wait(lambda: sum(self.kept_aside().values()) == 20, "20 spoiled records")
        return process

    def resume(self) -> None:
        """Start again with 60 more rows, and end once everything is there, each once."""
        process = self.start()
        self.produce(60)
        self.wait(lambda: self.ids() == Counter(range(self.produced)), "all rows, once each")
        kept = Counter(range(self.spoiled))
        self.wait(lambda: self.kept_aside() == kept, "all spoiled records, once each")
        process.terminate()
        assert process.wait(120) == 0, self.said()[-4000:]

    def ids(self) -> Counter[int]:
        read = (batch for table in self.tables for batch in self._read(table))
        return Counter(n for batch in read for n in batch.column("id").to_pylist())

    def kept_aside(self) -> Counter[int]:
        """The numbers of spoiled records that the quarantine has."""
        rows = self.rows_aside()
        assert {row["value"] for row in rows} <= {b"{broken"}
        return Counter(int(header["value"]) for row in rows for header in row["headers"])

    def rows_aside(self) -> list[dict[str, Any]]:
        return [row for batch in self._read(self.aside) for row in batch.to_pylist()]

    def zones(self) -> Counter[tuple[int, str]]:
        return Counter(
            (row["id"], row["zone"])
            for batch in self._read(self.location)
            for row in batch.select(["id", "zone"]).to_pylist()
        )

    def address(self, place: Path) -> str:
        return str(place)

    def there(self, place: Path) -> bool:
        return (place / ".hoodie" / "hoodie.properties").exists()

    def built(self, place: Path) -> Any:
        return hudi.HudiTableBuilder.from_base_uri(str(place)).build()

    def _read(self, place: Path) -> list[pa.RecordBatch]:
        """As hudi-rs reads them."""
        if not self.there(place):
            return []
        try:
            found = self.built(place).read()
        except Exception:  # noqa: BLE001 - its properties, or its timeline, were being written
            return []
        return list(found)

    def waits_for(self, rows: int) -> None:
        self.wait(lambda: sum(self.ids().values()) >= rows, f"{rows} rows")

    def wait(self, happened: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < until:
            if happened():
                return
            time.sleep(1)
        raise AssertionError(f"never: {what}\n{self.said()[-4000:]}")

    def said(self) -> str:
        return (self._home / "run.log").read_text()

    def succeeds(self, *commands: str) -> None:
        """Run commands of headgate on the sink file, which exit with 0."""
        for command in commands:
            done = CliRunner().invoke(main, [command, str(self.file)])
            assert done.exit_code == 0, done.output

    def close(self) -> None:
        self._stack.close()


class HudiOnS3Sink(HudiSink):
    """The same, with all that is a table in a bucket; ``location`` and the like are keys there."""

    store: ObjectStore
    """Set in a class of the test's own."""

    def filled(self, properties: dict[str, str], key: str) -> Sections:
        self.prefix = f"sink-{uuid.uuid4()}"
        s3 = {k: value for k, value in self.store.s3().items() if k != "warehouse"}
        jars = {"spark.jars": with_s3(), "spark.driver.memory": "768m"}
        return {**super().filled(properties, key), "catalog.properties": {**s3, **jars}}

    def address(self, place: Path) -> str:
        return f"s3://{BUCKET}/{self.prefix}/{place.name}"

    def there(self, place: Path) -> bool:
        return bool(self.store.keys(f"{self.prefix}/{place.name}/.hoodie/hoodie.properties"))

    def built(self, place: Path) -> Any:
        options = {
            "AWS_ENDPOINT": self.store.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
        }
        builder = hudi.HudiTableBuilder.from_base_uri(self.address(place))
        return builder.with_storage_options(options).build()


class BySparkSink(HudiSink):
    """Spark jobs write its files, in the session that commits them."""

    def filled(self, properties: dict[str, str], key: str) -> Sections:
        spark = {"writer": "spark", "master": "local[2]"}
        return {**super().filled(properties, key), "spark": spark}


class SubmittedSink(HudiSink):
    """``spark-submit`` runs its participant, and SQL gives its rows their zones."""

    def filled(self, properties: dict[str, str], key: str) -> Sections:
        upper = {"sql": "SELECT id, upper(zone) AS zone FROM records"}
        spark = {"writer": "spark", "distribution": "hash"}
        return {**super().filled(properties, key), "spark": spark, "transform": upper}

    @property
    def command(self) -> Sequence[str | Path]:
        jar = load(self.file).catalog.properties["spark.jars"]
        submit = [Path(sys.executable).with_name("spark-submit"), "--master", "local[2]"]
        path = f"PATH={Path(sys.executable).parent}:/usr/bin:/bin"
        return ["env", path, *submit, "--jars", jar, JOB, "--config", self.file]

    def driver(self) -> int:
        """Return the process below ``spark-submit``'s JVM."""
        return int(subprocess.check_output(["pgrep", "-f", f"^\\S*python.*{JOB}.*{self.file}"]))


class IcebergAsideSink(HudiSink):
    """Its quarantine is an Iceberg table, in a catalog of its own."""

    def filled(self, properties: dict[str, str], key: str) -> Sections:
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{self._home}/aside.sqlite",
            "warehouse": (self._home / "warehouse").as_uri(),
        }
        aside = {"policy": "quarantine", "per_thousand_max": 1_000, "type": "iceberg"}
        return {
            **super().filled(properties, key),
            "quarantine": aside,
            "quarantine.catalog.properties": self.catalog,
        }

    def rows_aside(self) -> list[dict[str, Any]]:
        """As pyiceberg reads them."""
        with closing(load_catalog("default", **self.catalog)) as catalog:
            try:
                table = catalog.load_table("db.trips_quarantine")
            except NoSuchTableError:
                return []
            found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
            return found


class ManyHudiSink(HudiSink):
    """A table for each zone, made of what its records show; what is spoiled is rejected."""

    def filled(self, properties: dict[str, str], key: str) -> Sections:
        del key
        self.aside = self.location.with_name("rejected")
        named = dict(zip(("topic", "partition", "offset"), COORDINATES, strict=True))
        return {
            **dict.fromkeys(("table", "table.columns", "table.record_columns")),
            "tables": {"type": "hudi", "ledger": "db.ledger"},
            "tables.create": {
                "schema": "infer",
                "location": self.address(self.location.with_name("{table}")),
                "properties": properties,
            },
            "tables.record_columns": named,
            "tables.route": [{"topic": TOPIC, "field": "zone", "to": "db.zone_{field}"}],
            "quarantine": {
                "policy": "quarantine",
                "per_thousand_max": 1_000,
                "table": "db.rejected",
            },
        }

    @property
    def tables(self) -> Sequence[Path]:
        return [self.location.with_name(f"zone_{zone}") for zone in "abc"]

    def wanted(self) -> Sequence[TableSpec]:
        settings = load(self.file)
        return [secondary_table_spec(settings, f"db.{table.name}") for table in self.tables]


class ManyBySparkSink(BySparkSink, ManyHudiSink):
    """Many tables, written by Spark."""


class ManyHudiOnS3Sink(HudiOnS3Sink, ManyHudiSink):
    """Many tables in a bucket."""


@contextmanager
def undelivered(*tables: TableSpec) -> Iterator[None]:
    """Hold Hudi's locks of tables: meanwhile nobody can deliver what they are pending."""
    with ExitStack() as held:
        for place in map(HudiLocation.from_spec, tables):
            held.enter_context(
                HudiJava(place, place.read_config_ensuring_uuid().schema)._holding_lock()
            )
        yield


def ids_by_spark(spark: Any, *tables: TableSpec) -> Counter[int]:
    """The ids that are in the tables, as Hudi's Spark reader has them."""
    return Counter(row.id for table in tables for row in rows_by_spark(spark, table, "id"))


def rows_by_spark(spark: Any, table: TableSpec, *columns: str) -> list[Any]:
    place = HudiLocation.from_spec(table)
    open_spark_context({}, place.hadoop_settings)
    found: list[Any] = spark.read.format("hudi").load(place.base_path).select(*columns).collect()
    return found
