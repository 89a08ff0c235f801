"""Finds out why a sink that has never committed would be refused at its start."""

from __future__ import annotations

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import HeadgateError, RetryLater, TableMissing
from headgate.operations.access.tables import error_of_missing_table
from headgate.runtime.sink_tables import open_tables_read_only
from headgate.runtime.start_checks import require_creatable


def find_start_error(settings: SinkSettings) -> HeadgateError | None:
    """Return the error that a first start would stop with at the table, or at its future place.

    Such a start leaves no notice, since there is no control topic yet. Nothing is written. ``None``
    too if something does not answer: that is reported by itself.
    """
    try:
        with open_tables_read_only(settings) as tables:
            tables.require_fit_table()
    except TableMissing:
        if missing := error_of_missing_table(settings):
            return missing
    except RetryLater:
        return None
    except HeadgateError as error:
        return error
    else:
        return None
    try:
        require_creatable(settings)
    except HeadgateError as error:
        return error
    return None
