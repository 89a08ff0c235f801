"""A ZooKeeper from the jars that PySpark brings: a lock provider that knows its owner."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pyspark
from java_server import java_server

from headgate.operations.demo.broker import free_port

JARS = Path(pyspark.__file__).parent / "jars"
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


def zookeeper(folder: Path) -> AbstractContextManager[int]:
    """Its port on this machine, while it runs."""
    port = free_port()
    settings = folder / "zoo.cfg"
    settings.write_text(
        f"tickTime=1000\ndataDir={folder}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\nmaxClientCnxns=0\n"
    )
    return java_server(folder, f"{JARS}/*", [MAIN, str(settings)], port)
