"""Asks the question of ``headgate check`` about a transform: Spark's own answer, on no rows."""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.events import TableStart
from headgate.data.spark.pipeline import transformed_nothing
from headgate.data.spark.session import SparkOptions, open_session
from headgate.data.spark.transform import transformation
from headgate.data.writers.plan import SourcePlan, WriterPlan, plan_for
from headgate.operations.check_state import NotChecked
from headgate.operations.table_access import opened_catalog, opened_table
from headgate.sink.planning import record_columns, shaping
from headgate.sink.settings import SinkSettings


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
    spark = settings.spark
    master = "" if spark.remote else "local[1]"
    session = open_session(
        SparkOptions(master, spark.remote, spark.app_name, parallelism=1, conf=spark.conf)
    )
    try:
        columns = transformed_nothing(session.spark, plan)
    finally:
        session.close()
    return f"{transform.name} gives {', '.join(columns)}"


def _plan(settings: SinkSettings) -> WriterPlan:
    source = SourcePlan({}, record_columns=settings.table.record_columns.named())
    tables = settings.tables
    with opened_table(settings) as table:
        start = TableStart(
            table=settings.table.identifier,
            uuid=str(table.metadata.table_uuid),
            schema_id=table.schema().schema_id,
            spec_id=table.spec().spec_id,
            file_prefix="",
        )
    with opened_catalog(settings) as catalog:
        plan = plan_for(catalog, start, source, shaping(settings))
    if not tables:
        return plan
    behind = SourcePlan({}, record_columns=record_columns(settings), routing=tables.routing)
    return replace(plan, source=behind)
