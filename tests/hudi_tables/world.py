"""Provides a Hudi table and everybody who uses it: sinks, foreign writers, operators, accidents."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.object_store import BUCKET, ObjectStore

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.table_format import RowKey, TableSpec
from headgate.data_plane.batch.file_schema_plans import plan_of_file_schema
from headgate.data_plane.batch.writer_task_plan import SourcePlan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.tables.hudi.append_table import HudiSinkTable
from headgate.tables.hudi.base_files import instant_of_file
from headgate.tables.hudi.jvm import open_spark_context
from headgate.tables.hudi.reader import HudiReader
from headgate.tables.hudi.secondary_table import HudiKeyedSecondary, HudiSecondary
from headgate.tables.hudi.table_format import HudiFormat
from headgate.tables.hudi.table_properties import STAGED, HudiLocation
from headgate.tables.hudi.upsert_table import HudiKeyedTable
from headgate.tables.hudi.write_client import HudiJava

ROWS_PER_FILE = 3
COLUMNS = Struct((Column("number", "long", required=False), Column("row", "long", required=False)))
LOCATED = Struct(
    (
        Column("number", "long"),
        Column("row", "long"),
        Column("at_partition", "int", required=False),
        Column("at_offset", "long", required=False),
    )
)
KEYED = {"columns": LOCATED, "key": RowKey(("number", "row"), "at_partition", "at_offset")}
KINDS: dict[str, dict[str, Any]] = {
    "appended": {},
    "keyed": KEYED,
    "secondary": {"follows": True},
    "keyed secondary table": {**KEYED, "follows": True},
}
"""Which tables a world may be about."""

ARCHIVED_SOON = {
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "4",
    "hoodie.clean.commits.retained": "2",
    "hoodie.metadata.compact.max.delta.commits": "2",
}
QUICK = {"hoodie.time.generator.max_expected_clock_skew_ms": "20"}


def session(jars: str) -> Any:
    """Return this process's Spark session, with Hudi in it."""
    from pyspark.sql import SparkSession

    conf = {
        "spark.jars": jars,
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        "spark.sql.shuffle.partitions": "1",
    }
    return SparkSession(open_spark_context(conf, {}))


class HudiWorld:
    """The contract's world in one Spark session, below a folder."""

    def __init__(self, folder: Path, spark: Any, lock: dict[str, str], **wanted: Any) -> None:
        self.spark = spark
        self._lock = lock
        self.folder = folder / "trips"
        properties = {**lock, **QUICK, **wanted.pop("properties", {})}
        follows = {"primary": properties} if wanted.pop("follows", False) else {}
        self.wanted = TableSpec(
            "db.trips",
            wanted.pop("location", str(self.folder)),
            create=True,
            columns=wanted.pop("columns", COLUMNS),
            properties=properties,
            **follows,
            **wanted,
        )
        self.place = HudiLocation.from_spec(self.wanted)
        self._lies: list[bool] = []
        self._stamp = ""
        HudiFormat().require_supported(self.wanted)
        HudiFormat().create(self.wanted)

    def open(self, sink: str = "sink") -> Any:
        """Return the table by whichever of the four classes it needs."""

        def answer(call: Callable[[], None]) -> None:
            lie = self._lies.pop() if self._lies else None
            if lie is not False:
                call()
            if lie is not None:
                raise ConnectionError("the answer was lost")

        appended, keyed = HudiSinkTable, HudiKeyedTable
        if self.place.follows:
            appended, keyed = HudiSecondary, HudiKeyedSecondary
        kind = keyed if self.place.key else appended
        return kind(self.place, SinkName(sink), answer)

    def write_file(self, number: int) -> WrittenFile:
        """A file of ``ROWS_PER_FILE`` rows that say ``number``, by the sink's own writers.

        Files belong to one transaction until it has landed; those of a secondary table to none.
        """
        if self.place.follows or self.place.key:
            told = located(number) if self.place.key else rows(number)
            return self.write(told, f"{self.place.participant_files_address}/data")[0]
        if not self._stamp or self._complete(instant_of_file(self._stamp)):
            self._stamp = HudiSinkTable(self.place, SinkName("sink")).new_token()
        return self.write(rows(number), self._stamp)[0]

    def write_marked_file(self, token: str, number: int) -> WrittenFile:
        return self.write(rows(number), token)[0]

    def reader(self, sink: str = "sink") -> HudiReader:
        return HudiReader(self.place, SinkName(sink))

    def write(
        self, table: pa.Table, stamp: str, target_bytes: int = 1 << 20
    ) -> tuple[WrittenFile, ...]:
        plan = plan_of_file_schema(
            HudiFormat().file_schema(self.wanted), "db.trips", SourcePlan(kafka={})
        )
        shape = file_shape_of(plan)
        files = DataFiles(shape, stamp, target_bytes)
        for key, part in shape.partitioner.split(table.cast(plan.shape.arrow_schema())):
            files.write(key, part)
        return files.finish()

    def write_unfit_file(self) -> WrittenFile:
        return replace(self.write_file(0), detail=b"what no writer says")

    def stage(self, told: pa.Table, kind: FileKind = FileKind.ROWS) -> WrittenFile:
        """As participants write files of a table with a key."""
        name = f"{STAGED}/{uuid.uuid4()}.parquet"
        with self.place.folder.open_output(name) as stream:
            pq.write_table(told, stream)
            size = stream.tell()
        return WrittenFile(f"{self.place.location}/{name}", told.num_rows, size, kind)

    @property
    def staged(self) -> Path:
        return self.folder / STAGED

    def visible_file_numbers(self) -> list[int]:
        found = self.read().select("number").collect()
        return sorted(row[0] for row in found)[::ROWS_PER_FILE]

    def read(self, **options: str) -> Any:
        """As Hudi's Spark reader has it."""
        if not any(self.timeline("*commit")):
            return self.spark.createDataFrame([], "number long, row long")
        return self.spark.read.format("hudi").options(**options).load(self.place.base_path)

    def timeline(self, pattern: str) -> Sequence[Path]:
        return sorted((self.folder / ".hoodie" / "timeline").glob(pattern))

    def data_files(self) -> list[str]:
        found = self.folder.rglob("*.parquet")
        return sorted(path.name for path in found if ".hoodie" not in path.parts)

    def append_foreign(self, number: int, *, lock: bool = True) -> None:
        """By Hudi's own Spark writer."""
        options = {
            "hoodie.table.name": "trips",
            "hoodie.datasource.write.operation": "bulk_insert",
            "hoodie.bulkinsert.shuffle.parallelism": "1",
            **({**self.place.settings} if lock else {}),
        }
        frame = self.spark.createDataFrame(rows(number).to_pylist(), "number long, row long")
        frame.write.format("hudi").options(**options).mode("append").save(self.place.base_path)

    def compact(self, by: str = "row") -> None:
        """Hudi's clustering: base files are rewritten."""
        settings = ",".join(f"{key}={value}" for key, value in self.place.settings.items())
        call = (
            f"call run_clustering(path => '{self.place.base_path}', op => 'scheduleandexecute', "
            f"options => 'hoodie.clustering.plan.strategy.sort.columns={by},{settings}')"
        )
        assert self.spark.sql(call).count()

    def roll_back(self, snapshot_id: int | None) -> None:
        """By a savepoint, as Hudi's operators do."""
        done = self.timeline(f"*_{snapshot_id}.*commit")
        client = HudiJava(
            self.place, self.place.read_config_ensuring_uuid().schema
        )._open_or_reuse_write_client()
        client.savepoint(done[0].name[:17], "operator", "")
        client.restoreToSavepoint(done[0].name[:17])
        client.close()
        self._stamp = ""  # what was restored away is gone for good

    def recreate(self) -> None:
        self.drop()
        HudiFormat().create(self.wanted)

    def drop(self) -> None:
        shutil.rmtree(self.folder)

    def lose_next_answer(self, *, landed: bool) -> None:
        self._lies.append(landed)

    def close(self) -> None:
        """Nothing is held but what the JVM holds."""

    def _complete(self, instant: str) -> bool:
        return any(self.timeline(f"{instant}_*.*commit"))


class HudiOnS3World(HudiWorld):
    """The same on S3, below a prefix of its own."""

    def __init__(
        self,
        store: ObjectStore,
        spark: Any,
        lock: dict[str, str],
        endpoint: str = "",
        **wanted: Any,
    ) -> None:
        self._store, self._prefix = store, f"{uuid.uuid4()}/trips"
        properties = store.s3(endpoint or None)
        del properties["warehouse"]
        location = f"s3://{BUCKET}/{self._prefix}"
        storage = {**properties, **wanted.pop("storage", {})}
        super().__init__(Path("/none"), spark, lock, location=location, storage=storage, **wanted)

    def timeline(self, pattern: str) -> Sequence[Any]:
        names = (PurePosixPath(name) for name in self.keys(".hoodie/timeline/"))
        return [name for name in names if len(name.parts) == 1 and name.match(pattern)]

    def data_files(self) -> list[str]:
        names = (PurePosixPath(name) for name in self.keys())
        found = (name for name in names if name.suffix == ".parquet")
        return sorted(name.name for name in found if ".hoodie" not in name.parts)

    def keys(self, below: str = "") -> list[str]:
        """What lies there, marks of folders apart."""
        root = f"{self._prefix}/{below}"
        found = (key.removeprefix(root) for key in self._store.keys(root))
        return sorted(name for name in found if not name.endswith("/"))

    def drop(self) -> None:
        for key in self._store.keys(f"{self._prefix}/"):
            self._store.client("s3").delete_object(Bucket=BUCKET, Key=key)


def rows(number: int) -> pa.Table:
    row = list(range(ROWS_PER_FILE))
    return pa.table({"number": pa.array([number] * ROWS_PER_FILE, pa.int64()), "row": row})


def located(number: int) -> pa.Table:
    """The same rows with the places of their records, which are those of the offsets before
    3 * ``number``."""
    first = ROWS_PER_FILE * (number - 1)
    at = pa.array(range(first, first + ROWS_PER_FILE), pa.int64())
    partition = pa.array([0] * ROWS_PER_FILE, pa.int32())
    told = rows(number).append_column("at_partition", partition)
    return told.append_column("at_offset", at)
