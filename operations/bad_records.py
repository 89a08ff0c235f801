"""Reads the last records that a sink has put into its quarantine, for people."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.table_history import Newest, TableReader
from headgate.operations.follower_access import opened_follower
from headgate.operations.status_report import BadRecord
from headgate.operations.table_access import iceberg_of
from headgate.sink.settings import SinkSettings
from headgate.sink.table_settings import ICEBERG
from headgate.tables.iceberg.catalog import catalog_failure
from headgate.tables.iceberg.unsent import ROWS_LOOKED_AT, UnsentRows

SHOWN = 5
_REASON_CHARACTERS_MAX = 300
_COMMITS_LOOKED_AT = 50
_ANY_TIME_MS = 2**62
_COLUMNS = ("topic", "partition", "offset", "error_class", "message", "epoch", "transaction")


def last_bad_records(settings: SinkSettings, lead: TableReader) -> tuple[BadRecord, ...]:
    """Return some of the newest commit that brought any, the last first.

    ``lead`` reads the sink's own table. Without ``quarantine.excerpts`` the reason is its class.
    Raises ``HeadgateError``.
    """
    name = settings.quarantine.table
    try:
        found = _newest(settings, lead)
    except HeadgateError:
        raise
    except Exception as error:
        raise catalog_failure(error, f"table {name} cannot be read") from error
    return tuple(
        BadRecord(
            str(row["topic"]),
            int(row["partition"]),
            int(row["offset"]),
            _reason(settings, row["error_class"], row["message"]),
            f"{row['epoch']}.{row['transaction']}",
        )
        for row in reversed(found)
    )


def _newest(settings: SinkSettings, lead: TableReader) -> list[dict[str, Any]]:
    name = settings.quarantine.table
    if settings.table.type == ICEBERG:
        catalog = iceberg_of(lead).table.catalog
        unsent = UnsentRows(catalog, name, settings.name, settings.table.branch)
        return unsent.newest(SHOWN, _COLUMNS)
    with opened_follower(settings, lead, name) as follower:
        reader = follower.reader
        commits = reader.history(Newest(_COMMITS_LOOKED_AT, _ANY_TIME_MS)).commits
        brought = [commit for commit in commits if commit.added_records]
        paths = {path for path, _ in reader.added(brought[-1]) or ()} if brought else set[str]()
        _, files = reader.scan(_COLUMNS)
        batches = (batch for file in files if file.path in paths for batch in file.batches())
        rows = (row for batch in batches for row in batch.to_pylist())
        return list(deque(islice(rows, ROWS_LOOKED_AT), maxlen=SHOWN))


def _reason(settings: SinkSettings, error_class: str | None, message: str | None) -> str:
    """What others put into the quarantine may lack either."""
    said = [error_class or "", (message or "") if settings.quarantine.excerpts else ""]
    return settings.redacted(": ".join(filter(None, said)))[:_REASON_CHARACTERS_MAX]
