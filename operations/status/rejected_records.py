"""Reads the last records that a sink put into its quarantine, for people."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.table_history import Newest, TableReader
from headgate.operations.status.report import RejectedRecord
from headgate.runtime.sink_tables import SinkTables, translate_table_error

SHOWN = 5
_REASON_CHARACTERS_MAX = 300
_ROWS_LOOKED_AT = 5_000
_COMMITS_LOOKED_AT = 50
_ANY_TIME_MS = 2**62
_ROWS_SOUGHT_AMONG = 100_000
_COLUMNS = ("topic", "partition", "offset", "error_class", "message", "epoch", "transaction")


def read_newest_rejected_records(tables: SinkTables) -> tuple[RejectedRecord, ...]:
    """Return some records of the newest commit that added any, the last first.

    Without ``quarantine.excerpts`` the reason is only its class. Raises ``HeadgateError``.
    """
    settings, name = tables.settings, tables.settings.quarantine.table
    excerpts = settings.quarantine.excerpts
    try:
        rows = _read_newest_rejected_rows(tables)
    except HeadgateError:
        raise
    except Exception as error:
        raise translate_table_error(error, f"table {name} cannot be read") from error
    return tuple(
        RejectedRecord(
            str(row["topic"]),
            int(row["partition"]),
            int(row["offset"]),
            settings.redact(_reason_of(row, excerpts=excerpts))[:_REASON_CHARACTERS_MAX],
            f"{row['epoch']}.{row['transaction']}",
        )
        for row in reversed(rows)
    )


def _read_newest_rejected_rows(tables: SinkTables) -> list[dict[str, Any]]:
    settings, name = tables.settings, tables.settings.quarantine.table
    if unsent := tables.unsent_dead_letters(name):
        return list(unsent.last_rows_of_newest_commit_with_rows(SHOWN, _COLUMNS, _ROWS_LOOKED_AT))
    with tables.open_for_reading(name) as secondary:
        reader = secondary.reader
        commits = reader.history(Newest(_COMMITS_LOOKED_AT, _ANY_TIME_MS)).commits
        brought = [commit for commit in commits if commit.added_records]
        if not brought:
            return []
        there, paths = (
            reader.live_files(),
            {path for path, _ in reader.added_files(brought[-1]) or ()},
        )
        if paths & {file.path for file in there}:
            rows = _read_rows(reader, _COLUMNS, paths)
            return list(deque(islice(rows, _ROWS_LOOKED_AT), maxlen=SHOWN))
        if sum(file.records for file in there) > _ROWS_SOUGHT_AMONG:
            return []
        return select_rows_of_newest_commit(
            _read_rows(reader, (*_COLUMNS, "sink"), None), settings.name
        )


def _read_rows(
    reader: TableReader, columns: Sequence[str], paths: Collection[str] | None
) -> Iterator[dict[str, Any]]:
    _, files = reader.scan(columns)
    for file in files:
        if paths is None or file.path in paths:
            for batch in file.batches():
                yield from batch.to_pylist()


def select_rows_of_newest_commit(
    rows: Iterator[dict[str, Any]], sink: SinkName
) -> list[dict[str, Any]]:
    """Select the newest rows by their own columns, for a table that cannot list committed files."""
    newest, kept = (0, -1), deque[dict[str, Any]](maxlen=SHOWN)
    for row in rows:
        transaction = (row["epoch"] or 0, row["transaction"] or 0)
        if row["sink"] != sink or transaction < newest:
            continue
        if transaction > newest:
            newest = transaction
            kept.clear()
        kept.append(row)
    return list(kept)


def _reason_of(row: Mapping[str, Any], *, excerpts: bool) -> str:
    """Build the reason; rows that others put into the quarantine may lack either part."""
    parts = [row["error_class"] or "", (row["message"] or "") if excerpts else ""]
    return ": ".join(filter(None, parts))
