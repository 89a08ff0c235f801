"""Reads the last records that a sink has put into its quarantine, for people."""

from __future__ import annotations

from headgate.control_protocol.errors import HeadgateError
from headgate.operations.status_report import BadRecord
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.catalog import catalog_failure
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.unsent import UnsentRows

SHOWN = 5
_REASON_CHARACTERS_MAX = 300
_COLUMNS = ("topic", "partition", "offset", "error_class", "message", "epoch", "transaction")


def last_bad_records(settings: SinkSettings, lead: IcebergReader) -> tuple[BadRecord, ...]:
    """Return some of the newest commit that brought any, the last first.

    ``lead`` reads the sink's own table, whose catalog has the quarantine too. Without
    ``quarantine.excerpts`` the reason is its class. Raises ``HeadgateError``.
    """
    name = settings.quarantine.table
    rows = UnsentRows(lead.table.catalog, name, settings.name, settings.table.branch)
    try:
        found = rows.newest(SHOWN, _COLUMNS)
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


def _reason(settings: SinkSettings, error_class: str | None, message: str | None) -> str:
    """What others put into the quarantine may lack either."""
    said = [error_class or "", (message or "") if settings.quarantine.excerpts else ""]
    return settings.redacted(": ".join(filter(None, said)))[:_REASON_CHARACTERS_MAX]
