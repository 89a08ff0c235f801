"""The classes that a broker loads at its start, in an archive that the brokers of all tests share.

To load and verify them is a third of what a broker's start costs, and tests start a hundred. The
broker that all workers share makes the archive at its end, once for each Java and each Kafka; the
next run uses it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.spark_classes import archive_of

from headgate.operations.java_installation import user_cache_folder
from headgate.operations.local_kafka.broker import KAFKA_VERSION, EmbeddedKafka, ensure_broker_jars

OPTIONS = "JDK_JAVA_OPTIONS"
"""What each JVM reads that is started by the command ``java``."""


def archive() -> Path:
    """Where it is, or will be."""
    return archive_of("kafka", user_cache_folder() / f"kafka-{KAFKA_VERSION}")


def share() -> None:
    """Have each broker that starts from here on use it, if it is there; others pass it over."""
    if archive().exists() and str(archive()) not in os.environ[OPTIONS]:
        # What else is started in Java would say that these are not its own classes.
        quietly = "-Xlog:cds=off -Xlog:cds+dynamic=off"
        os.environ[OPTIONS] += f" -XX:SharedArchiveFile={archive()} {quietly}"


class ArchivingKafka(EmbeddedKafka):
    """Writes the classes that it has loaded when it ends."""

    def __init__(self, home: Path, draft: Path) -> None:
        super().__init__(home, ensure_broker_jars())
        self._draft = draft

    def _java_command(self, main: str, *arguments: str) -> list[str]:
        java, *others = super()._java_command(main, *arguments)
        kept = [f"-XX:ArchiveClassesAtExit={self._draft}"] if main == "kafka.Kafka" else []
        return [java, *kept, *others]


@contextmanager
def shared_kafka(home: Path) -> Iterator[EmbeddedKafka]:
    """A broker that makes the archive at its end, unless it is there."""
    draft = archive().with_suffix(f".{os.getpid()}")
    there = archive().exists()
    kafka = EmbeddedKafka(home, ensure_broker_jars()) if there else ArchivingKafka(home, draft)
    try:
        with kafka as broker:
            yield broker
        if draft.exists():
            draft.rename(archive())
    finally:
        draft.unlink(missing_ok=True)
