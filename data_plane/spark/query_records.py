"""Decodes Kafka's records that a query hands over, in Spark's tasks, as those of any other sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.control_protocol.errors import ConfigurationError, RowsUnfit
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Batch, BatchNeeds
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.spark.query_rows import RowsWritten, write_and_yield_outcome
from headgate.data_plane.write.write_batch import write_chunks
from headgate.kafka.record_fetch import Chunk
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Integers

RECORD_COLUMNS = ("value", "topic", "partition", "offset", "timestamp")
"""Columns of Spark's Kafka source that every record has; ``key`` and ``headers`` are optional."""
SOURCE_COLUMNS = {*RECORD_COLUMNS, "timestampType", "key", "headers"}


def needed_source_columns(plan: WriterPlan) -> tuple[str, ...]:
    """Return the columns of Kafka's source that tasks need for this plan."""
    parts, source = plan.wanted_record_parts(), plan.source
    more = {
        "key": "key" in parts or source.feeds_keyed_tables,
        "headers": "headers" in parts or any(source.schema_id_headers),
    }
    return (*RECORD_COLUMNS, *(name for name, needed in more.items() if needed))


@dataclass(frozen=True, slots=True)
class RecordsWriter:
    """Writes a task's records into files of the table; picklable.

    ``batch``: with the ranges of which the table gets records. ``begins``: where the query's batch
    begins, which may be below: those records are left out (QUERY-6).
    """

    plan: WriterPlan
    batch: Batch
    begins: Offsets

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn records into one row of ``OUTCOMES``."""
        return write_and_yield_outcome(self.write, batches)

    def write(self, batches: Iterable[pa.RecordBatch]) -> RowsWritten:
        """Write the records. Raises as ``write_chunks``; then no file is left."""
        places = _Places(self.batch, self.begins)
        outcome = write_chunks(self.plan, self.batch, map(places.to_chunk_of_new_records, batches))
        if isinstance(outcome, BatchNeeds):
            raise ConfigurationError(
                f"{outcome.records} records have fields that the table lacks, and a query does not "
                "change its table",
                'set table.schema.unknown_fields = "ignore", or let headgate run add the columns',
            )
        results = outcome.partitions.values()
        rows, deletes = sum(r.records for r in results), sum(r.deleted for r in results)
        return RowsWritten(outcome.files, rows, deletes)


class _Places:
    """Tells of which range each record is."""

    def __init__(self, batch: Batch, begins: Offsets) -> None:
        spans = batch.ranges
        self._batch_begins = np.array(
            [begins.get(at, span.begin) for at, span in spans.items()], np.int64
        )
        self._range_begins = np.array([span.begin for span in spans.values()], np.int64)
        self._ends = np.array([span.end for span in spans.values()], np.int64)
        self._by_topic: dict[str, Integers] = {}
        for topic in {at.topic for at in spans}:
            known = {at.partition: place for place, at in enumerate(spans) if at.topic == topic}
            by_partition = np.full(max(known) + 2, -1, np.int64)  # the last: none of them
            by_partition[list(known)] = list(known.values())
            self._by_topic[topic] = by_partition

    def to_chunk_of_new_records(self, batch: pa.RecordBatch) -> Chunk:
        """Return the records that the table lacks. Raises ``RowsUnfit``."""
        for name in ("topic", "partition", "offset", "timestamp"):
            if batch.column(name).null_count:
                raise RowsUnfit(
                    f"{batch.column(name).null_count} records have no {name}",
                    "hand the columns of Spark's Kafka source over unchanged",
                )
        offsets = batch.column("offset").to_numpy()
        places = self._range_indexes_of(batch)
        inside = (
            (places >= 0) & (offsets >= self._batch_begins[places]) & (offsets < self._ends[places])
        )
        if not inside.all():
            row = int(np.argmin(inside))
            at = "{}/{}@{}".format(*(batch.column(n)[row].as_py() for n in RECORD_COLUMNS[1:4]))
            raise RowsUnfit(
                f"{int((~inside).sum())} records are none of this batch, as {at}",
                "hand the columns of Spark's Kafka source over unchanged",
            )
        values = batch.column("value").cast(pa.large_binary())
        times = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        names = batch.schema.names
        keys, headers = "key" in names, "headers" in names
        chunk = Chunk(
            values=Packed(values),
            lengths=pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False),
            places=places,
            offsets=offsets,
            timestamps=times.to_numpy() // 1000,
            keys=Packed(batch.column("key").cast(pa.large_binary())) if keys else None,
            headers=_headers_of(batch.column("headers")) if headers else None,
        )
        new = offsets >= self._range_begins[places]
        return chunk if new.all() else chunk.filter(new)

    def _range_indexes_of(self, batch: pa.RecordBatch) -> Integers:
        partitions = batch.column("partition").to_numpy()
        topics = batch.column("topic").dictionary_encode()
        codes = topics.indices.to_numpy()
        places = np.full(batch.num_rows, -1, np.int64)
        for code, topic in enumerate(topics.dictionary.to_pylist()):
            known = self._by_topic.get(topic)
            if known is not None:
                here = codes == code
                outside = (partitions[here] < 0) | (partitions[here] >= len(known))
                places[here] = known[np.where(outside, -1, partitions[here])]
        return places


def _headers_of(column: pa.Array) -> list[list[tuple[str, bytes | None]] | None]:
    """Return the headers of each record as a Kafka client has them."""
    return [
        None if headers is None else [(each["key"], each["value"]) for each in headers]
        for headers in column.to_pylist()
    ]
