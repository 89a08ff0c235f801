"""Lets SQLite wait for no disk in the processes of the tests: a kill of a process loses nothing."""

from __future__ import annotations

import sqlite3

from sqlalchemy import Engine, event
from sqlalchemy.pool import ConnectionPoolEntry


@event.listens_for(Engine, "connect")
def _wait_for_no_disk(connection: object, _: ConnectionPoolEntry) -> None:
    """Leave to the operating system when it writes; only its own end would lose a commit."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")
