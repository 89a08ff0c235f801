"""Finds the rows of data files that match a predicate in pyiceberg's syntax of row filters.

Data files never change, so each is read once, and only where its statistics allow a match. Nulls
match as in SQL: only ``is null``. pyiceberg 0.12 lets them match ``not in``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, BooleanExpression, NotIn, NotNull, Or, parser
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    bind,
    extract_field_ids,
    rewrite_not,
)
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyroaring import BitMap64

from headgate.control_protocol.deletion_errors import PredicateUnfit
from headgate.tables.iceberg.keyed.delete_files import bitmap_of
from headgate.tables.iceberg.reader import batches_of
from headgate.tables.stores.files import read_whole

_POSITION = "position in the file"


def parsed(predicate: str) -> BooleanExpression:
    """Parse a predicate. Raises ``PredicateUnfit``."""
    try:
        return _as_in_sql(rewrite_not(parser.parse(predicate)))
    except Exception as error:  # pyparsing's, and whatever literals raise
        place = getattr(error, "loc", None)
        where = "" if place is None else f" at or behind character {place + 1}"
        raise PredicateUnfit(
            f"{predicate!r} is no predicate{where}",
            "write as in: email = 'a@b.c' and day >= '2026-01-31' or id in (1, 2)",
        ) from error


@dataclass(slots=True)
class MatchingRows:
    """Finds rows of one table, whose schema may change between two calls."""

    predicate: BooleanExpression
    _known: dict[str, BitMap64] = field(default_factory=dict)

    def of(self, table: Table, files: Iterable[DataFile]) -> dict[str, BitMap64]:
        """Return the positions of matching rows, by data file; dead ones among them.

        Raises ``PredicateUnfit`` and what storage raises.
        """
        schema = table.schema()
        bound = self._bound(table, schema)
        may_match = _InclusiveMetricsEvaluator(schema, self.predicate).eval
        found = {}
        for file in files:
            path = file.file_path
            if path not in self._known:
                self._known[path] = _matching(table, file, bound) if may_match(file) else BitMap64()
            if self._known[path]:
                found[path] = self._known[path]
        return found

    def _bound(self, table: Table, schema: Schema) -> BooleanExpression:
        try:
            return bind(schema, self.predicate, case_sensitive=True)
        except (ValueError, TypeError) as error:
            raise PredicateUnfit(
                f"the predicate does not fit {'.'.join(table.name())}: {error}",
                f"its columns are {', '.join(schema.column_names)}; --table leaves others out",
            ) from error


def coordinates_of(
    table: Table, file: DataFile, positions: BitMap64, columns: tuple[str, str, str]
) -> Iterator[tuple[str, int, list[int]]]:
    """Yield topic, partition and offsets of these rows; a row of others may have none.

    Raises ``ValueError`` for a column that the file's rows lack.
    """
    begin = 0
    for batch in batches_of(table, FileScanTask(file), columns, read_whole(table.io)):
        end = begin + batch.num_rows
        places = [place - begin for place in positions & BitMap64(range(begin, end))]
        rows = batch.take(pa.array(places, pa.int64()))
        begin = end
        named = pa.table([leaf(rows, name) for name in columns], ["topic", "partition", "offset"])
        groups = named.drop_null().group_by(["topic", "partition"], use_threads=False)
        for found in groups.aggregate([("offset", "list")]).to_pylist():
            yield found["topic"], found["partition"], found["offset_list"]


def leaf(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Return the column of this name or, with a dot, the field of a struct.

    Raises ``ValueError``.
    """
    if name in rows.schema.names:
        return rows.column(name)
    outer, dot, inner = name.rpartition(".")
    if not dot:
        raise ValueError(f"a file has no column {name}")
    return pc.struct_field(leaf(rows, outer), inner)


def _as_in_sql(predicate: BooleanExpression) -> BooleanExpression:
    """Make nulls match as in SQL; ``Not`` was already removed."""
    parts: Callable[[BooleanExpression], BooleanExpression] = _as_in_sql
    match predicate:
        case And():
            return And(parts(predicate.left), parts(predicate.right))
        case Or():
            return Or(parts(predicate.left), parts(predicate.right))
        case NotIn():
            return And(predicate, NotNull(term=predicate.term))
    return predicate


def _matching(table: Table, file: DataFile, bound: BooleanExpression) -> BitMap64:
    schema = table.schema()
    names = [str(schema.find_column_name(of)) for of in sorted(extract_field_ids(bound))]
    wanted = expression_to_pyarrow(bound, schema)
    found, begin = [np.empty(0, np.int64)], 0
    if not names:
        names = schema.column_names[:1]
    for batch in batches_of(table, FileScanTask(file), names, read_whole(table.io)):
        places = pa.array(np.arange(begin, begin + batch.num_rows, dtype=np.int64))
        rows = pa.Table.from_batches([batch]).append_column(_POSITION, places)
        found.append(rows.filter(wanted).column(_POSITION).to_numpy())
        begin += batch.num_rows
    if begin != file.record_count:
        raise ValueError(f"{file.file_path} holds {begin} rows, not {file.record_count}")
    return bitmap_of(np.concatenate(found))
