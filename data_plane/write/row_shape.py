"""Shapes decoded rows by a sink file's ``[shape]``: which stay, which are bad, what is hidden.

Conditions see the values as they were decoded (SHAPE-1); hashes and masks come after them. Nothing
behind this sees a hidden value: neither a transform, nor partitioning, sorting, statistics or files
(SHAPE-3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import StringType

from headgate.control_protocol.errors import PredicateUnfit, ShapeUnfit
from headgate.data_plane.batch.failure_classification import is_bisectable
from headgate.data_plane.batch.row_rules import Mask, RowRules, masked_key_error
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.formats.casting.relabel import rows_from_python
from headgate.data_plane.formats.column_options import is_text_type
from headgate.data_plane.quarantine.poison_search import Read
from headgate.kafka.record_fetch import Chunk
from headgate.native.kernels import DIGEST_BYTES, Flags, loops
from headgate.tables.iceberg.row_deletion import parse_predicate


@dataclass(frozen=True, slots=True)
class Judged:
    """Says which rows stay, and of these which are bad, with the reason."""

    kept: Flags
    bad: Mapping[int, str]


class RowShape:
    """Shapes the rows of one table. ``key_prefix``: of columns that hold keys of its rows, too.

    ``clear_schema``: the columns until ``hide_values``, where those that take bytes of a hash are
    text, too. Raises ``ShapeUnfit`` for rules that do not fit its columns (SHAPE-4).
    """

    def __init__(
        self, plan: WriterPlan, schema: pa.Schema, table: str, *, key_prefix: str = ""
    ) -> None:
        rules = plan.shaping.rules or RowRules()
        self._rules = rules
        self._key_prefix = key_prefix
        changes = plan.source.changes
        for name in rules.hidden_columns:
            _require_hideable_column(schema, name, table, digest=name in rules.hashed)
        self._types = {name: schema.field(name).type for name in rules.hashed}
        self.clear_schema = pa.schema([_field_before_hiding(field, rules) for field in schema])
        for mask in rules.masks:
            if changes is not None and mask.column in changes.key:
                raise masked_key_error(mask.column, table)
        columns = _Columns(_columns_before_hiding(plan, rules), self.clear_schema, table)
        self._where = columns.compile_condition("shape.where", rules.where) if rules.where else None
        self._unmet = [
            (
                each.reason_if_not_met,
                columns.compile_condition(_name_of_expectation_setting(each.name), each.condition)
                if each.strict
                else columns.compile_condition(
                    _name_of_expectation_setting(each.name), f"not ({each.condition})"
                ),
                each.strict,
            )
            for each in rules.expectations
        ]

    def evaluate_conditions(self, rows: pa.RecordBatch) -> Judged:
        """Return which rows stay; the others' values were not looked at any further."""
        kept = np.ones(rows.num_rows, np.bool_) if self._where is None else self._where(rows)
        bad: dict[int, str] = {}
        for reason, condition, strict in self._unmet:
            unmet = condition(rows) ^ strict
            for row in np.flatnonzero(unmet & kept).tolist():
                bad.setdefault(row, reason)
        return Judged(kept, bad)

    def hide_values(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with hashes and masks in place of what nobody may see."""
        if not self._rules.hidden_columns:
            return rows
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        for name in self._rules.hashed:
            for each in {name, f"{self._key_prefix}{name}"}:
                if each in columns:
                    columns[each] = _hash_column(columns[each], self._rules.key, self._types[name])
        for mask in self._rules.masks:
            columns[mask.column] = _mask_column(columns[mask.column], mask)
        fields = [field.with_type(columns[field.name].type) for field in rows.schema]
        return pa.RecordBatch.from_arrays([*columns.values()], schema=pa.schema(fields))


def row_shape_of(
    plan: WriterPlan, schema: pa.Schema, table: str, key_prefix: str = ""
) -> RowShape | None:
    """Return what shapes the rows of a table with these columns; ``None``: nothing does.

    Raises ``ShapeUnfit``.
    """
    rules = plan.shaping.rules
    if rules is None or not rules.has_rules_for(table):
        return None
    return RowShape(plan, schema, table, key_prefix=key_prefix)


def reader_without_content_in_errors(read: Callable[[Chunk], Read]) -> Callable[[Chunk], Read]:
    """Let unforeseen errors of reading say their kind alone: their text may hold hidden values."""

    def read_quietly(chunk: Chunk) -> Read:
        try:
            return read(chunk)
        except Exception as error:
            if not is_bisectable(error):
                raise
            kind = type(error).__name__
        raise ValueError(f"{kind}; its text is not shown, because [shape] hides columns")

    return read_quietly


def _name_of_expectation_setting(name: str) -> str:
    return f"shape.expect {name!r}"


def _require_hideable_column(schema: pa.Schema, name: str, table: str, *, digest: bool) -> None:
    if name not in schema.names:
        raise ShapeUnfit(
            f"{table}: [shape] hides the column {name!r}, which there is not",
            "correct the name, or add the column; with many tables shape.tables says in which "
            "of them it is",
        )
    data_type = schema.field(name).type
    if not (is_text_type(data_type) or (digest and _holds_raw_digest(data_type))):
        raise ShapeUnfit(
            f"{table}: [shape] hides the column {name!r}, which is {data_type}",
            "only text is hashed or masked; make the column a string, with as_text = true if "
            "records have numbers there, or fixed(32) or binary for the bytes of a hash",
        )


def _holds_raw_digest(data_type: pa.DataType) -> bool:
    """Return whether a column of this type takes a hash as its bytes, not as their digits."""
    return data_type in (pa.binary(DIGEST_BYTES), pa.binary(), pa.large_binary())


def _field_before_hiding(field: pa.Field, rules: RowRules) -> pa.Field:
    hashed = field.name in rules.hashed and _holds_raw_digest(field.type)
    return field.with_type(pa.large_string()) if hashed else field


def _columns_before_hiding(plan: WriterPlan, rules: RowRules) -> Schema:
    """Return the columns that records are decoded into, as conditions see them."""
    transform = plan.shaping.transform
    if transform is None or not transform.schema_json:
        schema = plan.shape.schema()
    else:
        schema = Schema.model_validate_json(transform.schema_json)
    text = {"field_type": StringType()}
    fields = [f.model_copy(update=text) if f.name in rules.hashed else f for f in schema.fields]
    return Schema(*fields)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Reads conditions on the columns of one table."""

    schema: Schema
    arrow: pa.Schema
    table: str

    def compile_condition(self, setting: str, text: str) -> Callable[[pa.RecordBatch], Flags]:
        """Return which rows meet the condition. Raises ``ShapeUnfit``, without its text."""
        try:
            bound = bind(self.schema, parse_predicate(text), case_sensitive=True)
            names = [str(self.schema.find_column_name(i)) for i in sorted(extract_field_ids(bound))]
            wanted = expression_to_pyarrow(bound, self.schema)
            evaluate = _compile_expression(wanted, names)
            evaluate(rows_from_python([], self.arrow))
        except Exception as error:  # noqa: BLE001 - of several libraries, and all mean the same
            where = (
                ""
                if isinstance(error, PredicateUnfit)
                else f": {_error_without_literals(error, text)}"
            )
            raise ShapeUnfit(
                f"{self.table}: {setting} cannot be asked of its rows{where}",
                "write as in: country in ('DE', 'FR') and fare >= 0; its columns are "
                f"{', '.join(self.arrow.names)}",
            ) from None
        return evaluate


def _error_without_literals(error: Exception, text: str) -> str:
    """Return the error in words, or its kind where it repeats a literal of the condition."""
    literals = [part for part in text.split("'")[1::2] if part]
    said = f"{type(error).__name__}: {error}"
    return type(error).__name__ if any(part in said for part in literals) else said


def _compile_expression(
    wanted: pc.Expression, names: list[str]
) -> Callable[[pa.RecordBatch], Flags]:
    project = acero.Declaration("project", acero.ProjectNodeOptions([wanted], ["met"]))

    def evaluate(rows: pa.RecordBatch) -> Flags:
        # A condition without columns is always true or never: any column counts the rows.
        table = pa.Table.from_batches([rows.select(names or rows.schema.names[:1])])
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
        plan = acero.Declaration.from_sequence([source, project])
        met = plan.to_table(use_threads=False).column("met")
        return np.asarray(pc.fill_null(met, fill_value=False).combine_chunks(), np.bool_)

    return evaluate


def _hash_column(column: pa.Array, key: bytes, data_type: pa.DataType) -> pa.Array:
    texts = column.cast(pa.large_binary())
    return loops().keyed_digests(texts, key, as_text=is_text_type(data_type)).cast(data_type)


def _mask_column(column: pa.Array, mask: Mask) -> pa.Array:
    length = pc.utf8_length(column)
    parts = [pa.scalar(mask.by, column.type)]
    if mask.first:
        parts.insert(0, pc.utf8_slice_codeunits(column, 0, mask.first))
    if mask.last:
        parts.append(pc.utf8_slice_codeunits(column, -mask.last))
    joined = pc.binary_join_element_wise(*parts, pa.scalar("", column.type))
    if not isinstance(joined, pa.Array):  # the same for every row
        joined = pa.array([mask.by], column.type).take(pa.array(np.zeros(len(column), np.int64)))
    shown = pc.if_else(
        pc.greater(length, mask.first + mask.last), joined, pa.scalar(mask.by, column.type)
    )
    return pc.if_else(column.is_valid(), shown, pa.scalar(None, column.type))
