"""Asks the questions of ``headgate check`` about the receivers of lineage and signals."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headgate.config.report_settings import LineageSettings, SignalSettings
from headgate.control_protocol.errors import ConfigurationError, MissingRights, ReceiverAway
from headgate.operations.check.table import NotChecked

if TYPE_CHECKING:
    from headgate.kafka.cluster_queries import Cluster

_CONNECT_S = 5.0
_HTTP_PORT, _HTTPS_PORT = 80, 443


def check_receiver(
    section: str, given: LineageSettings | SignalSettings, cluster: Cluster | None
) -> str:
    """Check what can be known of a receiver without sending it anything.

    Raises ``ReceiverAway``, ``ConfigurationError``, ``MissingRights`` or ``NotChecked``.
    """
    if given.url:
        return _check_receiving_server(section, given.url)
    if given.topic:
        return _check_receiving_topic(section, given.topic, cluster)
    assert isinstance(given, LineageSettings), "the only one with a file"
    folder = Path(given.file).absolute().parent
    if not os.access(folder, os.W_OK):
        raise ConfigurationError(
            f"{section}.file: {folder} is no folder that this process may write to",
            "create it, or name another file",
        )
    return f"lines go to {given.file}"


def _check_receiving_server(section: str, url: str) -> str:
    found = urlsplit(url)
    host = found.hostname or ""
    port = found.port or (_HTTPS_PORT if found.scheme == "https" else _HTTP_PORT)
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise ReceiverAway(
            f"{section}.url ({host}:{port}): {error}", "the sink runs without it all the same"
        ) from error
    return f"{host}:{port} takes connections; nothing was sent"


def _check_receiving_topic(section: str, name: str, cluster: Cluster | None) -> str:
    if cluster is None:
        raise NotChecked("the brokers do not answer")
    return require_topic_rights(
        cluster,
        f"{section}.topic: {name}",
        name,
        missing_hint="create it",
        operations=("write", "describe"),
    )


def require_topic_rights(
    cluster: Cluster,
    what: str,
    name: str,
    *,
    operations: tuple[str, ...],
    missing_hint: str,
    purpose: str = "",
) -> str:
    """Return that records can be added to a topic; its messages begin with ``what`` it is.

    ``purpose``: what needs an operation that sending does not. Raises ``ConfigurationError`` if
    there is no such topic, and ``MissingRights``.
    """
    topic = cluster.describe_topic(name)
    if topic is None:
        raise ConfigurationError(f"{what} does not exist", missing_hint)
    if lacking := topic.known_missing_operations(*operations):
        raise MissingRights(
            f"{what}: not allowed to {', '.join(lacking)}",
            f"grant {join_operations(operations)} to the principal{purpose}",
        )
    return f"{name} may be written"


def join_operations(operations: tuple[str, ...]) -> str:
    """Return operations of a topic or group as people list them."""
    *most, last = (operation.upper() for operation in operations)
    return f"{', '.join(most)} and {last}" if most else last
