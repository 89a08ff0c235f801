"""Independent readers of an Iceberg table: what one library wrote, another must be able to read."""

from __future__ import annotations

import functools
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa
from pyiceberg.table import StaticTable
from support.object_store import KEY, REGION, SECRET, ObjectStore
from support.postgres_server import PostgresServer

from headgate.operations.java_installation import ensure_jars, user_cache_folder

ICEBERG_VERSION = "1.11.0"


def iceberg_jars(version: str = ICEBERG_VERSION) -> str:
    """For ``spark.jars``."""
    jars = (
        f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{version}",
        "org.xerial:sqlite-jdbc:3.51.1.0",
    )
    folder = ensure_jars(
        user_cache_folder() / f"iceberg-spark-4.1-{version}", jars, transitive=False
    )
    return ",".join(str(jar) for jar in sorted(folder.iterdir()))


def read_with_pyiceberg(metadata_location: str) -> pa.Table:
    """Every live row, through a table that knows no catalog."""
    return StaticTable.from_metadata(metadata_location).scan().to_arrow()


def read_with_duckdb(metadata_location: str, store: ObjectStore | None = None) -> pa.Table:
    """Every live row, through DuckDB's own Iceberg implementation; on S3 through its client."""
    with _duckdb().cursor() as connection:
        _let_read(connection, store)
        path = metadata_location.removeprefix("file://")
        return connection.execute("SELECT * FROM iceberg_scan(?)", [path]).to_arrow_table()


def read_snapshot_with_duckdb(metadata_location: str, snapshot_id: int) -> pa.Table:
    """Every row that was live in this snapshot."""
    with _duckdb().cursor() as connection:
        path = metadata_location.removeprefix("file://")
        wanted = "SELECT * FROM iceberg_scan(?, snapshot_from_id := ?)"
        return connection.execute(wanted, [path, snapshot_id]).to_arrow_table()


def read_with_duckdb_query(metadata_location: str, wanted: str) -> tuple[object, ...]:
    """The one row that these expressions give."""
    with _duckdb().cursor() as connection:
        path = metadata_location.removeprefix("file://")
        row = connection.execute(f"SELECT {wanted} FROM iceberg_scan(?)", [path]).fetchone()
    assert row is not None
    return row


def duckdb_for_delta() -> duckdb.DuckDBPyConnection:
    """A connection with DuckDB's extension for Delta, which is Delta's own kernel."""
    connection = duckdb.connect()
    connection.execute(f"LOAD '{_duckdb_extension('delta')}'")
    return connection


def read_delta_with_duckdb(location: str, store: ObjectStore | None = None) -> pa.Table:
    """Every live row of a Delta table; on S3 through Delta's own client."""
    with duckdb_for_delta() as connection:
        _let_read(connection, store)
        return connection.execute("SELECT * FROM delta_scan(?)", [location]).to_arrow_table()


def read_postgres(
    server: PostgresServer, columns: Sequence[str], table: str = "db.rows"
) -> pa.Table:
    """These columns of every row of a table, through another driver than the example's."""
    names = ", ".join(f'"{name}"' for name in columns)
    found = server.ask(f"SELECT {names} FROM {table}")
    values = zip(*found, strict=True) if found else [()] * len(columns)
    return pa.table(dict(zip(columns, map(list, values), strict=True)))


def _let_read(connection: duckdb.DuckDBPyConnection, store: ObjectStore | None) -> None:
    if store is not None:
        connection.execute(f"LOAD '{_duckdb_extension('httpfs')}'")
        connection.execute(
            f"CREATE OR REPLACE SECRET store (TYPE s3, KEY_ID '{KEY}', SECRET '{SECRET}', "
            f"REGION '{REGION}', ENDPOINT '127.0.0.1:{store.port}', "
            "URL_STYLE 'path', USE_SSL false)"
        )


@functools.cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """With what reads Iceberg, which costs thirty times a small table to load; keeps no file."""
    connection = duckdb.connect()
    connection.execute("SET enable_external_file_cache = false")
    for name in ("avro", "iceberg"):
        connection.execute(f"LOAD '{_duckdb_extension(name)}'")
    return connection


def _duckdb_extension(name: str) -> Path:
    # From the package registry's wheels: DuckDB's own INSTALL needs a host of its own.
    package = importlib.util.find_spec(f"duckdb_extension_{name}")
    assert package and package.origin, f"DuckDB's extension {name} is not installed: make env"
    return next(Path(package.origin).parent.rglob(f"{name}.duckdb_extension"))


class IcebergSpark:
    """Java's Iceberg: the reference reader, and the foreign compactor of a table.

    It runs in a process of its own, because a process has one JVM with one class path, and the
    product's Spark must be seen to work without Iceberg's jars.
    """

    def __init__(self, version: str = ICEBERG_VERSION) -> None:
        self._jars = iceberg_jars(version)
        self._process = ProcessPoolExecutor(
            max_workers=1, mp_context=multiprocessing.get_context("spawn")
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.shutdown()

    def sql(self, name: str, database: Path, statement: str) -> pa.Table:
        """The statement's result; tables are ``<name>.<namespace>.<table>`` in a SQLite catalog."""
        catalog = {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{database}",
            "warehouse": (database.parent / "warehouse").as_uri(),
            "jdbc.schema-version": "V1",
        }
        return self._sql(name, catalog, statement)

    def rest_sql(self, uri: str, statement: str) -> pa.Table:
        """As ``sql``; tables are ``rest.<namespace>.<table>`` of the REST catalog."""
        return self._sql("rest", {"type": "rest", "uri": uri}, statement)

    def _sql(self, name: str, catalog: Mapping[str, str], statement: str) -> pa.Table:
        prefix = f"spark.sql.catalog.{name}"
        settings = {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.cache-enabled": "false",
            **{f"{prefix}.{key}": value for key, value in catalog.items()},
        }
        return self._process.submit(_run_sql, self._jars, settings, statement).result()

    def read_with_java(self, metadata_location: str) -> list[dict[str, Any]]:
        """Every live row through Java's own reader, which knows types that Spark does not.

        Timestamps are nanoseconds since 1970; ``_row_id`` is the row's id.
        """
        return self._process.submit(_read_with_java, self._jars, metadata_location).result()

    def read(self, name: str, database: Path, table: str) -> pa.Table:
        """Every live row of ``<namespace>.<table>``."""
        return self.sql(name, database, f"SELECT * FROM {name}.{table}")


def _run_sql(jars: str, settings: Mapping[str, str], statement: str) -> pa.Table:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        session = _spark(jars).newSession()  # it remembers its catalogs, tests reuse their names
        for key, value in settings.items():
            session.conf.set(key, value)
        return session.sql(statement).toArrow()
    except (PySparkException, Py4JError) as error:
        raise RuntimeError(f"{statement}: {error}") from None  # Spark's own do not travel


def _read_with_java(jars: str, metadata_location: str) -> list[dict[str, Any]]:
    jvm = _spark(jars)._jvm
    iceberg = jvm.org.apache.iceberg
    files = iceberg.hadoop.HadoopFileIO(jvm.org.apache.hadoop.conf.Configuration())
    table = iceberg.BaseTable(iceberg.StaticTableOperations(metadata_location, files), "static")
    schema = iceberg.MetadataColumns.schemaWithRowLineage(table.schema())
    names = [column.name() for column in schema.columns()]
    found = []
    rows = iceberg.data.IcebergGenerics.read(table).project(schema).build().iterator()
    while rows.hasNext():
        row = rows.next()
        found.append({name: _counted(jvm, row.getField(name)) for name in names})
    return found


def _counted(jvm: Any, value: Any) -> Any:
    """Java's dates and times as nanoseconds since 1970."""
    if not hasattr(value, "getClass"):
        return value
    if value.getClass().getSimpleName() == "LocalDateTime":
        value = value.atOffset(jvm.java.time.ZoneOffset.UTC)
    return value.toEpochSecond() * 10**9 + value.getNano()


@functools.cache
def _spark(jars: str) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    return (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", extensions)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
