"""Refuses, skips or quarantines records that are not rows (rules QUARANTINE-3 to QUARANTINE-5)."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.control_protocol.errors import (
    ConfigurationError,
    PoisonRecord,
    RecordNotKept,
    RecordUnmatched,
    StopBefore,
    TooManyBadRecords,
)
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.data_plane.batch.metadata_columns import MILLISECONDS_MAX, printable_name
from headgate.data_plane.batch.record_numbers import first_offsets_of
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.data_plane.files.format_choice import FORMAT
from headgate.data_plane.write.table_outlets import PartitionedRows
from headgate.kafka.record_fetch import Chunk

_SAMPLE_BYTES = 200
_MESSAGE_CHARACTERS_MAX = 1_000
_BUFFER_BYTES = 8 * 1024 * 1024

_log = redacted_logger(__name__)

TOMBSTONE, BAD_VALUE, BAD_PART = "tombstone", "value", "key or headers"
ROUTE, TABLE, OWN_TABLE = "route", "table", "own table"
EXPECTATION = "expectation"
"""Values of ``error_class`` in the quarantine."""
_NOT_BAD = (TOMBSTONE, ROUTE, TABLE)
"""Those that count against no limit (QUARANTINE-5)."""
_WITHOUT_CONTENT = (TOMBSTONE, ROUTE, TABLE, OWN_TABLE)
"""Those whose reasons say nothing of what is in a record."""


class RejectedRecords:
    """One batch's records that are not rows. ``finish`` or ``discard`` ends it.

    The counts are per place of the batch's ranges: ``quarantined`` (including those that the
    quarantine had already), ``skipped``, and of both together the ``bad`` ones, without tombstones;
    of those skipped the ``filtered`` ones.
    """

    def __init__(self, plan: WriterPlan, batch: Batch) -> None:
        self._plan = plan
        self._batch = batch
        self._handling = plan.source.handling
        self._partitions = list(batch.ranges)
        self._already_quarantined = [
            (place, np.array(offsets, np.int64), error_class not in _NOT_BAD)
            for place, at in enumerate(self._partitions)
            for error_class, offsets in plan.already_quarantined.get(at, {}).items()
        ]
        self._seen = 0
        self._quarantine: _Quarantine | None = None
        self._first = ""
        self._stops: dict[TopicPartition, StopBefore] = {}
        self.reasons: Counter[str] = Counter()
        """Reasons of records without a table."""
        count = len(self._partitions)
        self.quarantined = np.zeros(count, np.int64)
        self.skipped = np.zeros(count, np.int64)
        self.bad = np.zeros(count, np.int64)
        self.filtered = np.zeros(count, np.int64)

    def take_already_quarantined_out(self, chunk: Chunk) -> Chunk:
        """Count the records that the quarantine has, and return the others: those are in no other
        table, ever (QUARANTINE-3)."""
        self._seen += len(chunk.offsets)
        if not self._already_quarantined:
            return chunk
        known = np.zeros(len(chunk.offsets), np.bool_)
        bad = known.copy()
        for place, offsets, is_bad in self._already_quarantined:
            found = (chunk.places == place) & np.isin(chunk.offsets, offsets)
            known |= found
            if is_bad:
                bad |= found
        if not known.any():
            return chunk
        self.quarantined += self._count_by_place(chunk.places[known])
        # Not all that it holds is bad: what a suspended table could not take would fill the limits.
        tombstones = np.asarray(chunk.values.array.is_null())
        self.bad += self._count_by_place(chunk.places[bad & ~tombstones])
        return chunk.filter(~known)

    def take_tombstones_out(self, chunk: Chunk, disposal: Disposal | None = None) -> Chunk:
        """Take the records without a value, and return the others; ``disposal`` overrides the
        settings of all tables."""
        if not chunk.values.array.null_count:
            return chunk
        empty = np.asarray(chunk.values.array.is_null())
        reasons = dict.fromkeys(np.flatnonzero(empty).tolist(), "has no value (a tombstone)")
        self._dispose_of_records(disposal or self._handling.tombstones, chunk, reasons, TOMBSTONE)
        return chunk.filter(~empty)

    def reject_unmatched(self, chunk: Chunk, reason: str) -> None:
        """Take all these records, which no route sends to a table (ROUTE-2). They are not bad."""
        disposal = self._handling.unmatched
        self.reasons[reason] += len(chunk.offsets)
        if disposal is Disposal.SKIP:
            self.skipped += self._count_by_place(chunk.places)
        elif len(chunk.offsets):
            reasons = dict.fromkeys(range(len(chunk.offsets)), reason)
            self._dispose_of_records(disposal, chunk, reasons, ROUTE)

    def divert_or_stop(self, chunk: Chunk, table: str, why: str) -> None:
        """Take all these records, whose table has trouble (SUSPEND-1). They are not bad, nor
        unmatched.

        Where the quarantine may not keep their content, they stop the sink: nothing could be given
        back from there (SUSPEND-6).
        """
        if len(chunk.offsets):
            reasons = dict.fromkeys(range(len(chunk.offsets)), f"{table}: {why}")
            kept = Disposal.QUARANTINE if self._handling.keeps_content else Disposal.FAIL
            self._dispose_of_records(kept, chunk, reasons, TABLE, table=table)

    def count_skipped(self, chunk: Chunk) -> None:
        """Count these records, which say nothing about rows. They are not bad."""
        self.skipped += self._count_by_place(chunk.places)

    def count_filtered(self, places: np.ndarray[Any, Any]) -> None:
        """Count records at these places, which a condition or a transform leaves out (SHAPE-1,
        SHAPE-5), or whose rows have expired (EXPIRY-1). They are not bad."""
        counts = self._count_by_place(places)
        self.skipped += counts
        self.filtered += counts

    def reject_bad(self, chunk: Chunk, reasons: Mapping[int, str], error_class: str) -> None:
        """Take the records that could not be converted. Raises ``TooManyBadRecords``."""
        self._dispose_of_records(self._handling.policy, chunk, reasons, error_class)
        if self._handling.policy is Disposal.FAIL:
            return
        self.bad += self._count_by_place(chunk.places[list(reasons)])
        if reasons and not self._first:
            self._first = self._describe_record(chunk, min(reasons), reasons[min(reasons)])
        bad = int(self.bad.sum())
        limits = self._handling.limits
        objection = limits.reason_if_too_many(bad) or limits.reason_if_too_often(bad, self._seen)
        if objection:
            first = min(reasons)
            raise TooManyBadRecords(
                f"{objection}; one of them is "
                f"{self._describe_record(chunk, first, reasons[first])}",
                "mend the producer or the table, or raise the limits under [quarantine]",
            )

    @property
    def has_stopping_record(self) -> bool:
        """Return whether a record stops the sink: nothing that is written now will count."""
        return bool(self._stops)

    def note_stop(self, error: StopBefore) -> None:
        """Note records that stop the sink; the batch is read to its end for the first of each
        partition."""
        for at, offset in error.first.items():
            known = self._stops.get(at)
            if known is None or offset < known.first[at]:
                self._stops[at] = error

    def require_no_stop(self) -> None:
        """Raise the ``StopBefore`` that was noted, with the first such record of each partition."""
        if self._stops:
            first, *others = (error for _, error in sorted(self._stops.items()))
            raise first.merge_first_offsets_in_place(others)

    def finish(self) -> tuple[WrittenFile, ...]:
        """Raises as ``require_no_stop``."""
        self.require_no_stop()
        if self._first:
            count, event = int(self.bad.sum()), LogEvent.RECORDS_BAD
            extra = event_extra(event, records=count)
            _log.info("%d bad records in a batch, the first: %s", count, self._first, extra=extra)
        return self._quarantine.finish() if self._quarantine else ()

    def discard(self) -> None:
        if self._quarantine:
            self._quarantine.discard()

    def _dispose_of_records(
        self,
        disposal: Disposal,
        chunk: Chunk,
        reasons: Mapping[int, str],
        error_class: str,
        *,
        table: str | None = None,
    ) -> None:
        if disposal is Disposal.FAIL:
            self._note_first_stops(chunk, reasons, error_class)
            return
        places = self._count_by_place(chunk.places[list(reasons)])
        if disposal is Disposal.SKIP:
            self.skipped += places
            return
        self.quarantined += places
        if self._quarantine is None:
            self._quarantine = _Quarantine(self._plan, self._batch)
        self._quarantine.add_records(
            chunk, reasons, {"error_class": error_class, "table_name": table}
        )

    def _count_by_place(self, places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.bincount(places, minlength=len(self._partitions)).astype(np.int64)

    def _note_first_stops(self, chunk: Chunk, reasons: Mapping[int, str], error_class: str) -> None:
        """Note the first of these records in each partition."""
        rows = list(reasons)
        first = first_offsets_of(self._partitions, chunk.places[rows], chunk.offsets[rows])
        for at, offset in first.items():
            if at in self._stops and self._stops[at].first[at] <= offset:
                continue
            place = self._partitions.index(at)
            row = next(
                row for row in rows if chunk.places[row] == place and chunk.offsets[row] == offset
            )
            more = f" (and {len(rows) - 1} more near it)" if len(rows) > 1 else ""
            text = self._describe_record(chunk, row, reasons[row], more)
            self.note_stop(_stop_error(error_class, text, Offsets({at: offset})))

    def reason_allowed_in_errors(self, reason: str) -> str:
        """Return why a record is bad, as errors may say it."""
        return reason if self._handling.excerpts else reason_without_content(self._plan, reason)

    def _describe_record(self, chunk: Chunk, row: int, reason: str, more: str = "") -> str:
        at = self._partitions[chunk.places[row]]
        where = f"{at.topic} partition {at.partition} offset {chunk.offsets[row]}"
        if not self._handling.excerpts:
            return f"{where}: {self.reason_allowed_in_errors(reason)}{more}"
        reason = f"{where}: {reason[:_MESSAGE_CHARACTERS_MAX]}{more}"
        value = chunk.values[row]
        begins = "" if value is None else f"; the value begins {_excerpt(value)}"
        return self._plan.source.redaction(f"{reason}{begins}")


def reason_without_content(plan: WriterPlan, reason: str) -> str:
    """Return the reason without any of the record's content."""
    rules = plan.shaping.rules
    if rules and reason in {each.reason_if_not_met for each in rules.expectations}:
        return reason
    column = re.split(r"[:.\[ ]", reason, maxsplit=1)[0]
    known = column in plan.decoded_schema().names
    return f"does not fit into the column {column}" if known else "cannot be read"


class _Quarantine:
    """Writes the batch's files of the quarantine table."""

    def __init__(self, plan: WriterPlan, batch: Batch) -> None:
        if batch.quarantine is None or plan.quarantine is None:
            raise ConfigurationError(
                f"{batch.table.table}: the coordinator names no quarantine for bad records",
                "start every participant with the same sink file",
            )
        self._batch = batch
        self._sink = plan.source.sink
        self._redaction = plan.source.redaction
        self._storable = plan.quarantine.replace_unsupported
        self._plan = plan
        self._partitions = list(batch.ranges)
        shape = file_shape_of(_with_parquet_format(plan.quarantine))
        self._schema = shape.arrow_schema
        self._files = DataFiles(shape, batch.quarantine.file_prefix, batch.target_file_bytes)
        self._rows = PartitionedRows(shape.partitioner, self._files, _BUFFER_BYTES)

    def add_records(
        self, chunk: Chunk, reasons: Mapping[int, str], class_and_table: Mapping[str, str | None]
    ) -> None:
        rows = list(reasons)
        result = self._columns_but_key_and_value(
            chunk, rows, list(reasons.values()), class_and_table
        )
        if self._plan.source.handling.keeps_content:
            parts = {"key": chunk.keys, "value": chunk.values}
            result |= {name: part.take(rows).array for name, part in parts.items() if part}
        columns = [
            _as_column(result[field.name], field.type)
            if field.name in result
            else pa.nulls(len(rows), field.type)
            for field in self._schema
        ]
        made = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._rows.add_rows(self._storable(made) if self._storable else made)

    def finish(self) -> tuple[WrittenFile, ...]:
        self._rows.flush()
        return self._files.finish()

    def discard(self) -> None:
        self._files.discard()

    def _columns_but_key_and_value(
        self,
        chunk: Chunk,
        rows: list[int],
        reasons: list[str],
        class_and_table: Mapping[str, str | None],
    ) -> dict[str, Any]:
        """Return the columns of ``config/table_declaration.py`` but for the record's content;
        others that the table has stay null.
        """
        at = [self._partitions[place] for place in chunk.places[rows].tolist()]
        timestamps = chunk.timestamps[rows].tolist()
        transaction = self._batch.transaction
        whole = self._plan.source.handling.keeps_content
        headers = [chunk.headers[row] or () if chunk.headers and whole else () for row in rows]
        if not whole and class_and_table["error_class"] not in _WITHOUT_CONTENT:
            reasons = [reason_without_content(self._plan, reason) for reason in reasons]
        # Bad records often come in rows, with the same fault.
        shown = {
            reason: self._redaction(reason[:_MESSAGE_CHARACTERS_MAX]) for reason in set(reasons)
        }
        everywhere = {
            **class_and_table,
            "sink": self._sink,
            "epoch": int(transaction.epoch),
            "transaction": int(transaction.number),
        }
        return {
            "topic": [here.topic for here in at],
            "topic_id": [self._batch.topic_ids.get(here.topic) for here in at],
            "partition": [here.partition for here in at],
            "offset": chunk.offsets[rows].tolist(),
            "timestamp": [
                timestamp_ms * 1000 if 0 <= timestamp_ms <= MILLISECONDS_MAX else None
                for timestamp_ms in timestamps
            ],
            "headers": [
                [{"key": printable_name(name), "value": value} for name, value in pairs]
                for pairs in headers
            ],
            "message": [shown[reason] for reason in reasons],
            **{name: [value] * len(rows) for name, value in everywhere.items()},
        }


def _as_column(values: Any, data_type: pa.DataType) -> pa.Array:
    return values.cast(data_type) if isinstance(values, pa.Array) else pa.array(values, data_type)


def _with_parquet_format(plan: WriterPlan) -> WriterPlan:
    """Return the plan with Parquet, whatever the table asks for: headgate reads it again
    (QUARANTINE-3)."""
    kept = {name: value for name, value in plan.shape.table_properties.items() if name != FORMAT}
    return replace(plan, shape=replace(plan.shape, table_properties=kept))


def _stop_error(error_class: str, text: str, first: Offsets) -> StopBefore:
    stops = "the sink stops before this record"
    if error_class == ROUTE:
        wanted = "add a route or the table, or choose another tables.unmatched"
        return RecordUnmatched(text, f"{wanted}; {stops}", first)
    if error_class == TABLE:
        wanted = "mend the table: [shape] hides columns, so the quarantine keeps no record for it"
        return RecordNotKept(text, f"{wanted}; {stops}", first)
    policy = "quarantine.policy"
    if error_class == TOMBSTONE:
        policy = "quarantine.tombstones (changes.tombstones where the table has a key)"
    hint = f"mend the producer or the table, or choose another {policy}; {stops}"
    return PoisonRecord(text, hint, first)


def _excerpt(value: bytes) -> str:
    short = value[:_SAMPLE_BYTES]
    try:
        text = repr(short.decode())
    except UnicodeDecodeError:
        text = f"base64 {base64.b64encode(short).decode()}"
    return text + (f"... ({len(value)} bytes)" if len(value) > _SAMPLE_BYTES else "")
