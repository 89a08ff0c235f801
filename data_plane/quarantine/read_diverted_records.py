"""Reads records that a quarantine holds for tables with trouble (SUSPEND-1), to give them back
(SUSPEND-6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, BooleanExpression, EqualTo, Or
from pyiceberg.table import Table

from headgate.control_protocol.commit_record import CommitRecord, Replayed
from headgate.control_protocol.identifiers import SinkName, TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.data_plane.quarantine.already_quarantined import range_filter
from headgate.data_plane.quarantine.rejected_records import TABLE
from headgate.kafka.push_source import Record
from headgate.tables.iceberg.catalog import translating_table_errors

MEANT_FOR = "table_name"
"""The quarantine's column with the table that could not take the record."""

_PLACE = ("topic", "topic_id", "partition", "offset")
_ROW = (*_PLACE, "timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Place:
    """Locates one record in the source."""

    at: TopicPartition
    topic_id: TopicId
    offset: int


class DivertedRecords:
    """Reads one sink's diverted records, below the offsets of its ``record`` in the quarantine.

    They are read at the head, which contains the sink's tag: through the record's offsets it holds
    all that the sink put in (PENDING-5), except what a person deleted since (COMPACTION-1).
    """

    def __init__(self, table: Table, sink: SinkName, branch: str, record: CommitRecord) -> None:
        self._table = table
        self._sink = sink
        self.head = table.metadata.refs[branch].snapshot_id
        self.record = record

    @property
    def has_table_column(self) -> bool:
        """Return whether the quarantine has the column that names the table."""
        return MEANT_FOR in self._table.schema().column_names

    def destination_tables(self) -> tuple[str, ...]:
        """Return the tables that some of the records were meant for."""
        result = self._scan(self._diverted_filter(), (MEANT_FOR,))
        return tuple(sorted(filter(None, pc.unique(result[MEANT_FOR]).to_pylist())))

    def places_for_table(self, table: str) -> tuple[Place, ...]:
        """Return those meant for the table, in order, each once, of topics that are unchanged."""
        rows = self._scan(self._table_filter(table), _PLACE).to_pylist()
        ends = self.record.offsets
        return tuple(
            Place(TopicPartition(topic, partition), TopicId(topic_id), offset)
            for topic, partition, offset, topic_id in sorted(
                {
                    (row["topic"], row["partition"], row["offset"], row["topic_id"])
                    for row in rows
                    if self._is_of_unchanged_topic(row)
                    and row["offset"] < ends.get(TopicPartition(row["topic"], row["partition"]), 0)
                }
            )
        )

    def read_records(
        self, table: str, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> Iterator[Record]:
        """Yield the records meant for the table within these ranges, byte by byte.

        A deleted topic's records had the same offsets: only those of topics that are unchanged.
        """
        anywhere = [range_filter(at, span) for at, span in ranges.items()]
        wanted = And(self._table_filter(table), Or(*anywhere) if anywhere[1:] else anywhere[0])
        rows = self._scan(wanted, _ROW)
        timestamps = rows["timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        for row, timestamp_us in zip(
            rows.drop_columns("timestamp").to_pylist(), timestamps, strict=True
        ):
            if not self._is_of_unchanged_topic(row):
                continue
            yield Record(
                topic=row["topic"],
                partition=row["partition"],
                offset=row["offset"],
                timestamp_ms=-1 if timestamp_us is None else timestamp_us // 1_000,
                value=row["value"],
                key=row["key"],
                headers=[(each["key"], each["value"]) for each in row["headers"] or ()],
            )

    def _is_of_unchanged_topic(self, row: Mapping[str, Any]) -> bool:
        known = self.record.topic_ids.get(row["topic"])
        return known is not None and row["topic_id"] == known

    def _table_filter(self, table: str) -> BooleanExpression:
        return And(self._diverted_filter(), EqualTo(term=MEANT_FOR, value=table))

    def _diverted_filter(self) -> BooleanExpression:
        ours = EqualTo(term="sink", value=str(self._sink))
        return And(ours, EqualTo(term="error_class", value=TABLE))

    def _scan(self, wanted: BooleanExpression, columns: tuple[str, ...]) -> pa.Table:
        with translating_table_errors(".".join(self._table.name())):
            return self._table.scan(wanted, columns, snapshot_id=self.head).to_arrow()


def is_given_back(place: Place, replayed: Replayed | None) -> bool:
    """Return whether the table has already been given the record back (SUSPEND-6)."""
    return replayed is not None and place.offset < replayed.next_offset_of(place.at, place.topic_id)
