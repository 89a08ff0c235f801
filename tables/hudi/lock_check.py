"""Checks the lock that the settings of a Hudi table name: it fences commits."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping

from headgate.control_protocol.errors import ConfigurationError, HudiUnsafe, Unreachable

LOCK = "hoodie.write.lock."
PROVIDER = f"{LOCK}provider"
URL = f"{LOCK}zookeeper.url"
BASE_PATH = f"{LOCK}zookeeper.base_path"
LOCK_KEY = f"{LOCK}zookeeper.lock_key"

_PACKAGE = "org.apache.hudi.client.transaction.lock."
_KNOW_THEIR_OWNER = {
    f"{_PACKAGE}ZookeeperBasedLockProvider": (URL, BASE_PATH),
    f"{_PACKAGE}ZookeeperBasedImplicitBasePathLockProvider": (URL,),
}
"""Locks that only their owner frees, or the end of its session; the settings that each needs."""

_PORT = 2181
_PORT_MAX = 65_535


def require_fencing_lock(
    table: str, lock_settings: Mapping[str, str], settings_section: str
) -> None:
    """Raise ``HudiUnsafe`` for a lock that does not fence, and for one that cannot be taken.

    Hudi itself would report a missing setting at each commit, and the commit would be tried again.
    """
    provider = lock_settings.get(PROVIDER, "")
    needed = _KNOW_THEIR_OWNER.get(provider)
    if needed is None:
        raise HudiUnsafe(
            f"{table}: {PROVIDER} is {provider or 'not set'}; a lock that others can free fences "
            "nobody",
            f"set it in {settings_section} to {next(iter(_KNOW_THEIR_OWNER))}, with {URL} and "
            f"{BASE_PATH}",
        )
    if missing := [key for key in needed if not lock_settings.get(key, "").strip()]:
        raise HudiUnsafe(
            f"{table}: {' and '.join(missing)} is not set, and {provider.rpartition('.')[2]} takes "
            "no lock without it",
            f"set it in {settings_section}, to what all writers of the table use",
        )
    list(parse_zookeeper_addresses(table, lock_settings[URL]))


def parse_zookeeper_addresses(table: str, url: str) -> Iterator[tuple[str, int]]:
    """Yield the hosts and ports before ZooKeeper's folder (``zk1:2181,zk2/folder``).

    Raises ``ConfigurationError``.
    """
    for address in url.partition("/")[0].split(","):
        host, separator, port = address.strip().rpartition(":")
        if not separator or port.endswith("]"):
            host, port = address.strip(), str(_PORT)
        if not host or not port.isdecimal() or int(port) > _PORT_MAX:
            raise ConfigurationError(
                f"{table}: {URL} is {url!r}, which has no host and port", "write zk1:2181,zk2:2181"
            )
        yield host.strip("[]"), int(port)


# Reaches the ZooKeeper whose lock Hudi's commits need, without taking the lock.


_ANSWER_S_MAX = 5.0
_ASKED = b"srvr"
"""ZooKeeper's only four-letter-word command that is allowed by default."""
_NOT_SERVING = "not currently serving"
_MODE = re.compile(r"^Mode: (\w+)$", re.MULTILINE)
_BYTES_MAX = 65_536


def check_lock_server(table: str, settings: Mapping[str, str]) -> str:
    """Return which server answers. Raises ``Unreachable`` if none does, ``ConfigurationError``."""
    failures = []
    for host, port in parse_zookeeper_addresses(table, settings.get(URL, "")):
        at = f"{host}:{port}"
        try:
            answer = _ask_zookeeper(host, port)
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


def _ask_zookeeper(host: str, port: int) -> str:
    """Return the server's report on itself; empty if it does not answer such requests."""
    with socket.create_connection((host, port), _ANSWER_S_MAX) as connection:
        try:
            connection.sendall(_ASKED)
            reply = b""
            while len(reply) < _BYTES_MAX and (part := connection.recv(4096)):
                reply += part
        except OSError:  # TLS, perhaps: that somebody takes connections is all that is known
            return ""
    return reply.decode(errors="replace")
