"""What deletes do to the rows of a keyed table, as its first claim stored it (rule KEY-13)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from pyiceberg.schema import Schema

from headgate.control_protocol.errors import ConfigurationError, DeletesChanged
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets

_CHARS_MAX = 3_500
"""Older Hive metastores hold 4,000 characters of a property."""
MISSING_COLUMN_ID = -1
"""In place of the id of a column that marks deletes and that the schema lacks."""


@dataclass(frozen=True, slots=True)
class DeleteChoice:
    """``column``: the id of the one in which deletes mark rows; ``None``: they remove them.

    ``before``: deletes below these offsets may have followed another choice; ``None``: any may.
    """

    column: int | None = None
    before: Offsets | None = field(default_factory=Offsets)

    @classmethod
    def from_property(cls, text: str | None) -> DeleteChoice:
        """Read the table property; no table had one before there was a choice."""
        if text is None:
            return cls()
        stored = json.loads(text)
        before = stored.get("before", {})
        return cls(stored["marks"], None if before is None else _offsets_of(before))

    @property
    def property_text(self) -> str:
        """Return the table property; with more offsets than it holds, any delete is doubtful."""
        known = None if self.before is None else _offsets_by_topic(self.before)
        text = self._property_text_with(known)
        return text if len(text) <= _CHARS_MAX else self._property_text_with(None)

    def _property_text_with(self, before_offsets: dict[str, dict[str, int]] | None) -> str:
        before = {} if before_offsets == {} else {"before": before_offsets}
        return json.dumps({"marks": self.column, **before})

    def with_column_from_offsets(self, column: int | None, offsets: Offsets) -> DeleteChoice:
        """Return the choice for the records from these offsets on."""
        if self.before is None:
            return DeleteChoice(column, None)
        higher = {at: max(offset, offsets.get(at, 0)) for at, offset in self.before.items()}
        return DeleteChoice(column, Offsets({**offsets, **higher}))


def mark_column_id_or_missing(schema: Schema, name: str) -> int | None:
    """Return the id of the column that marks deletes: ``None`` without a name.

    ``MISSING_COLUMN_ID`` if the schema has no column of this name.
    """
    if not name:
        return None
    return next((each.field_id for each in schema.fields if each.name == name), MISSING_COLUMN_ID)


def require_same_on_delete(
    table: str, schema: Schema, stored: DeleteChoice, column: int | None, *, filled: bool
) -> None:
    """Raise ``DeletesChanged`` if deletes did something else to a ``filled`` table so far."""
    if filled and stored.column != column:
        word = "remove" if column is None else "mark"
        raise DeletesChanged(
            f"in table {table} deletes {_describe_on_delete(schema, stored.column)} so far; as the "
            f"settings say, they would {_describe_on_delete(schema, column)}",
            f"put changes.on_delete back; or accept that: headgate resume SINK --accept "
            f"HG-297={word}. Rows that were deleted before stay as they are",
        )


def require_changed_on_delete(table: str, stored: DeleteChoice, column: int | None) -> None:
    """Raise ``ConfigurationError`` if there is nothing to accept."""
    if stored.column == column:
        raise ConfigurationError(
            f"deletes do to rows of table {table} what the settings say; nothing was changed",
            "accept only what the sink's own error names",
        )


def _describe_on_delete(schema: Schema, column: int | None) -> str:
    if column is None:
        return "remove rows"
    return f"mark rows in the column {schema.find_column_name(column) or column}"


def _offsets_by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    result: dict[str, dict[str, int]] = {}
    for at, offset in sorted(offsets.items()):
        result.setdefault(at.topic, {})[str(at.partition)] = offset
    return result


def _offsets_of(stored: dict[str, dict[str, int]]) -> Offsets:
    return Offsets(
        {
            TopicPartition(topic, int(partition)): offset
            for topic, some in stored.items()
            for partition, offset in some.items()
        }
    )
