"""A ZooKeeper from the jars that PySpark brings: a lock provider that knows its owner."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from support.java_server import java_server

from headgate.operations.local_kafka.broker import find_free_port

JARS = Path(pyspark.__file__).parent / "jars"
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
ZK = "hoodie.write.lock.zookeeper."


class ZooKeeper:
    """One server, which can be killed and comes back at the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = find_free_port()
        self._life = ExitStack()
        self.start()

    def lock(self, session_ms: int = 20_000) -> dict[str, str]:
        """Hudi's settings: so long after its owner's last word a lock is free."""
        provider = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
        return {
            "hoodie.write.lock.provider": provider,
            f"{ZK}url": f"127.0.0.1:{self._port}",
            f"{ZK}port": str(self._port),
            f"{ZK}base_path": "/hudi",
            f"{ZK}lock_key": "trips",
            f"{ZK}session_timeout_ms": str(session_ms),
        }

    def start(self) -> None:
        settings, data = self._folder / "zoo.cfg", self._folder / "data"
        settings.write_text(
            f"tickTime=1000\ndataDir={data}\nclientPort={self._port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n"
        )
        main = [MAIN, str(settings)]
        self._life.enter_context(java_server(self._folder, f"{JARS}/*", main, self._port))

    def kill(self, *, forget: bool = False) -> None:
        """``forget``: with its disk, and every lock."""
        self._life.close()
        if forget:
            shutil.rmtree(self._folder / "data")


@contextmanager
def zookeeper(folder: Path) -> Iterator[ZooKeeper]:
    server = ZooKeeper(folder)
    try:
        yield server
    finally:
        server.kill()
