"""Reads the keys of a keyed table's files, and the source of their records, batch by batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from headgate.control_protocol.commit_record import PartitionCohorts, cohort_of_partition
from headgate.control_protocol.errors import KeysUnreadable
from headgate.tables.iceberg.parquet_column_reader import read_column_batches
from headgate.tables.iceberg.upsert.key_files import OFFSET, PARTITION, TOPIC
from headgate.tables.iceberg.upsert.key_index import FileKeys, KeyHash, concat_keys
from headgate.tables.iceberg.upsert.position_deletes import Target
from headgate.tables.storage.parquet_integrity import read_whole_file, reread_and_raise_if_damaged

Numbers = npt.NDArray[np.signedinteger[Any]]

UNKNOWN = -1
_PARTITION_BITS = 32
_PARTITIONS = 2**_PARTITION_BITS - 1


@dataclass(slots=True)
class Sources:
    """Numbers the partitions that records come from, during one coordinator's life. Thread-safe.

    ``cohorts``: which of them are younger than others (KEY-8).
    """

    cohorts: PartitionCohorts = field(default_factory=dict)
    _numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    _places: list[tuple[str, int]] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def intern_source(self, topic: str, partition: int) -> int:
        at = topic, partition
        with self._lock:
            if at not in self._numbers:
                self._numbers[at] = len(self._places)
                self._places.append(at)
            return self._numbers[at]

    def describe_source(self, number: int) -> str:
        topic, partition = self._places[number]
        return f"{topic}/{partition}" if topic else f"partition {partition}"

    def partition_cohorts_of(self, numbers: Numbers) -> Numbers:
        """Return the generations of sources; a higher one is younger, within a topic."""
        if not self.cohorts:
            return np.zeros(len(numbers), np.int64)
        found = [cohort_of_partition(self.cohorts, *place) for place in self._places]
        return np.array(found, np.int64)[numbers]

    def younger_partition_mask(
        self, sources: Numbers, other_sources: Numbers
    ) -> npt.NDArray[np.bool_]:
        """Return where the first source is a younger partition than the second, of one topic."""
        if not self.cohorts:
            return np.zeros(len(sources), np.bool_)
        topics = np.array([topic for topic, _ in self._places])
        together: npt.NDArray[np.bool_] = topics[sources] == topics[other_sources]
        return together & (
            self.partition_cohorts_of(sources) > self.partition_cohorts_of(other_sources)
        )

    def intern_sources(
        self, topics: pa.Array | None, partitions: pa.Array
    ) -> npt.NDArray[np.int32]:
        """Return the numbers; ``UNKNOWN`` for a row without coordinates, written by others."""
        parts = pc.cast(partitions, pa.int64())
        if topics is None:
            topics = pa.nulls(len(parts), pa.string())
            named = pa.scalar(value=True)
        else:
            named = pc.is_valid(topics)
        known = pc.and_(named, pc.is_valid(parts)).to_numpy(zero_copy_only=False)
        names = pc.cast(topics, pa.string()).fill_null("").dictionary_encode()
        codes = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        values = parts.fill_null(0).to_numpy(zero_copy_only=False)
        result = np.full(len(values), UNKNOWN, np.int32)
        texts = names.dictionary.to_pylist()
        # One number for each pair, by a hash: sorting pairs took most of a cold start.
        pairs = pa.array(codes << _PARTITION_BITS | values).dictionary_encode()
        found = [
            self.intern_source(texts[pair >> _PARTITION_BITS], pair & _PARTITIONS)
            for pair in pairs.dictionary.to_pylist()
        ]
        places = pairs.indices.to_numpy(zero_copy_only=False)
        result[known] = np.array(found, np.int32)[places][known]
        return result


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table's key, by field ids and types, and of its records' coordinates."""

    key: tuple[int, ...]
    types: tuple[pa.DataType, ...]
    partition: int
    offset: int
    topic: int | None = None

    @classmethod
    def from_schema(
        cls, schema: Schema, key: Sequence[int], partition_offset_topic: Sequence[str]
    ) -> Columns:
        """Find the columns; ``partition_offset_topic``: their names, the last one may be empty."""
        columns = schema_to_pyarrow(Schema(*(schema.find_field(of) for of in key)))
        ids = [
            schema.find_field(name).field_id if name else None for name in partition_offset_topic
        ]
        partition, offset, topic = ids
        assert partition is not None
        assert offset is not None
        return cls(tuple(key), tuple(column.type for column in columns), partition, offset, topic)

    def row_file_columns(self, *, with_offset: bool = True) -> list[int | str]:
        topic = [] if self.topic is None else [self.topic]
        return [*self.key, self.partition, *topic, *([self.offset] if with_offset else [])]

    def key_file_columns(self) -> list[int | str]:
        return [*self.key, PARTITION, *([] if self.topic is None else [TOPIC]), OFFSET]


@dataclass(slots=True)
class KeyReader:
    """Reads files of one table as hashes of their keys."""

    hashed: KeyHash = field(default_factory=KeyHash)
    sources: Sources = field(default_factory=Sources)

    def read_data_file(self, io: FileIO, columns: Columns, target: Target) -> FileKeys:
        """Read a live data file, without offsets. Raises as ``read_keys_of_added_file``."""
        if not target.parquet:
            raise _unreadable_error(target.path, "it is not Parquet")
        columns_read, optional = (
            columns.row_file_columns(with_offset=False),
            {columns.partition, columns.topic},
        )
        return self._read_keys(io, target.path, columns, columns_read, optional=optional)

    def read_keys_of_added_file(
        self, io: FileIO, columns: Columns, path: str, *, is_key_file: bool
    ) -> FileKeys:
        """Read a file that a status names: its records' coordinates are all there.

        Raises ``KeysUnreadable``, ``FileDamaged``, and what storage raises.
        """
        columns_read = columns.key_file_columns() if is_key_file else columns.row_file_columns()
        keys = self._read_keys(io, path, columns, columns_read)
        if (keys.sources == UNKNOWN).any():
            raise _unreadable_error(path, "a record in it has no partition")
        return keys

    def _read_keys(
        self,
        io: FileIO,
        path: str,
        columns: Columns,
        columns_read: list[int | str],
        *,
        optional: Collection[int | None] = (),
    ) -> FileKeys:
        try:
            parts = [
                self._to_file_keys(batch, columns)
                for batch in read_column_batches(io, path, columns_read, optional)
            ]
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _unreadable_error(path, str(error)) from error
        except OSError as error:
            reread_and_raise_if_damaged(path, error, lambda: read_whole_file(io, path))
            raise
        return concat_keys(parts)

    def _to_file_keys(self, batch: list[Any], columns: Columns) -> FileKeys:
        key, (partitions, *more) = _split_columns(batch, len(columns.key))
        topics = None if columns.topic is None else more.pop(0)
        typed = [pc.cast(c, kind) for c, kind in zip(key, columns.types, strict=True)]
        if any(column.null_count for column in typed):
            raise KeyError("a column of the key is null")
        high, low = self.hashed(typed)
        return FileKeys(
            high,
            low,
            self.sources.intern_sources(topics, partitions),
            _offsets_as_numpy(more[0]) if more else np.broadcast_to(np.int64(UNKNOWN), len(high)),
        )


def _offsets_as_numpy(column: pa.Array) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64]
    found = pc.cast(column, pa.int64()).fill_null(UNKNOWN).to_numpy(zero_copy_only=False)
    return found


def _split_columns(batch: list[Any], count: int) -> tuple[list[Any], list[Any]]:
    return batch[:count], batch[count:]


def _unreadable_error(path: str, why: str) -> KeysUnreadable:
    return KeysUnreadable(
        f"{path}: {why}",
        "files of a keyed table are Parquet, with columns of its key and of table.record_columns",
    )
