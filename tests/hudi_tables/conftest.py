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
from support.object_store import ObjectStore

os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


_HERE = all(map(importlib.util.find_spec, ("pyspark", "hudi")))
if not (_HERE and __import__("pyspark").__version__.startswith("3.5.")):
    collect_ignore_glob = ["test_*.py"]  # nothing of it can run: make hudi


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
