"""Checks the lock that the settings of a Hudi table name: it fences commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.kind_errors import HudiUnsafe

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


def refuse_lock(table: str, given: Mapping[str, str], where: str) -> None:
    """Raise ``HudiUnsafe`` for a lock that does not fence, and for one that cannot be taken.

    Hudi itself would report a missing setting at each commit, and the commit would be tried again.
    """
    provider = given.get(PROVIDER, "")
    needed = _KNOW_THEIR_OWNER.get(provider)
    if needed is None:
        raise HudiUnsafe(
            f"{table}: {PROVIDER} is {provider or 'not set'}; a lock that others can free fences "
            "nobody",
            f"set it in {where} to {next(iter(_KNOW_THEIR_OWNER))}, with {URL} and {BASE_PATH}",
        )
    if missing := [key for key in needed if not given.get(key, "").strip()]:
        raise HudiUnsafe(
            f"{table}: {' and '.join(missing)} is not set, and {provider.rpartition('.')[2]} takes "
            "no lock without it",
            f"set it in {where}, to what all writers of the table use",
        )
    list(addresses(table, given[URL]))


def addresses(table: str, url: str) -> Iterator[tuple[str, int]]:
    """Yield the hosts and ports before ZooKeeper's folder (``zk1:2181,zk2/folder``).

    Raises ``ConfigurationError``.
    """
    for address in url.partition("/")[0].split(","):
        host, separator, port = address.strip().rpartition(":")
        if not separator or port.endswith("]"):
            host, port = address.strip(), str(_PORT)
        if not host or not port.isdigit():
            raise ConfigurationError(
                f"{table}: {URL} is {url!r}, which has no host and port", "write zk1:2181,zk2:2181"
            )
        yield host.strip("[]"), int(port)
