"""Whose client speaks to a catalog, and what is refused before a JVM is started."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from unit.operations.check.test_table_and_catalog import nobody, open_to_all

from headgate.config.catalog_checks import require_usable_catalog
from headgate.config.catalog_settings import Backend, CatalogSettings
from headgate.config.load import parse
from headgate.config.setting_types import Properties
from headgate.control_protocol.errors import (
    CatalogRefused,
    ConfigurationError,
    HiveClientUnfit,
    JvmMissing,
    MissingRights,
)
from headgate.runtime.assembly import open_task
from headgate.tables.iceberg.catalog import load_catalog, translate_catalog_error
from headgate.tables.iceberg.catalog_types import require_supported_java_type
from headgate.tables.iceberg.java_catalog import JavaError, translate_java_error
from headgate.tables.iceberg.jvm import Jvm

SINK = """
name = "trips"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
[catalog]
backend = "java"
[catalog.properties]
type = "hive"
uri = "thrift://127.0.0.1:1"
[table]
identifier = "city.trips"
[spark]
"""


def hive(**more: str) -> CatalogSettings:
    properties = {"type": "hive", "uri": "thrift://127.0.0.1:1", **more}
    return CatalogSettings(backend=Backend.JAVA, properties=Properties(properties))


def test_hive_is_taken_in_java_alone() -> None:
    assert parse(SINK).catalog.backend is Backend.JAVA
    require_usable_catalog(hive())
    with pytest.raises(CatalogRefused, match=r"can lose a commit.*backend = .java. does"):
        require_usable_catalog(CatalogSettings(properties=hive().properties))


@pytest.mark.parametrize("spark", ['writer = "in-process"', 'remote = "sc://127.0.0.1:1"'])
def test_without_a_jvm_beside_this_process_it_is_refused(spark: str) -> None:
    with pytest.raises(JvmMissing, match="this process has no JVM"):
        parse(SINK + spark)


def test_an_embedded_task_has_no_jvm() -> None:
    steering: Any = None
    with pytest.raises(JvmMissing, match="embedded"), open_task(parse(SINK), steering):
        pass


@pytest.mark.parametrize("kind", ["hadoop", "jdbc", "glue", "nessie", ""])
def test_kinds_that_were_not_run_in_java_are_refused(kind: str) -> None:
    with pytest.raises(CatalogRefused, match="never seen"):
        require_supported_java_type("lake", {"type": kind})
    with pytest.raises(CatalogRefused, match="a class of its own"):
        require_supported_java_type("lake", {"catalog-impl": "my.own.Catalog"})


class JavaPackage:
    """What py4j makes of a name that no class has."""

    def __getattr__(self, name: str) -> JavaPackage:
        return JavaPackage()


class Gateway:
    jvm = JavaPackage()


def test_a_spark_without_iceberg_is_told_so() -> None:
    with pytest.raises(JvmMissing, match="Spark has no Iceberg"):
        load_catalog("lake", hive().properties, jvm=Jvm(Gateway(), None))


class Thrown:
    """A Java exception; its stack trace, which quotes settings, is not asked for."""

    def getClass(self) -> Thrown:  # noqa: N802 - Java's
        return self

    def getSuperclass(self) -> None:  # noqa: N802
        return None

    def getSimpleName(self) -> str:  # noqa: N802
        return "OddException"

    def getMessage(self) -> str:  # noqa: N802
        return "it went wrong\nsecret"

    def getCause(self) -> None:  # noqa: N802
        return None


class RaisedByJava(Exception):
    java_exception = Thrown()


class UnknownMethod(Thrown):
    def getMessage(self) -> str:  # noqa: N802
        return "Invalid method name: 'get_table'"


def test_a_client_that_the_metastore_does_not_know_is_told_by_name() -> None:
    """It is a stop with what to do, and no catalog that is away for a while."""
    raised = RaisedByJava("a whole stack trace")
    raised.java_exception = UnknownMethod()  # type: ignore[misc]
    failure = translate_java_error(raised)
    assert isinstance(failure, HiveClientUnfit)
    assert "Invalid method name: 'get_table'" in failure.message
    assert "spark.driver.extraClassPath" in failure.hint
    assert translate_catalog_error(failure, "table db.t cannot be created") is failure


def test_of_what_java_threw_one_line_is_told() -> None:
    failure = translate_java_error(RaisedByJava("a whole stack trace"))
    assert isinstance(failure, JavaError)
    assert str(failure) == "OddException: it went wrong"


def test_a_look_at_a_database_leaves_the_locks_that_this_process_holds_on_it(
    tmp_path: Path,
) -> None:
    """A descriptor that is closed takes all of a process's locks on its file with it."""
    database = tmp_path / "catalog.db"
    properties = Properties({"uri": f"sqlite:///{database}", "warehouse": str(tmp_path)})
    other = f"import sqlite3; sqlite3.connect({str(database)!r}, 0).execute('BEGIN IMMEDIATE')"
    with closing(sqlite3.connect(database, isolation_level=None)) as ours:
        ours.execute("CREATE TABLE a (b)")
        ours.execute("BEGIN EXCLUSIVE")
        require_usable_catalog(CatalogSettings(properties=properties))
        done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)
    assert "database is locked" in done.stderr


@pytest.mark.parametrize("content", [b"", b"not SQLite's" * 100], ids=["empty", "another file"])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    database = tmp_path / "catalog.db"
    database.write_bytes(content)
    properties = Properties({"uri": f"sqlite:///{database}", "warehouse": str(tmp_path)})
    with pytest.raises(ConfigurationError, match="not a database") if content else nullcontext():
        require_usable_catalog(CatalogSettings(properties=properties))


@pytest.mark.parametrize("below", ["", "lake/"])
def test_a_database_below_a_folder_that_may_not_be_searched_is_refused(
    tmp_path: Path, below: str
) -> None:
    home = tmp_path / "home"
    (home / below).mkdir(parents=True)
    open_to_all(tmp_path)
    home.chmod(0)
    properties = Properties({"uri": f"sqlite:///{home}/{below}catalog.db"})
    try:
        with nobody(), pytest.raises(MissingRights, match="may not search its folders"):
            require_usable_catalog(CatalogSettings(properties=properties))
    finally:
        home.chmod(0o755)
