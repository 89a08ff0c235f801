"""Waits while a person wants the sink stopped: looks at the table now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing

from headgate.control_protocol.errors import HeadgateError, RetryLater
from headgate.sink.catalog_place import refuse_catalog, sqlite_file
from headgate.sink.catalogs import open_catalog
from headgate.sink.followers import iceberg_table
from headgate.sink.settings import SinkSettings

LOOKED_AT_S = 3.0
_TURN_S = 0.25


def stopped(settings: SinkSettings) -> bool:
    """Return whether a person wants the sink stopped, as its table says.

    Raises what opening the table raises; a catalog that does not exist yet stops nobody.
    """
    refuse_catalog(settings.catalog)
    database = sqlite_file(settings.catalog)
    if database and not database.exists():
        return False
    catalog = open_catalog(settings)
    with closing(catalog):
        record = iceberg_table(settings, catalog, settings.table.identifier).read().record
        return record is not None and record.stopped


def may_work(settings: SinkSettings) -> bool:
    """Return whether to take part; what cannot be read now shows itself when the sink is opened."""
    try:
        return not stopped(settings)
    except HeadgateError:
        return True


def rest(settings: SinkSettings, stop: threading.Event, turned: Callable[[], None]) -> None:
    """Return when a person has started the sink, or ``stop`` is set.

    While the table cannot be reached it stays as it is.
    """
    due_s = time.monotonic() + LOOKED_AT_S
    while not stop.wait(_TURN_S):
        turned()
        if time.monotonic() < due_s:
            continue
        try:
            if not stopped(settings):
                return
        except RetryLater:
            pass
        except HeadgateError:
            return  # the table is gone, or refused: opening the sink says so
        due_s = time.monotonic() + LOOKED_AT_S
