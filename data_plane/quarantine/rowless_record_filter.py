"""Counts what is read of a batch, and removes records that become rows of no table."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.ports import Batch, PartitionResult
from headgate.data_plane.quarantine.poison_search import BAD_EXCEPTION
from headgate.data_plane.quarantine.rejected_records import RejectedRecords
from headgate.kafka.record_fetch import Chunk
from headgate.native.kernels import Flags, Integers


class RowlessRecordFilter:
    """Takes chunks of one batch. ``poison_records``: those that make it fail, by their offsets.

    ``tombstones``: whether records without a value are wanted too.
    """

    def __init__(
        self,
        batch: Batch,
        rejected: RejectedRecords,
        poison_records: Mapping[TopicPartition, Mapping[int, str]] | None = None,
        *,
        tombstones: bool = False,
    ) -> None:
        self._tombstones = tombstones
        self._batch = batch
        self._rejected = rejected
        self._partitions = list(batch.ranges)
        self._poison = {
            place: poison_records[at]
            for place, at in enumerate(self._partitions)
            if poison_records and at in poison_records
        }
        count = len(self._partitions)
        self._bytes = np.zeros(count, np.int64)
        self._newest_ms = np.full(count, -1, np.int64)

    def count_and_take_rowless_out(self, chunk: Chunk) -> Chunk:
        """Count the records, and return those that may become rows.

        Raises what ``rejected`` raises for others.
        """
        # Of all records, whatever becomes of them: what is left out below was read, too.
        weights = np.bincount(chunk.places, chunk.lengths, len(self._partitions))
        self._bytes += weights.astype(np.int64)
        np.maximum.at(self._newest_ms, chunk.places, chunk.timestamps)
        # First: what the quarantine has, tombstone or poison record, must not enter it again
        # (QUARANTINE-3).
        chunk = self._rejected.take_already_quarantined_out(chunk)
        if not self._tombstones:
            chunk = self._rejected.take_tombstones_out(chunk)
        return self._take_known_poison_out(chunk)

    def partition_results(
        self, row_counts: Integers, deleted_counts: Integers | None = None
    ) -> dict[TopicPartition, PartitionResult]:
        """Return the results of what was read so far, as if it were all.

        By place: ``row_counts`` says how many records became rows, ``deleted_counts`` how many are
        in key files.
        """
        return {
            at: PartitionResult(
                range=self._batch.ranges[at],
                records=int(row_counts[place]),
                quarantined=int(self._rejected.quarantined[place]),
                skipped=int(self._rejected.skipped[place]),
                deleted=0 if deleted_counts is None else int(deleted_counts[place]),
                bad=int(self._rejected.bad[place]),
                filtered=int(self._rejected.filtered[place]),
                bytes_read=int(self._bytes[place]),
                max_timestamp_ms=int(self._newest_ms[place])
                if self._newest_ms[place] >= 0
                else None,
            )
            for place, at in enumerate(self._partitions)
        }

    def _take_known_poison_out(self, chunk: Chunk) -> Chunk:
        reasons = {
            int(row): self._poison[place][int(chunk.offsets[row])]
            for place in self._poison
            for row in np.flatnonzero(
                (chunk.places == place) & np.isin(chunk.offsets, list(self._poison[place]))
            )
        }
        if not reasons:
            return chunk
        self._rejected.reject_bad(chunk, reasons, BAD_EXCEPTION)
        return chunk.filter(flags_of_all_but(chunk, reasons))


def flags_of_all_but(chunk: Chunk, bad: Mapping[int, str]) -> Flags:
    """Return the flags of all records but these."""
    good = np.ones(len(chunk.offsets), np.bool_)
    good[list(bad)] = False
    return good
