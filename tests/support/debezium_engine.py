"""Debezium's embedded engine between a real PostgreSQL and a topic: jars from Maven, one JVM.

Its connector has the settings that docs/guides/upserts-and-deletes.md shows.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import pytest
from repository.tree import ROOT

from headgate.control_protocol.errors import Unreachable
from headgate.operations.child_process import (
    kill_child_group_and_wait,
    start_child_killed_with_parent,
)
from headgate.operations.java_installation import ensure_jars, require_java, user_cache_folder

VERSION = "3.0.8.Final"
_JARS = (
    f"io.debezium:debezium-embedded:{VERSION}",
    f"io.debezium:debezium-connector-postgres:{VERSION}",
    "io.apicurio:apicurio-registry-utils-converter:2.5.11.Final",
    "org.slf4j:slf4j-simple:1.7.36",
)
_PAGE = (ROOT / "docs/guides/upserts-and-deletes.md").read_text()
CONNECTOR, ONE_TOPIC = re.findall(r"```properties\n(.*?)```", _PAGE, re.DOTALL)
_MAIN = Path(__file__).parents[1] / "integration" / "DebeziumToKafka.java"


def debezium_jars() -> Path:
    """Skips where they cannot be had."""
    try:
        return ensure_jars(user_cache_folder() / f"debezium-{VERSION}-avro", _JARS)
    except Unreachable as error:
        pytest.skip(f"no Debezium here: {error}")


class Debezium:
    """One engine. As a context manager it leaves no process behind; killed, it goes on where its
    file of offsets says, so that records come again.

    ``topic`` takes all records; without it each goes where Debezium sends it. With the address of
    a ``registry`` they are Avro, as Connect's converters write it, and else JSON. ``more`` settings
    come after those of the page.
    """

    def __init__(
        self,
        home: Path,
        database: str,
        *,
        bootstrap: str,
        topic: str = "",
        registry: str = "",
        more: str = "",
    ) -> None:
        self._home = home
        at = urlsplit(database)
        settings = {
            "name": "engine",
            "database.hostname": at.hostname,
            "database.port": at.port,
            "database.user": at.username,
            "database.password": "",
            "database.dbname": at.path.removeprefix("/"),
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": home / "debezium.offsets",
            "offset.flush.interval.ms": 500,
            "poll.interval.ms": 50,
        }
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        (home / "debezium.properties").write_text(CONNECTOR + lines + more)
        to = (bootstrap, topic, registry) if registry else (bootstrap, topic)
        self._arguments = (home / "debezium.properties", *to)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        jars = f"{debezium_jars()}/*"
        java = [require_java(), "-Xmx384m", "-XX:+UseSerialGC", "-cp", jars, _MAIN]
        with (self._home / "debezium.log").open("ab") as log:
            self._process = start_child_killed_with_parent(
                [*java, *self._arguments], log, self._home
            )

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            kill_child_group_and_wait(process)

    @property
    def log(self) -> str:
        return (self._home / "debezium.log").read_text(errors="replace")

    def require_alive(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.log[-4_000:]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
