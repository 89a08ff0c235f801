"""The choice what deletes do, as a table property (KEY-13)."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, TimestamptzType

from headgate.control_protocol.errors import ConfigurationError, DeletesChanged
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.tables.iceberg.upsert.on_delete_property import (
    DeleteChoice,
    mark_column_id_or_missing,
    require_changed_on_delete,
    require_same_on_delete,
)

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True), NestedField(7, "gone_at", TimestamptzType())
)
AT, OTHER = TopicPartition("a", 0), TopicPartition("a", 12)


def test_key_13_a_choice_is_read_as_it_was_written() -> None:
    removing = DeleteChoice.from_property(None)
    assert removing == DeleteChoice(None, Offsets())
    marking = removing.with_column_from_offsets(7, Offsets({AT: 5, OTHER: 3}))
    assert DeleteChoice.from_property(marking.property_text) == marking
    again = marking.with_column_from_offsets(None, Offsets({AT: 2, OTHER: 9}))
    assert again == DeleteChoice(None, Offsets({AT: 5, OTHER: 9}))
    assert DeleteChoice.from_property(DeleteChoice(7).property_text) == DeleteChoice(7)


def test_key_13_with_more_offsets_than_a_property_holds_every_delete_is_doubtful() -> None:
    many = Offsets({TopicPartition("a long name", n): 10**9 for n in range(400)})
    stored = DeleteChoice.from_property(DeleteChoice(7, many).property_text)
    assert stored == DeleteChoice(7, None)
    assert len(stored.property_text) < 100
    assert stored.with_column_from_offsets(None, many) == DeleteChoice(None, None)


def test_key_13_a_filled_table_keeps_its_choice_also_over_a_renamed_column() -> None:
    column = mark_column_id_or_missing(SCHEMA, "gone_at")
    assert (column, mark_column_id_or_missing(SCHEMA, "")) == (7, None)
    require_same_on_delete("t", SCHEMA, DeleteChoice(7), column, filled=True)
    require_same_on_delete("t", SCHEMA, DeleteChoice(), column, filled=False)
    for stored, wanted, why in (
        (
            DeleteChoice(),
            7,
            "remove rows so far; as the settings say, they would mark rows in the ",
        ),
        (DeleteChoice(7), None, "mark rows in the column gone_at so far.*would remove rows"),
        (DeleteChoice(9), 7, "mark rows in the column 9 so far.*in the column gone_at"),
    ):
        with pytest.raises(DeletesChanged, match=why):
            require_same_on_delete("t", SCHEMA, stored, wanted, filled=True)
    with pytest.raises(ConfigurationError, match="nothing was changed"):
        require_changed_on_delete("t", DeleteChoice(7), 7)
