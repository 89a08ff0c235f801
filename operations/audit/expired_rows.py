"""Tells which records of a table without a key have no row because it has expired (EXPIRY-3).

A record that is absent is read from the source again, by the sink's own code. If its time is below
the table's newest limit, its row has expired; one with a later time, or with none, is absent for
another reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.control_protocol.table_format import LoadedReader
from headgate.control_protocol.table_history import History, TableReader
from headgate.data_plane.batch.record_numbers import bitmap_of
from headgate.data_plane.batch.routed_table import RoutedTable
from headgate.data_plane.batch.writer_task_plan import Handling, WriterPlan, plan_of_table
from headgate.data_plane.quarantine.rejected_records import RejectedRecords
from headgate.data_plane.write.decode import RowDecoder
from headgate.data_plane.write.table_outlets import Decoded
from headgate.data_plane.write.write_batch import read_source_in_chunks
from headgate.operations.audit.changelog_replay import (
    batch_that_is_only_read,
    find_time_column_and_expiry_limit,
)
from headgate.operations.audit.replay_compare import flag_expired_rows
from headgate.participant.settings import Incompatible, SchemaPolicy
from headgate.runtime.write_planning import build_source_plan
from headgate.tables.iceberg.upsert.position_deletes import sorted_positions_of


@dataclass(slots=True)
class ExpiredRecords:
    """Finds them in one table. ``count``: how many there were; ``unread``: absent records that
    could not be read as rows; ``why_unknown``: why no time can be told."""

    settings: SinkSettings
    reader: TableReader
    history: History
    topic_ids: Mapping[str, TopicId]
    count: int = 0
    unread: int = 0
    why_unknown: str = ""

    def __post_init__(self) -> None:
        if self.history.expired_before_ms is not None:
            self.why_unknown = self._why_expiry_cannot_be_told()

    def _why_expiry_cannot_be_told(self) -> str:
        column = self.settings.maintenance.rows_by
        if not column:
            return "maintenance.rows_by does not say by which column"
        if column not in self.reader.columns():
            return f"the table has no column {column} any more"
        return f"a transform makes the {column} of a row" if self.settings.transform else ""

    @property
    def can_tell_expired(self) -> bool:
        """Return whether rows have expired, and each absent record's time tells whether its has."""
        return self.history.expired_before_ms is not None and not self.why_unknown

    def find_and_count_expired_among(self, at: TopicPartition, absent: BitMap64) -> BitMap64:
        """Return the expired ones of the ``absent`` records, which the source holds."""
        expired = BitMap64()
        if not (self.can_tell_expired and absent):
            return expired
        try:
            rows = self._read_which_expired(at, absent)
        except (HeadgateError, ValueError) as error:
            said = error.message if isinstance(error, HeadgateError) else str(error)
            self.why_unknown = f"the absent records cannot be read: {said}"
            return expired
        self.unread += len(absent - rows.known)
        self.count += len(rows.expired)
        return rows.expired

    def _read_which_expired(self, at: TopicPartition, absent: BitMap64) -> _ExpiredOffsets:
        first, last = int(absent.min()), int(absent.max())
        plan, batch, below = self._plan_reading(at, OffsetRange(first, last + 1))
        times = _ExpiredOffsets(below)
        decoder = RowDecoder(
            RoutedTable(batch.table.table, plan),
            *(plan, batch),
            rejected=RejectedRecords(plan, batch),
            outlet=times,
        )
        with closing(read_source_in_chunks(plan, batch)) as chunks:
            for chunk in chunks:
                wanted = sorted_positions_of(bitmap_of(pa.array(chunk.offsets)) & absent)
                some = np.isin(chunk.offsets, wanted) & np.asarray(chunk.values.array.is_valid())
                if some.any():
                    decoder.add_chunk(chunk.filter(some), only_note_needs=False)
        return times

    def _plan_reading(
        self, at: TopicPartition, span: OffsetRange
    ) -> tuple[WriterPlan, Batch, tuple[str, pa.Scalar]]:
        view = self.reader.view()
        start = TableStart(view.table, view.uuid, view.schema_id, view.spec_id, file_prefix="")
        batch = batch_that_is_only_read(start, {at: span}, self.topic_ids)
        reading = build_source_plan(self.settings, batch)
        nulls = reading.schema_policy.incompatible is Incompatible.IGNORE
        policy = SchemaPolicy(
            incompatible=Incompatible.IGNORE if nulls else Incompatible.QUARANTINE
        )
        skipping = Handling(Disposal.SKIP, Disposal.SKIP, excerpts=False)
        reading = replace(reading, handling=skipping, schema_policy=policy)
        reader = cast("LoadedReader", self.reader)  # rows expire in tables of a catalog
        plan = plan_of_table(reader.table, start, reading)
        below = find_time_column_and_expiry_limit(
            self.settings, self.history, plan.shape.arrow_schema()
        )
        assert below is not None, "asked before"
        return plan, batch, below


@dataclass(slots=True)
class _ExpiredOffsets:
    """A ``TableOutlet`` that looks at times: the offsets that are ``known``, and ``expired``."""

    below: tuple[str, pa.Scalar]
    known: BitMap64 = field(default_factory=BitMap64)
    expired: BitMap64 = field(default_factory=BitMap64)

    def add_rows(self, decoded: Decoded) -> None:
        self.known |= bitmap_of(pa.array(decoded.offsets))
        rows = pa.Table.from_batches([decoded.rows])
        self.expired |= bitmap_of(pa.array(decoded.offsets[flag_expired_rows(rows, self.below)]))
