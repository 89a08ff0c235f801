"""Asks the question of ``headgate check`` about a transform: Spark's own answer, on no rows."""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.events import TableStart
from headgate.data.spark.pipeline import transformed_nothing
from headgate.data.spark.session import open_session
from headgate.data.spark.transform import transformation
from headgate.data.writers.layout_plans import plan_of_layout
from headgate.data.writers.plan import SourcePlan, WriterPlan, plan_for
from headgate.operations.check_state import NotChecked
from headgate.operations.table_access import opened_catalog, opened_table
from headgate.sink.catalogs import spark_options
from headgate.sink.kinds import other_kind, wanted_table
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
    plan = _plan_of_kind(settings, source) or _plan_of_iceberg(settings, source)
    if not tables:
        return plan
    behind = SourcePlan({}, record_columns=record_columns(settings), routing=tables.routing)
    return replace(plan, source=behind)


def _plan_of_kind(settings: SinkSettings, source: SourcePlan) -> WriterPlan | None:
    kind = other_kind(settings)
    if kind is None:
        return None
    wanted = wanted_table(settings)
    return plan_of_layout(kind.file_schema(wanted), wanted.name, source, shaping(settings))


def _plan_of_iceberg(settings: SinkSettings, source: SourcePlan) -> WriterPlan:
    with opened_table(settings) as table:
        start = TableStart(
            table=settings.table.identifier,
            uuid=str(table.metadata.table_uuid),
            schema_id=table.schema().schema_id,
            spec_id=table.spec().spec_id,
            file_prefix="",
        )
    with opened_catalog(settings) as catalog:
        return plan_for(catalog, start, source, shaping(settings))
