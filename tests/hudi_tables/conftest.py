"""Shares among Hudi tests one JVM with Hudi's bundle, and ZooKeeper for its locks.

They run in an environment of their own: ``make hudi``.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hudi_tables.bundle import fetched, with_s3
from object_store import ObjectStore

HERE = Path(__file__).parent

os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without Spark 3.5 and hudi-rs nothing here can run."""
    here = all(map(importlib.util.find_spec, ("pyspark", "hudi")))
    if here and __import__("pyspark").__version__.startswith("3.5."):
        return
    why = pytest.mark.skip(reason="needs Spark 3.5 and hudi-rs: make hudi")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(why)


@pytest.fixture(scope="session")
def bundle() -> Path:
    return fetched()


@pytest.fixture(scope="session")
def jars() -> str:
    """The bundle, with Hadoop's client of S3."""
    return with_s3()


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture(scope="session")
def lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The settings of Hudi's lock provider."""
    from hudi_tables.zookeeper import zookeeper

    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server.lock()


@pytest.fixture(scope="session")
def spark(jars: str) -> Iterator[Any]:
    from hudi_tables.world import session

    spark = session(jars)
    yield spark
    spark.stop()
