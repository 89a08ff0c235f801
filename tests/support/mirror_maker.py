"""Runs Kafka's real MirrorMaker 2 from one broker to another, in a JVM of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from support.connect_worker import RUNTIME
from support.maven import maven_jars

from headgate.operations.java_installation import java_command

_POM = Path(__file__).with_name("connect-mirror-pom.xml")
_OFTEN = ("refresh.topics", "refresh.groups", "emit.checkpoints", "sync.group.offsets")
_STORED = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic")
_OF_CONNECT = ("config.storage", "offset.storage", "status.storage")


class MirrorMaker:
    """Mirrors a topic under its own name, and translates the offsets of a group.

    ``marks_every``: after so many records it notes which offset is which one there.
    """

    def __init__(
        self, home: Path, old: str, new: str, topic: str, group: str, *, marks_every: int
    ) -> None:
        self._jars = maven_jars(f"connect-mirror-{RUNTIME}", _POM, **{"kafka.version": RUNTIME})
        self._log = home / "mirror-maker.log"
        policy = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
        settings: dict[str, object] = {
            "clusters": "old, new",
            "old.bootstrap.servers": old,
            "new.bootstrap.servers": new,
            "old->new.enabled": "true",
            "old->new.topics": topic,
            "old->new.groups": group,
            "old->new.sync.group.offsets.enabled": "true",
            "new->old.enabled": "false",
            "replication.policy.class": policy,
            "replication.factor": 1,
            "offset.lag.max": marks_every,
            **{f"{what}.interval.seconds": 1 for what in _OFTEN},
            **{f"{what}.replication.factor": 1 for what in (*_STORED, *_OF_CONNECT)},
        }
        self._properties = home / "mirror-maker.properties"
        self._properties.write_text("".join(f"{key} = {v}\n" for key, v in settings.items()))

    def __enter__(self) -> Self:
        java = [java_command(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        main = ["org.apache.kafka.connect.mirror.MirrorMaker", str(self._properties)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*java, "-cp", f"{self._jars}/*", *main], stdout=log, stderr=subprocess.STDOUT
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(60)
