"""Reaches the ZooKeeper whose lock Hudi's commits need, without taking the lock."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from headgate.control_protocol.errors import Unreachable
from headgate.tables.hudi.lock import URL, addresses

_ANSWER_S_MAX = 5.0
_ASKED = b"srvr"
"""ZooKeeper's only four-letter-word command that is allowed by default."""
_NOT_SERVING = "not currently serving"
_MODE = re.compile(r"^Mode: (\w+)$", re.MULTILINE)
_BYTES_MAX = 65_536


def reach(table: str, settings: Mapping[str, str]) -> str:
    """Return which server answers. Raises ``Unreachable`` if none does, ``ConfigurationError``."""
    failures = []
    for host, port in addresses(table, settings.get(URL, "")):
        at = f"{host}:{port}"
        try:
            answer = _answer(host, port)
        except OSError as error:
            failures.append(f"{at}: {error}")
            continue
        if _NOT_SERVING in answer:
            failures.append(f"{at} serves no requests: too few of its servers are there")
            continue
        mode = _MODE.search(answer)
        how = f"answers ({mode[1]})" if mode else "takes connections"
        return f"ZooKeeper at {at} {how}; no lock was taken"
    raise Unreachable(
        f"the lock of Hudi table {table}: no ZooKeeper can be reached: {'; '.join(failures)}",
        f"start it, or correct {URL}; without it a sink commits nothing, and waits",
    )


def _answer(host: str, port: int) -> str:
    """Return the server's report on itself; empty if it does not answer such requests."""
    with socket.create_connection((host, port), _ANSWER_S_MAX) as connection:
        try:
            connection.sendall(_ASKED)
            found = b""
            while len(found) < _BYTES_MAX and (part := connection.recv(4096)):
                found += part
        except OSError:  # TLS, perhaps: that somebody takes connections is all that is known
            return ""
    return found.decode(errors="replace")
