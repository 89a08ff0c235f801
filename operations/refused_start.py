"""Finds out why a sink that has never committed would be refused at its start."""

from __future__ import annotations

from headgate.control_protocol.errors import HeadgateError, RetryLater, TableMissing
from headgate.operations.table_access import opened_catalog, vanished
from headgate.sink.kinds import other_kind, wanted_table
from headgate.sink.preconditions import refuse_layout
from headgate.sink.settings import SinkSettings
from headgate.sink.starting import refuse_apart, refuse_new, refuse_there


def refused_start(settings: SinkSettings) -> HeadgateError | None:
    """Return the error that a first start would stop with at the table, or at its future place.

    Such a start leaves no notice, since there is no control topic yet. Nothing is written. ``None``
    too if something does not answer: that is reported by itself.
    """
    try:
        if kind := other_kind(settings):
            refuse_layout(kind.file_schema(wanted_table(settings)), settings)
        else:
            with opened_catalog(settings) as catalog:
                refuse_apart(catalog, settings)
                refuse_there(catalog, settings)
    except TableMissing:
        return vanished(settings) or _refused_new(settings)
    except RetryLater:
        return None
    except HeadgateError as error:
        return error
    return None


def _refused_new(settings: SinkSettings) -> HeadgateError | None:
    try:
        refuse_new(settings)
    except HeadgateError as error:
        return error
    return None
