"""Asks the question of ``headgate check`` about a transform: Spark's own answer, on no rows."""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.errors import TableMissing
from headgate.data.spark.pipeline import transformed_nothing
from headgate.data.spark.session import open_session
from headgate.data.spark.transform import transformation
from headgate.data.writers.plan import SourcePlan, WriterPlan
from headgate.operations.check_state import NotChecked
from headgate.sink.catalogs import spark_options
from headgate.sink.planning import record_columns, shaping
from headgate.sink.settings import SinkSettings
from headgate.sink.sink_tables import looked_at


def check_transform(settings: SinkSettings) -> str:
    """Check that the transform can be read, and that its columns fit the table.

    With many tables, checks that routes find what they look at. Instead of a cluster, a session on
    this machine answers: the analysis is the same.
    """
    transform = shaping(settings).transform
    assert transform is not None, "asked only when there is one"
    transformation(transform)
    try:
        plan = _plan(settings)
    except TableMissing:
        raise NotChecked(
            f"{transform.name} can be read; its columns were not compared because there is no table"
        ) from None
    options = spark_options(settings)
    session = open_session(
        replace(options, master="" if options.remote else "local[1]", parallelism=1)
    )
    try:
        columns = transformed_nothing(session.spark, plan)
    finally:
        session.close()
    return f"{transform.name} gives {', '.join(columns)}"


def _plan(settings: SinkSettings) -> WriterPlan:
    source = SourcePlan({}, record_columns=settings.table.record_columns.named())
    tables = settings.tables
    with looked_at(settings) as opened:
        plan = opened.primary.plan(source)
    if not tables:
        return plan
    behind = SourcePlan({}, record_columns=record_columns(settings), routing=tables.routing)
    return replace(plan, source=behind)
