"""Reads records that a quarantine holds for tables with trouble (SUSPEND-1), to give them back
(SUSPEND-6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, BooleanExpression, EqualTo, Or
from pyiceberg.table import Table
from pyroaring import BitMap64

from headgate.control_protocol.commit_record import CommitRecord, Replayed
from headgate.control_protocol.identifiers import SinkName, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.data_plane.batch.record_numbers import bitmap_of
from headgate.data_plane.quarantine.already_quarantined import range_filter
from headgate.data_plane.quarantine.rejected_records import TABLE
from headgate.kafka.push_source import Record
from headgate.tables.iceberg.catalog import translating_table_errors

MEANT_FOR = "table_name"
"""The quarantine's column with the table that could not take the record."""

_PARTITION = ("topic", "topic_id", "partition")
_ROW = (*_PARTITION, "offset", "timestamp", "key", "value", "headers")
_OFFSETS_END = 2**63


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
        batches = self._scan(self._diverted_filter(), (MEANT_FOR,))
        tables = {name for each in batches for name in pc.unique(each[MEANT_FOR]).to_pylist()}
        return tuple(sorted(filter(None, tables)))

    def offsets_for_table(self, table: str) -> dict[TopicPartition, BitMap64]:
        """Return where the records meant for the table are in the source, of topics that are
        unchanged. There may be millions: nothing is held of each but its bit."""
        found: dict[TopicPartition, BitMap64] = {}
        for batch in self._scan(self._table_filter(table), (*_PARTITION, "offset")):
            for row, offsets in offsets_by_columns(batch, _PARTITION):
                if self._is_of_unchanged_topic(row):
                    at = TopicPartition(row["topic"], row["partition"])
                    found.setdefault(at, BitMap64()).update(offsets)
        for at, there in found.items():
            there.remove_range(self.record.offsets.get(at, 0), _OFFSETS_END)
        return {at: found[at] for at in sorted(found) if found[at]}

    def offsets_not_given_back(
        self, offsets: Mapping[TopicPartition, BitMap64], replayed: Replayed | None
    ) -> dict[TopicPartition, BitMap64]:
        """Return those that the table has not been given back yet (SUSPEND-6)."""
        left = {at: there.copy() for at, there in offsets.items()}
        if replayed:
            for at, there in left.items():
                there.remove_range(0, replayed.next_offset_of(at, self.record.topic_ids[at.topic]))
        return {at: there for at, there in left.items() if there}

    def read_records(
        self, table: str, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> Iterator[Record]:
        """Yield the records meant for the table within these ranges, byte by byte.

        A deleted topic's records had the same offsets: only those of topics that are unchanged.
        """
        anywhere = [range_filter(at, span) for at, span in ranges.items()]
        wanted = And(self._table_filter(table), Or(*anywhere) if anywhere[1:] else anywhere[0])
        for batch in self._scan(wanted, _ROW):
            timestamps_us = batch["timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            for row, timestamp_us in zip(
                batch.drop_columns(["timestamp"]).to_pylist(),
                timestamps_us.to_pylist(),
                strict=True,
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

    def _scan(
        self, wanted: BooleanExpression, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        with translating_table_errors(".".join(self._table.name())):
            scan = self._table.scan(wanted, columns, snapshot_id=self.head)
            yield from scan.to_arrow_batch_reader()


def offsets_by_columns(
    batch: pa.RecordBatch, columns: Sequence[str]
) -> Iterator[tuple[Mapping[str, Any], BitMap64]]:
    """Yield each combination of values that the columns have, with the offsets of its rows."""
    grouped = pa.Table.from_batches([batch]).group_by(list(columns)).aggregate([("offset", "list")])
    for row, offsets in zip(
        grouped.select(columns).to_pylist(), grouped["offset_list"], strict=True
    ):
        yield row, bitmap_of(offsets.values)
