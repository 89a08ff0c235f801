"""Reads records of many writers: each by the format that its frame asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headgate.data_plane.formats import column_options
from headgate.data_plane.formats.avro.schema import UnfitSchema
from headgate.data_plane.formats.casting.relabel import rows_from_python
from headgate.data_plane.formats.protobuf.descriptors import UnfitTypes
from headgate.data_plane.formats.record_format import UndecodableRecords
from headgate.data_plane.formats.registry.client import NoSuchSchema
from headgate.data_plane.formats.registry.frames import Part
from headgate.data_plane.formats.unknown_fields import UnknownColumns, UnknownFieldFinder
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Flags, Integers

UNFIT = (NoSuchSchema, UnfitSchema, UnfitTypes)
"""What makes all records bad that name a schema."""


class WriterFormat(Protocol):
    """Reads what one writer wrote, without its frame. A ``RecordFormat`` with column rules, which
    reports unknown fields."""

    @property
    def record_count_with_ignored_fields(self) -> int: ...

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch: ...

    def flag_absent_field(self, values: Sequence[bytes], path: Sequence[pa.Field]) -> Flags: ...

    def watch_unknown_fields(self, finder: UnknownFieldFinder) -> None: ...

    def unknown_columns_of_last_decode(
        self, values: Sequence[bytes], bad_rows: Collection[int], /
    ) -> Iterable[UnknownColumns]: ...


@dataclass(slots=True)
class _Share:
    """The values of one frame: who reads them, or why nobody can."""

    rows: Integers
    values: Packed
    reader: Any | None
    reason: str = ""


class FramedRecords:
    """Cuts values by ``cut``; what ``open_writer_format`` returns for a frame takes its part.

    ``open_writer_format`` may raise ``UNFIT``: then the part's records are bad.
    """

    rules = column_options.EVERY

    def __init__(
        self,
        cut: Callable[[Sequence[bytes]], Iterable[Part]],
        open_writer_format: Callable[[bytes], Any],
    ) -> None:
        self._cut = cut
        self._open_writer_format = open_writer_format
        self._writers: dict[bytes, Any] = {}
        self._finder: UnknownFieldFinder | None = None
        self._last: list[_Share] = []

    @property
    def record_count_with_ignored_fields(self) -> int:
        """Return how many of the decoded records had fields to ignore, as far as seen."""
        return sum(writer.record_count_with_ignored_fields for writer in self._writers.values())

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        self._last = shares = list(self._split_by_writer_format(values))
        if len(shares) == 1 and shares[0].reader is not None:
            rows, bad = _decode_share(shares[0], schema)
            if bad:
                raise UndecodableRecords(bad, rows)
            return rows
        parts, places = [rows_from_python([], schema)], [np.zeros(0, np.int64)]
        reasons: dict[int, str] = {}
        for share in shares:
            rows, bad = _decode_share(share, schema)
            parts.append(rows)
            places.append(np.delete(share.rows, list(bad)) if bad else share.rows)
            reasons |= {int(share.rows[row]): reason for row, reason in bad.items()}
        order = np.argsort(np.concatenate(places))
        together = pa.concat_batches(parts).take(pa.array(order))
        if reasons:
            raise UndecodableRecords(reasons, together)
        return together

    def flag_absent_field(self, values: Sequence[bytes], path: Sequence[pa.Field]) -> Flags:
        """Return which records have no field at the path's end: all of those without a schema."""
        result = np.ones(len(values), np.bool_)
        for share in self._split_by_writer_format(values):
            if share.reader is not None:
                result[share.rows] = share.reader.flag_absent_field(share.values, path)
        return result

    def watch_unknown_fields(self, finder: UnknownFieldFinder) -> None:
        self._finder = finder
        for writer in self._writers.values():
            writer.watch_unknown_fields(finder)

    def unknown_columns_of_last_decode(
        self, _: Sequence[bytes], bad_rows: Collection[int], /
    ) -> Iterable[UnknownColumns]:
        """Ask each writer's format about what it decoded last."""
        wrong = np.fromiter(bad_rows, np.int64, len(bad_rows))
        for share in self._last:
            if share.reader is None:
                continue
            own = np.flatnonzero(np.isin(share.rows, wrong)).tolist()
            for rows, wanted in share.reader.unknown_columns_of_last_decode(share.values, own):
                yield share.rows[rows], wanted

    def rows_and_readers_of(self, values: Sequence[bytes]) -> Iterator[tuple[Integers, Any]]:
        """Yield the indexes of values, and what reads them; none where nothing does."""
        for share in self._split_by_writer_format(values):
            if share.reader is not None:
                yield share.rows, share.reader

    def _split_by_writer_format(self, values: Sequence[bytes]) -> Iterator[_Share]:
        for frame, rows, some in self._cut(values):
            try:
                yield _Share(rows, some, self._writer_format_of(frame))
            except UNFIT as error:
                yield _Share(rows, some, None, str(error))

    def _writer_format_of(self, frame: bytes) -> Any:
        found = self._writers.get(frame)
        if found is None:
            found = self._writers[frame] = self._open_writer_format(frame)
            if self._finder is not None:
                found.watch_unknown_fields(self._finder)
        return found


def _decode_share(share: _Share, schema: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return the rows of the good records, and why the others are bad."""
    if share.reader is not None:
        try:
            return share.reader.decode(share.values, schema), {}
        except UndecodableRecords as error:
            return error.rest, error.bad
        except UNFIT as error:
            share.reason = str(error)
    return rows_from_python([], schema), dict.fromkeys(range(len(share.rows)), share.reason)
