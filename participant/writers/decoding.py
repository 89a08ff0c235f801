"""Fetched chunks into rows of a schema, and the count of what was read on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.ports import Batch, PartitionResult
from headgate.participant.fetch import Chunk
from headgate.participant.formats import names
from headgate.participant.formats.port import UndecodableRecords
from headgate.participant.formats.registry import ValueOptions, record_format
from headgate.participant.writers.aside import BAD_PART, BAD_VALUE, Aside
from headgate.participant.writers.plan import SourcePlan
from headgate.participant.writers.record_columns import RecordColumns


@dataclass(frozen=True, slots=True)
class Decoded:
    """``rows`` of the schema, and the records that they came from, in the same order."""

    rows: pa.RecordBatch
    records: Chunk


class Decoding:
    """One batch's records on their way into rows of ``schema``, whatever becomes of the rows.

    ``mapping``: the table's name mapping, when it has one. ``aside`` takes what becomes no row.
    Raises ``ConfigurationError`` for names or options that do not go together.
    """

    def __init__(
        self,
        source: SourcePlan,
        batch: Batch,
        schema: pa.Schema,
        mapping: str | None,
        *,
        aside: Aside,
    ) -> None:
        self._batch = batch
        self._aside = aside
        self._partitions = list(batch.ranges)
        self._schema = schema
        self._record_columns = RecordColumns(source, schema, self._partitions)
        self._options = ValueOptions.taken(source.format_options)
        self._format = record_format(source.format_name, self._options.of_format)
        self._read_schema = self._named(set(source.record_columns.values()), mapping)
        count = len(self._partitions)
        self._records = np.zeros(count, np.int64)
        self._bytes = np.zeros(count, np.int64)
        self._newest_ms = np.full(count, -1, np.int64)

    def _named(self, taken: set[str], mapping: str | None) -> pa.Schema:
        """The columns that values fill, and the names under which they are found there."""
        schema = pa.schema([field for field in self._schema if field.name not in taken])
        try:
            return names.named(schema, mapping, caseless=self._options.caseless)
        except ValueError as error:
            table = self._batch.table.table
            raise ConfigurationError(f"{table}: {error}", "rename one, or match by case") from error

    def decoded(self, chunk: Chunk) -> Decoded:
        """The chunk's records that become rows. Raises what ``aside`` raises about the others."""
        count = len(self._partitions)
        weights = np.bincount(chunk.places, chunk.lengths, count)
        self._bytes += weights.astype(np.int64)
        np.maximum.at(self._newest_ms, chunk.places, chunk.timestamps)
        decoded = self._rows(self._without_tombstones(self._aside.without_known(chunk)))
        self._records += np.bincount(decoded.records.places, minlength=count)
        return decoded

    def results(self) -> dict[TopicPartition, PartitionResult]:
        """What was read so far, as if it were all."""
        return {
            at: PartitionResult(
                range=self._batch.ranges[at],
                records=int(self._records[place]),
                quarantined=int(self._aside.quarantined[place]),
                skipped=int(self._aside.skipped[place]),
                bad=int(self._aside.bad[place]),
                bytes_read=int(self._bytes[place]),
                max_timestamp_ms=int(self._newest_ms[place])
                if self._newest_ms[place] >= 0
                else None,
            )
            for place, at in enumerate(self._partitions)
        }

    def _without_tombstones(self, chunk: Chunk) -> Chunk:
        if not chunk.values.array.null_count:
            return chunk
        empty = np.asarray(chunk.values.array.is_null())
        self._aside.tombstones(chunk, np.flatnonzero(empty))
        return chunk.where(~empty)

    def _rows(self, chunk: Chunk) -> Decoded:
        try:
            rows = self._format.decode(chunk.values, self._read_schema)
        except UndecodableRecords as error:
            rows = error.rest
            chunk = self._without(chunk, error.bad, BAD_VALUE)
        added, bad = self._record_columns.columns(chunk)
        columns = [added.get(field.name) for field in self._schema]
        filled = iter(rows.columns)
        rows = pa.RecordBatch.from_arrays(
            [next(filled) if column is None else column for column in columns], schema=self._schema
        )
        if bad:
            rows = rows.filter(pa.array(_others(chunk, bad)))
            chunk = self._without(chunk, bad, BAD_PART)
        return Decoded(rows, chunk)

    def _without(self, chunk: Chunk, bad: Mapping[int, str], error_class: str) -> Chunk:
        self._aside.take(chunk, bad, error_class)
        return chunk.where(_others(chunk, bad))


def _others(chunk: Chunk, bad: Mapping[int, str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    good = np.ones(len(chunk.offsets), np.bool_)
    good[list(bad)] = False
    return good
