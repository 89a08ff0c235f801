"""Runs a sink's own Python function on Arrow batches, in this process (``transform.python``).

It may do anything with rows, so nothing that it gives is believed: rows are known by the numbers of
their records, and each call must give those that it got, once or not at all (SHAPE-5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.control_protocol.errors import (
    ConfigurationError,
    RetryLater,
    TransformFailed,
    TransformRaised,
    type_and_first_line_of,
)
from headgate.data_plane.batch.failure_classification import is_external_failure
from headgate.data_plane.batch.record_numbers import RecordNumbers
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.formats.casting.relabel import rows_from_python
from headgate.data_plane.quarantine.poison_search import (
    ALONE_MAX,
    bounded_error_text,
    halve_until_complete,
)
from headgate.data_plane.transform.result_routing import require_routable
from headgate.data_plane.transform.result_rows import (
    RECORD,
    repeated_rows_error,
    require_valid_result,
    unknown_rows_error,
)
from headgate.native.kernels import Flags, Integers


def load_function(path: str) -> Callable[[Any], Any]:
    """Return the function of this path.

    Raises ``ConfigurationError`` if there is none, or its module raises, and ``RetryLater`` if that
    is on another system's account.
    """
    module, _, name = path.partition(":")
    try:
        function = getattr(import_module(module), name)
    except Exception as error:
        told = f"transform.python: {path!r} cannot be loaded: {type_and_first_line_of(error)}"
        if is_external_failure(error):
            raise RetryLater(told, "see that what its module asks for is there") from error
        raise ConfigurationError(
            told,
            'write "package.module:function", installed here or in a folder of PYTHONPATH; or mend '
            "the module",
        ) from error
    if not callable(function):
        raise ConfigurationError(f"transform.python: {path!r} is not a function")
    result: Callable[[Any], Any] = function
    return result


@dataclass(frozen=True, slots=True)
class Given:
    """Holds what the function gave for some rows: ``kept`` are those that it gave back.

    ``bad``: those for which it raised, with the reason.
    """

    batches: Sequence[pa.RecordBatch]
    kept: Flags
    bad: Mapping[int, str]


class UserFunction:
    """Calls the function of a plan for rows of ``plan.decoded_schema()``.

    ``numbering``: of the batch that the rows are of. Raises ``ConfigurationError`` where there is
    no such function.
    """

    def __init__(self, plan: WriterPlan, numbering: RecordNumbers) -> None:
        transform = plan.shaping.transform
        assert transform is not None, "asked only when there is one"
        self._function = load_function(transform.function)
        self._plan = plan
        self._name = transform.name
        self._numbering = numbering
        self._schema = plan.decoded_schema().append(pa.field(RECORD, pa.int64()))
        self._valid: pa.Schema | None = None

    def infer_result_schema(self) -> pa.Schema:
        """Return the schema of what the function gives for no rows at all.

        Raises as ``apply``, and ``TransformRaised``.
        """
        (given, *_) = self._call(rows_from_python([], self._schema))
        return given.schema

    def apply(self, rows: pa.RecordBatch, numbers: Integers) -> Given:
        """Call the function for rows of these numbers; a row for which it raises is bad.

        Raises ``TransformFailed`` for what is no batch, for a record in two rows, one that was not
        among these, and if it raises for each of many; ``ConfigurationError`` for columns that do
        not fit; and what it raises on another system's account.
        """
        # Copied: Arrow would lend NumPy's memory, and the function could write to it.
        numbered = pa.array(numbers.copy())
        rows = pa.RecordBatch.from_arrays([*rows.columns, numbered], schema=self._schema)
        try:
            given, bad = self._call(rows), dict[int, str]()
        except TransformRaised:
            given, bad = self._call_around_failing_rows(rows)
        return Given(given, self._require_known_unrepeated_records(given, numbers), bad)

    def _call_around_failing_rows(
        self, rows: pa.RecordBatch
    ) -> tuple[list[pa.RecordBatch], dict[int, str]]:
        """Call it with halves of the rows, until those for which it raises stand alone."""
        given: list[pa.RecordBatch] = []
        bad: dict[int, str] = {}

        def try_complete_rows(wanted: Integers) -> bool:
            try:
                given.extend(self._call(rows.slice(int(wanted[0]), len(wanted))))
            except TransformRaised as error:
                if len(wanted) > 1:
                    return False
                bad[int(wanted[0])] = error.message
                if not given and len(bad) >= ALONE_MAX:
                    raise TransformFailed(
                        f"{error.message}; so with each of the first {ALONE_MAX} records",
                        "mend the function; nothing of them was committed",
                    ) from None
            return True

        halve_until_complete(rows.num_rows, try_complete_rows)
        return given, bad

    def _call(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Call it once. Raises ``TransformRaised`` for what it raises about rows."""
        raised: BaseException | None = None
        try:
            result = self._function(rows)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if is_external_failure(error):
                raise
            raised = error
        if raised is not None:
            # Outside of the handler: what follows it would show the error's own text.
            raise TransformRaised(
                f"{self._name}: {self._error_text(raised)}",
                "mend it, or the records that it meets; nothing of them was committed",
            )
        given = self._require_arrow_batches(result)
        for each in given:
            self._require_valid_schema(each.schema)
        return given

    def _error_text(self, error: BaseException) -> str:
        shown = self._plan.source.handling.excerpts
        return bounded_error_text(error) if shown else type(error).__name__

    def _require_arrow_batches(self, result: Any) -> list[pa.RecordBatch]:
        if isinstance(result, pa.Table):
            empty = rows_from_python([], result.schema)
            return [each for each in result.to_batches() if each.num_rows] or [empty]
        if isinstance(result, pa.RecordBatch):
            return [result]
        raise TransformFailed(
            f"{self._name} gives {type(result).__name__}, not a batch of Arrow's",
            "return a pyarrow.RecordBatch or a pyarrow.Table; with spark.writer = "
            '"in-process" the function gets a RecordBatch, not a DataFrame of Spark\'s',
        )

    def _require_valid_schema(self, schema: pa.Schema) -> None:
        if self._valid is not None and schema.equals(self._valid):
            return
        routed = self._plan.source.routing is not None
        (require_routable if routed else require_valid_result)(schema, self._plan, self._name)
        self._valid = schema

    def _require_known_unrepeated_records(
        self, given: Sequence[pa.RecordBatch], numbers: Integers
    ) -> Flags:
        """Return which of the numbers are in the result. Raises ``TransformFailed``."""
        order = np.argsort(numbers, kind="stable")
        known, counts = numbers[order], np.zeros(len(numbers), np.int64)
        for each in given:
            column = each.column(RECORD)
            if column.null_count:
                raise TransformFailed(
                    f"{self._name} gives rows without {RECORD}", "carry the column unchanged"
                )
            found = np.asarray(column)
            places = np.searchsorted(known, found).clip(max=max(0, len(known) - 1))
            strange = found[known[places] != found] if len(known) else found
            if len(strange):
                raise unknown_rows_error(
                    self._name, len(strange), self._describe_record(int(strange[0]))
                )
            counts += np.bincount(places, minlength=len(known))
        if more := int((counts - 1).clip(min=0).sum()):
            where = self._describe_record(int(known[counts.argmax()]))
            raise repeated_rows_error(self._name, more, f", as of {where}")
        kept = np.zeros(len(numbers), np.bool_)
        kept[order] = counts > 0
        return kept

    def _describe_record(self, number: int) -> str:
        try:
            return self._numbering.describe_record(number)
        except ValueError:
            return f"number {number}, which no record of the batch has"
