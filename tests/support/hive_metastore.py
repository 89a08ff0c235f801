"""Runs Hive metastores of several releases, and the JVMs that talk to them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape

from integration.readers import iceberg_jars
from support.java_server import java_server
from support.maven import maven_jars

from headgate.data_plane.spark.session import SparkOptions, open_jvm
from headgate.operations.local_kafka.broker import find_free_port
from headgate.tables.iceberg.jvm import Jvm

HIVE_2, HIVE_3, HIVE_4 = "2.3.10", "3.1.3", "4.0.1"

POM = Path(__file__).with_name("hive-metastore-pom.xml")
ARTIFACTS = {HIVE_3: "hive-standalone-metastore", HIVE_4: "hive-standalone-metastore-server"}
CLIENT_OF_4 = f"hive-standalone-metastore-common-{HIVE_4}.jar"
TXN = "org.apache.hadoop.hive.metastore.txn."
OWN_SETTINGS: Mapping[str, Mapping[str, str]] = {
    HIVE_2: {
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.iapi.jdbc.AutoloadedDriver"
    },
    # What they take for granted is in hive-exec, which a metastore by itself has not.
    HIVE_3: {"metastore.task.threads.always": f"{TXN}AcidHouseKeeperService"},
    HIVE_4: {"metastore.task.threads.always": f"{TXN}service.AcidHouseKeeperService"},
}
BY_ITSELF = {
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
    "metastore.expression.proxy": (
        "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy"
    ),
}


def java_with_iceberg() -> Jvm:
    """This process's; whoever asks first decides on its class path."""
    conf = {"spark.jars": iceberg_jars(), "spark.master": "local[1]"}
    return open_jvm(SparkOptions(master="local[1]", conf=conf))


def java_for(release: str) -> Jvm:
    """The JVM whose client of Hive is for the release; of Hive 4 in a process of its own."""
    return java_with_the_client_of_4() if release == HIVE_4 else java_with_iceberg()


@cache
def java_with_the_client_of_4() -> Jvm:
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf().set("spark.jars", iceberg_jars()).set("spark.master", "local[1]")
    gateway = launch_gateway(conf.set("spark.driver.extraClassPath", str(client_of_4())))
    return Jvm(gateway, gateway.jvm.org.apache.hadoop.conf.Configuration())


def client_of_4() -> Path:
    """For ``spark.driver.extraClassPath``."""
    return metastore_jars(HIVE_4) / CLIENT_OF_4


def pyspark_jars() -> Path:
    package = importlib.util.find_spec("pyspark")
    assert package
    assert package.origin
    return Path(package.origin).parent / "jars"


def metastore_jars(release: str) -> Path:
    if release == HIVE_2:
        return pyspark_jars()
    return maven_jars(f"hive-{release}", POM, artifact=ARTIFACTS[release], release=release)


class Metastores:
    """Each release is started when it is asked for; tests use databases of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = ExitStack()
        self._uris: dict[str, str] = {}

    def uri(self, release: str) -> str:
        if release not in self._uris:
            folder = self._folder / release
            folder.mkdir()
            self._uris[release] = self._started.enter_context(hive_metastore(folder, release))
        return self._uris[release]

    def close(self) -> None:
        self._started.close()


@contextmanager
def hive_metastore(folder: Path, release: str) -> Iterator[str]:
    """Its address; database and warehouse are in the folder."""
    configure(
        folder / "conf",
        {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/db;create=true",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"file:{folder}/warehouse",
            "hive.async.log.enabled": "false",
            **BY_ITSELF,
            **OWN_SETTINGS[release],
        },
    )
    port = find_free_port()
    main = ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
    with java_server(folder, f"{folder}/conf:{metastore_jars(release)}/*", main, port):
        yield f"thrift://127.0.0.1:{port}"


def configure(folder: Path, settings: Mapping[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    named = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    )
    (folder / "hive-site.xml").write_text(f"<configuration>{named}</configuration>")
