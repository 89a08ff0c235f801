"""Describes how records change rows, by a sink file, and what to do with odd records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from headgate.control_protocol.quarantine_policy import Disposal

_ALIKE = frozenset({"json", "json-registry", "connect-json", "avro-registry", "glue-registry"})
"""Formats in which a connector encodes keys like values."""


PLACEHOLDER = "__debezium_unavailable_value"
"""What Debezium writes, unless told otherwise, for a value that the database did not log."""


class Envelope(StrEnum):
    """Says how a record tells which row it changes, and how."""

    PLAIN = "plain"
    """The value is the row, identified by its key; no value deletes it: compacted topics."""
    DEBEZIUM = "debezium"
    """``before``, ``after`` and ``op``, as Debezium's connectors write them."""
    FLATTENED = "flattened"
    """The row, with ``__deleted`` or ``__op``: Debezium's ExtractNewRecordState."""
    DMS = "dms"
    """``data`` and ``metadata`` of AWS DMS, or a row with ``Op``."""


class Tombstones(StrEnum):
    """Says what a record without a value does."""

    DELETE = "delete"
    SKIP = "skip"
    FAIL = "fail"

    @property
    def disposal(self) -> Disposal | None:
        """Return what becomes of such a record, where it does not delete."""
        return {Tombstones.SKIP: Disposal.SKIP, Tombstones.FAIL: Disposal.FAIL}.get(self)


class OnDelete(StrEnum):
    """Says what a record that deletes does to the row of its key."""

    REMOVE = "remove"
    MARK = "mark"
    """The row stays, with the time of the delete in a column (KEY-13)."""


class OnTruncate(StrEnum):
    """Says what happens to a record that reports that the source table was truncated."""

    FAIL = "fail"
    SKIP = "skip"


class UnavailableValue(StrEnum):
    """Says what happens to a row with a value that Debezium does not know."""

    FAIL = "fail"
    """The record is a bad one."""
    NULL = "null"
    """The column is null."""


@dataclass(frozen=True, slots=True)
class Changes:
    """How records change rows of a keyed table. ``key`` names its columns.

    ``deleted_at``: the column in which deletes mark rows (KEY-13); empty: they remove them.
    ``history``: each change adds a row, and replaces none (KEY-14).
    """

    key: tuple[str, ...]
    envelope: Envelope = Envelope.PLAIN
    tombstones: Tombstones = Tombstones.DELETE
    on_truncate: OnTruncate = OnTruncate.FAIL
    unavailable_value: UnavailableValue = UnavailableValue.FAIL
    unavailable_placeholder: str = PLACEHOLDER
    deleted_at: str = ""
    history: bool = False

    def reads_keys_like_values(self, format_name: str, message_key_column: str) -> bool:
        """Return whether message keys are read like values, because a connector writes both.

        ``message_key_column``: the one that takes the message's key, if any does.
        """
        connector = self.envelope is not Envelope.PLAIN and format_name in _ALIKE
        return connector and message_key_column not in self.key

    @property
    def delete_marking_setting(self) -> str:
        """Return the setting by which deletes are rows."""
        return "changes.history" if self.history else 'changes.on_delete = "mark"'

    @property
    def ignores_tombstones_after_deletes(self) -> bool:
        """Return whether a record without a value says nothing: it would replace the marked row of
        the delete before it by an empty one (KEY-13)."""
        return bool(self.deleted_at) and self.envelope is not Envelope.PLAIN

    @property
    def may_skip_records(self) -> bool:
        """Return whether a record may be in no table although it is not bad."""
        return self.envelope is not Envelope.PLAIN or self.tombstones is Tombstones.SKIP


# What routes may look at in a record that changes a row: what each event has. A record that creates
# a row has no row before, one that deletes none after; and what a flattened record that deletes has
# in its columns beyond the key may be anything.


_INSTEAD: Mapping[Envelope, str] = {
    Envelope.DEBEZIUM: "source.table or source.schema",
    Envelope.FLATTENED: "__table or __schema, which add.fields = table,schema of "
    "ExtractNewRecordState adds",
    Envelope.DMS: "metadata.table-name or metadata.schema-name",
}
_OF_ONE_EVENT = frozenset(
    {
        *(("op",), ("__op",), ("__deleted",), ("Op",)),
        *(("metadata", "operation"), ("metadata", "record-type")),
    }
)


def stable_fields_instead_of(envelope: Envelope, path: Sequence[str]) -> str:
    """Return the fields to look at instead; empty where this one is alike in each event."""
    if envelope is Envelope.PLAIN:
        return ""
    if envelope is Envelope.DEBEZIUM:
        is_constant = path[0] not in ("before", "after")
    else:
        is_constant = path[0].startswith("__") or (
            envelope is Envelope.DMS and path[0] == "metadata"
        )
    return "" if is_constant and tuple(path) not in _OF_ONE_EVENT else _INSTEAD[envelope]
