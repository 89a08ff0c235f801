"""Limits how long a transaction keeps others waiting, and how long anybody waits for the server.

A server that was stopped, or a proxy that lost its way, keeps its sockets open. The kernel goes on
acknowledging, so that no time-out of TCP ends the wait, and the server's own time-outs cannot. What
was sent may still be done later: of a COMMIT that was given up the outcome is unknown.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

PATIENCE_MS = 10_000
"""For a lock, and for a client that stalls while it has one."""

TRANSACTION_S = 120.0
"""For a transaction: less than a coordinator's turn may take before its process ends itself."""

COMMIT_S = 30.0
"""For COMMIT alone: it may still land after that, so that slow ones come to an end as well."""

DELIVERY_S = 3_600.0
"""For a delivery, which may be of much that was pending, and for which nobody waits."""

AUDIT_S = 24 * 3_600.0
"""For whoever reads all of a table."""


def limit_waits(connection: psycopg.Connection[Any], patience_ms: int) -> None:
    """Have the server end this transaction if it waits for a lock, or stalls, for so long."""
    for limit in ("lock_timeout", "idle_in_transaction_session_timeout"):
        connection.execute(f"SET LOCAL {limit} = {patience_ms}")


@contextmanager
def at_most(seconds: float, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Shut the connection's socket down when the block takes longer than this.

    Whoever waits for the server then fails at once: raises ``psycopg.OperationalError``.
    """
    over = threading.Event()
    with socket.socket(fileno=os.dup(connection.fileno())) as ours:

        def shut() -> None:
            over.set()
            with suppress(OSError):  # the server has closed it already
                ours.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, shut)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if over.is_set():
                raise psycopg.OperationalError(f"no answer within {seconds:g} s") from error
            raise
        finally:
            timer.cancel()
            timer.join()  # it must not shut another socket that gets the number
