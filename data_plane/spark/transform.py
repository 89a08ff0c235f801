"""Applies a sink's transform to Spark's rows: SQL text, or a user's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headgate.control_protocol.errors import ConfigurationError, HeadgateError, TransformFailed
from headgate.data_plane.batch.transform_and_distribution import TransformPlan
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.spark.session import error_text
from headgate.data_plane.transform.result_routing import require_routable
from headgate.data_plane.transform.result_rows import RECORD, require_valid_result
from headgate.data_plane.transform.select_parser import SelectText, parse_select
from headgate.data_plane.transform.user_function import load_function

_OF_THE_QUERY = ("21", "22", "23", "38", "39", "42", "0A")
"""Classes of SQLSTATE: wrong data or text, and what functions raise; not Spark's own trouble."""

Apply = Callable[[Any, Sequence[str]], Any]


def transform_function_of(plan: TransformPlan) -> Apply:
    """Return a function from records, and columns to carry along, to rows.

    Raises ``ConfigurationError`` for text that is not accepted, or a function that does not exist.
    """
    if plan.function:
        function = load_function(plan.function)
        return lambda records, _: function(records)
    text = parse_select(plan.sql)
    if RECORD in (name.lower() for name in text.names):
        raise ConfigurationError(
            f"transform.sql names {RECORD}, which says what record a row came from",
            "leave it out: it is added unchanged",
        )
    return lambda records, carried: _run_select(records, text, carried)


def _run_select(records: Any, text: SelectText, carried: Sequence[str]) -> Any:
    aliased = records.alias(text.alias)
    kept = aliased.where(text.where) if text.where else aliased
    chosen = {name.lower() for name in text.names}
    more = [] if text.star else [name for name in carried if name.lower() not in chosen]
    return kept.selectExpr(*text.items, *(f"`{text.alias}`.`{name}`" for name in more))


def apply_transform(records: Any, plan: WriterPlan) -> Any:
    """Return the transform's rows, whose columns go into the table.

    Raises ``ConfigurationError`` if they do not, or if Spark does not understand the transform;
    ``TransformFailed`` for what the function itself raises.
    """
    transform = plan.shaping.transform
    assert transform is not None, "asked only when there is one"
    apply = transform_function_of(transform)
    parts = plan.source.record_columns
    carried = [parts[what] for what in ("timestamp", "key", "headers", "struct") if what in parts]
    try:
        rows = apply(records, [*carried, RECORD])
        schema = _require_dataframe_schema(rows, transform.name)
    except HeadgateError:
        raise
    except Exception as error:
        _raise_if_transform_fault(error, transform.name)
        raise
    check = require_valid_result if plan.source.routing is None else require_routable
    check(schema, plan, transform.name)
    return rows


def _raise_if_transform_fault(error: Exception, name: str) -> None:
    reason = f"{name}: {error_text(error)}"
    if _is_raised_by_spark(error):
        if is_query_fault(error):
            raise ConfigurationError(reason, "correct the transform") from error
        return  # Spark itself is in trouble: retried
    raise TransformFailed(reason, "mend the function; nothing was committed") from error


def _require_dataframe_schema(rows: Any, name: str) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    if not hasattr(rows, "mapInArrow"):
        raise TransformFailed(
            f"{name} gives {type(rows).__name__}, not a DataFrame", "return the DataFrame"
        )
    return to_arrow_schema(rows.schema)


def _is_raised_by_spark(error: Exception) -> bool:
    """Return whether Spark raised it, but not as a Python error about wrong use of its classes."""
    if isinstance(error, (TypeError, ValueError, AttributeError, LookupError)):
        return False
    return any(cls.__module__.startswith(("pyspark.", "py4j.")) for cls in type(error).__mro__)


def is_query_fault(error: Exception) -> bool:
    """Return whether Spark blames the query, its data or its functions, not itself."""
    if type(error).__name__ == "PythonException":
        return True  # our own tasks return their failures, so it comes from a transform's function
    state = getattr(error, "getSqlState", lambda: None)()
    return isinstance(state, str) and state.startswith(_OF_THE_QUERY)
