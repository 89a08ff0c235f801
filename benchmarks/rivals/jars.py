"""Fetches the rivals' jars once per user: with PySpark's Ivy, and Flink itself with pip.

PyPI's ``apache-flink-libraries`` is the whole of Flink in an archive, of which only the jars are
used.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from headgate.operations.java_installation import ensure_jars, user_cache_folder

CONNECT, FLINK, HADOOP = "3.9.2", "2.1.3", "3.4.3"
CONNECT_ICEBERG = "1.12.0"
# The newest that has a runtime for a Flink; 2.1 is the newest Flink that has one.
FLINK_ICEBERG = "1.11.0"
REST_AWS = "1.11.0"  # of the server's own release
_LOGGING = "org.slf4j:slf4j-simple:1.7.36"
_AWS = ["aws", "aws-bundle"]
_SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"
_HADOOP = [f"org.apache.hadoop:hadoop-client-{part}:{HADOOP}" for part in ("api", "runtime")]


def connect_jars() -> Path:
    """Return Kafka Connect's own jars."""
    coordinates = [f"org.apache.kafka:connect-{part}:{CONNECT}" for part in ("runtime", "json")]
    return ensure_jars(user_cache_folder() / f"connect-{CONNECT}", [*coordinates, _LOGGING])


def connect_plugin_jars(*, store: str = "") -> Path:
    """Return Iceberg's sink connector with what it needs for an SQLite catalog and local files.

    ``store``: and for this object store.
    """
    parts = ["kafka-connect", "kafka-connect-transforms", "core", "parquet", "orc"]
    parts += _AWS if store else []
    coordinates = [f"org.apache.iceberg:iceberg-{part}:{CONNECT_ICEBERG}" for part in parts]
    folder = user_cache_folder() / f"connect-iceberg-{CONNECT_ICEBERG}{store and '-s3'}" / "plugin"
    return ensure_jars(folder, [*coordinates, *_HADOOP, _SQLITE])


def aws_jars(version: str) -> Path:
    """Return what a release of Iceberg needs for S3."""
    coordinates = [f"org.apache.iceberg:iceberg-{part}:{version}" for part in _AWS]
    coordinates.append("dev.failsafe:failsafe:3.3.2")
    return ensure_jars(
        user_cache_folder() / f"iceberg-aws-{version}", coordinates, transitive=False
    )


def flink_jars(*, store: str = "") -> list[Path]:
    """Return folders with Flink's jars, and with its connectors for Kafka and Iceberg.

    ``store``: and with those for this object store.
    """
    coordinates = [
        "org.apache.flink:flink-sql-connector-kafka:4.0.1-2.0",
        f"org.apache.iceberg:iceberg-flink-runtime-{FLINK.rpartition('.')[0]}:{FLINK_ICEBERG}",
        "commons-logging:commons-logging:1.3.0",
        "org.slf4j:slf4j-api:1.7.36",
        *(_LOGGING, _SQLITE, *_HADOOP),
    ]
    # Resolving the connectors' dependencies would fetch Flink a second time, in pieces.
    connectors = ensure_jars(
        user_cache_folder() / f"flink-{FLINK}-iceberg-{FLINK_ICEBERG}",
        coordinates,
        transitive=False,
    )
    aws = [aws_jars(FLINK_ICEBERG)] if store else []
    return [_flink_itself(user_cache_folder() / f"flink-{FLINK}"), connectors, *aws]


def _flink_itself(folder: Path) -> Path:
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wanted = f"apache-flink-libraries=={FLINK}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", scratch]
        subprocess.run([*pip, wanted], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        jars = Path(scratch, "jars")
        jars.mkdir()
        with tarfile.open(archive) as packed:
            for member in packed:
                name = Path(member.name).name
                content = packed.extractfile(member)
                # Its log4j is left out: slf4j-simple is used here.
                if content and "/lib/flink-" in member.name and name.endswith(".jar"):
                    with (jars / name).open("wb") as out:
                        shutil.copyfileobj(content, out)
        jars.rename(folder)
    return folder
