"""A Hive metastore 2.3.10 from the jars that PySpark brings, and the JVM that speaks to it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

from integration.readers import ICEBERG_JARS
from java_server import java_server

from headgate.data.spark.jvm import open_jvm
from headgate.data.spark.session import SparkOptions
from headgate.operations.demo.broker import free_port
from headgate.operations.demo.java import cache_folder, fetch_jars
from headgate.tables.iceberg.jvm import Jvm


def iceberg_jars() -> str:
    """For ``spark.jars``."""
    folder = fetch_jars(cache_folder() / "iceberg-spark-4.1-1.11.0", ICEBERG_JARS, transitive=False)
    return ",".join(str(jar) for jar in sorted(folder.iterdir()))


def java_with_iceberg() -> Jvm:
    """This process's; whoever asks first decides on its class path."""
    conf = {"spark.jars": iceberg_jars(), "spark.master": "local[1]"}
    return open_jvm(SparkOptions(master="local[1]", conf=conf))


def pyspark_jars() -> Path:
    package = importlib.util.find_spec("pyspark")
    assert package
    assert package.origin
    return Path(package.origin).parent / "jars"


@contextmanager
def hive_metastore(folder: Path) -> Iterator[str]:
    """Its address; database and warehouse are in the folder."""
    configured(
        folder / "conf",
        {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/db;create=true",
            "javax.jdo.option.ConnectionDriverName": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"file:{folder}/warehouse",
            "hive.async.log.enabled": "false",
        },
    )
    port = free_port()
    main = ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
    with java_server(folder, f"{folder}/conf:{pyspark_jars()}/*", main, port):
        yield f"thrift://127.0.0.1:{port}"


def configured(folder: Path, settings: Mapping[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    named = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    )
    (folder / "hive-site.xml").write_text(f"<configuration>{named}</configuration>")
