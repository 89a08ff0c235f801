"""What a sink file says of a keyed table: whether it can be (rules U1, U12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.control_protocol.errors import KeyUnfit
from headgate.coordinator.settings import RollbackPolicy
from headgate.sink.declaration import declared
from headgate.tables.iceberg.creation import key_ids

if TYPE_CHECKING:
    from headgate.sink.settings import SinkSettings


def check_keyed(settings: SinkSettings) -> None:
    """Raises ``KeyUnfit`` for what does not go together with a key of the table."""
    table = settings.table
    if settings.changes.index_memory_bytes < 1:
        raise KeyUnfit("changes.index_memory_bytes is below 1", "leave it out for 4 GiB")
    if not table.key:
        return
    if settings.tables:
        raise KeyUnfit("table.key is set beside [tables]", "routed tables have no key yet")
    if table.columns:
        key_ids(declared(table).schema(), table.key)
    places = table.record_columns
    if not (places.partition and places.offset):
        raise KeyUnfit(
            "table.key is set, but no column says which record a row is of",
            "set table.record_columns.partition and .offset",
        )
    topics = settings.source.topics
    if not places.topic and (len(topics) > 1 or any(name.startswith("^") for name in topics)):
        raise KeyUnfit(
            "table.key is set, and records of several topics go into the table",
            "set table.record_columns.topic",
        )
    if settings.transform:
        raise KeyUnfit(
            "table.key is set beside a transform",
            "a keyed table takes records as they are; remove [transform], or the key",
        )
    if settings.coordinator.on_rollback is RollbackPolicy.KEEP_OFFSETS:
        raise KeyUnfit(
            'coordinator.on_rollback = "keep-offsets" does not go with table.key',
            'a keyed table is rolled back with its offsets: "follow-table", or "fail"',
        )
    refuse_unfinished()


def refuse_unfinished() -> None:
    """Raise for every keyed table, for not all that they need is there yet."""
    raise KeyUnfit(
        "table.key is set, but this version does not fill keyed tables yet",
        "leave it out: every record adds a row, with its partition and offset beside it",
    )
