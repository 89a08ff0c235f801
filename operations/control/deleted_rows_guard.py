"""Keeps commands from bringing back what a person deleted (rule COMPACTION-1).

A table that goes back to an older snapshot may hold deleted rows again, and so may one whose
records are read again: the source may still have them. Such a command is refused by name, unless a
person says that the deletion was a mistake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import DeletedBack, TableMissing
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.rows_deleted_by_people import DeletedRecords, ranges_read_again
from headgate.control_protocol.rows_deleted_by_people import (
    require_deleted_rows_stay_deleted as refuse_of_one,
)
from headgate.control_protocol.table_history import History, Newest
from headgate.operations.access.tables import open_every_routed_table, open_tables_for_reading
from headgate.runtime.sink_tables import SinkTables

BRING_BACK_HINT = (
    "choose a place behind that deletion; --bring-back-deleted does it all the same, for a "
    "deletion that was a mistake"
)
_HEAD = Newest(1, 2**63)


def require_deleted_not_read_again(
    settings: SinkSettings,
    before: Mapping[TopicPartition, int],
    after: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, TopicId],
) -> None:
    """Raise ``DeletedBack`` if records whose rows people deleted would be read again.

    ``before``: the next offsets until now, where they are known; ``after``: those to come. Raises
    what opening the tables raises.
    """
    if again := ranges_read_again(before, after):
        with open_tables_for_reading(settings) as tables:
            for name, deleted in _read_deletions(tables):
                refuse_of_one(name, deleted, again, topic_ids, hint=BRING_BACK_HINT)


def raise_deletions_unknown(name: str) -> NoReturn:
    """Raise ``DeletedBack`` where the table's list of what was deleted is gone with the table."""
    raise DeletedBack(
        f"{name}: records are read again, and the table that knew which of their rows people had "
        "deleted (headgate delete) is gone",
        "--bring-back-deleted says that none were deleted, or that they may come back",
    )


def _read_deletions(tables: SinkTables) -> Iterator[tuple[str, DeletedRecords]]:
    """Yield what people deleted from each table of the sink, and from its quarantine."""
    settings, history = tables.settings, tables.reader.history()
    yield tables.name, history.deleted
    if settings.tables:
        with open_every_routed_table(tables, history) as every:
            for error in every.unread.values():  # nothing tells what was deleted from it
                raise error
            for name, secondary in every.tables.items():
                yield name, secondary.reader.history(_HEAD).deleted
    if settings.quarantine.keeps_rejected_records:
        name = settings.quarantine.table
        try:
            with tables.open_for_reading(name) as quarantine:
                deleted = quarantine.reader.history(_HEAD).deleted
        except TableMissing:
            if _may_have_filled_quarantine(history, name):
                raise
        else:
            yield name, deleted


def _may_have_filled_quarantine(history: History, name: str) -> bool:
    """Return whether a start has used a quarantine of this name, as far as records tell: only a
    start creates one."""
    records = [commit.record for commit in history.commits]
    if history.current_record:
        records.append(history.current_record)
    return any(record.secondary_uuid(name) is not None for record in records)
