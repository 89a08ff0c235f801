"""What tests of Hudi tables share: one JVM with Hudi's bundle, and ZooKeeper for its locks.

They run in an environment of their own: ``make hudi``.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.operations.demo.java import cache_folder, fetch_jars

BUNDLE = "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0"
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
    (jar,) = fetch_jars(
        cache_folder() / "hudi-spark3.5-1.2.0", [BUNDLE], transitive=False
    ).iterdir()
    return jar


@pytest.fixture(scope="session")
def lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The settings of Hudi's lock provider."""
    from hudi_tables.zookeeper import zookeeper

    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as port:
        zk = "hoodie.write.lock.zookeeper."
        provider = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
        yield {
            "hoodie.write.lock.provider": provider,
            f"{zk}url": f"127.0.0.1:{port}",
            f"{zk}port": str(port),
            f"{zk}base_path": "/hudi",
            f"{zk}lock_key": "trips",
        }


@pytest.fixture(scope="session")
def spark(bundle: Path) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from headgate.tables.hudi.jvm import open_spark

    conf = {
        "spark.jars": str(bundle),
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        "spark.sql.shuffle.partitions": "1",
    }
    session = SparkSession(open_spark(conf))
    yield session
    session.stop()
