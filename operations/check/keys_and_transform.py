"""Checks for ``headgate check`` whether tables with a key can be filled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from pyiceberg.table import Table

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record_codec import (
    claim_marker_property,
    key_columns_property,
    on_delete_property,
)
from headgate.control_protocol.errors import (
    HeadgateError,
    KeyUnfit,
    RetryLater,
    TableMissing,
    type_and_first_line_of,
)
from headgate.data_plane.batch.record_numbers import RecordNumbers
from headgate.data_plane.batch.writer_task_plan import SourcePlan, WriterPlan
from headgate.data_plane.cdc.policy import Envelope, Tombstones
from headgate.data_plane.files.format_choice import require_parquet_for_keyed_table
from headgate.data_plane.routing.keyed_routes import may_lead_to_keyed_table, may_lead_to_table
from headgate.data_plane.spark.job import columns_of_transform
from headgate.data_plane.spark.session import open_session
from headgate.data_plane.spark.transform import transform_function_of
from headgate.data_plane.transform.result_rows import RECORD
from headgate.data_plane.transform.user_function import UserFunction, load_function
from headgate.operations.access.kafka_connection import (
    open_reachable_source_topics,
    which_topics_are_compacted,
)
from headgate.operations.access.tables import names_of_primary_and_quarantine
from headgate.operations.check.table import NotChecked
from headgate.runtime.catalogs import spark_options
from headgate.runtime.sink_tables import open_tables_creating_nothing, require_catalog
from headgate.runtime.start_checks import require_markable_table_if_marking
from headgate.runtime.write_planning import record_columns_by_part, shaping_of
from headgate.tables.iceberg.upsert.key_property import key_property_text, require_same_key
from headgate.tables.iceberg.upsert.on_delete_property import (
    DeleteChoice,
    mark_column_id_or_missing,
    require_same_on_delete,
)


def check_key(settings: SinkSettings, table: Table | None) -> str:
    """Check that the one table was filled by its key, if it is there; say what deletes do.

    Raises ``KeyUnfit``, ``KeyChanged`` and ``DeletesChanged``.
    """
    key = settings.table.key
    if table is not None:
        require_table_fillable_by_key(settings, settings.table.identifier, key, table)
    return "; ".join([f"by {', '.join(key)}", *describe_marking_deletes(settings)])


def check_keys(settings: SinkSettings) -> str:
    """List the topics' tables that have a key; if records name the tables, the existing ones.

    Raises ``KeyUnfit`` and ``KeyChanged`` for an existing one that cannot be filled by it, and the
    error of one that cannot be read.
    """
    routing = settings.tables.routing
    with open_reachable_source_topics(settings) as topics:
        known = [
            name for name in sorted(topics.describe()) if may_lead_to_keyed_table(routing, name)
        ]
    if not known:
        return "no topic goes to a table with a key"
    names = {named.table for name in known if (named := routing.table_of_topic(name))}
    telling = [name for name in known if routing.table_of_topic(name) is None]
    require_catalog(settings)
    try:
        with open_tables_creating_nothing(settings) as tables:
            if telling:
                there = tables.find_tables_that_routes_can_name() - names_of_primary_and_quarantine(
                    tables
                )
                names |= {
                    n for n in there if any(may_lead_to_table(routing, t, n) for t in telling)
                }
            names = {name for name in names if routing.key_of(name)}
            unread = list[HeadgateError]()
            for name, answer in tables.open_each_existing_for_reading(sorted(names)):
                if isinstance(answer, HeadgateError):
                    unread.append(answer)
                else:
                    key = routing.key_of(name)
                    require_table_fillable_by_key(
                        settings, name, key, cast("Any", answer.reader).table
                    )
            for error in unread:
                raise error
    except TableMissing:  # the catalog has no database yet, and so no table
        pass
    notes = [f"{name} by {', '.join(routing.key_of(name))}" for name in sorted(names)]
    notes += describe_marking_deletes(settings)
    return "; ".join([*notes, *_describe_topics_naming_keyed_tables(settings, telling)])


def _describe_topics_naming_keyed_tables(settings: SinkSettings, topics: list[str]) -> list[str]:
    """What a person should know of topics whose records name keyed tables."""
    if not topics:
        return []
    notes = [f"records of {', '.join(topics)} name tables"]
    if settings.changes.tombstones is not Tombstones.DELETE:
        found = which_topics_are_compacted(settings.kafka, topics)
        notes += [
            f"{name} is compacted: of a key that was deleted it may hold no more than a record "
            "without a value, which deletes nothing here"
            for name in topics
            if found[name]
        ]
    return notes


def describe_marking_deletes(settings: SinkSettings) -> list[str]:
    """Say what a person should know of deletes that mark rows."""
    changes = settings.changes
    if not changes.marks_deleted_rows:
        return []
    kept = "each change adds a version, " if changes.history else ""
    told = f"{kept}deletes mark rows in {changes.deleted_at}"
    if changes.envelope is Envelope.PLAIN:
        return [f"{told}: a record without a value leaves the other columns empty"]
    told += ": the other columns are the record's own row before, or null where it has none"
    return [f"{told} (in PostgreSQL: REPLICA IDENTITY FULL); records without a value say nothing"]


def require_table_fillable_by_key(
    settings: SinkSettings, name: str, key: tuple[str, ...], table: Table
) -> None:
    """Raise ``KeyUnfit``, ``KeyChanged`` or ``DeletesChanged`` where a commit would."""
    schema = table.schema()
    try:
        wanted = key_property_text(schema, key)
    except KeyUnfit as error:
        raise KeyUnfit(f"{name}: {error.message}", error.hint) from None
    require_parquet_for_keyed_table(name, table.properties)
    require_markable_table_if_marking(settings, name, key, schema)
    stored = table.properties.get(key_columns_property(settings.name))
    filled = claim_marker_property(settings.name) in table.properties
    changes = settings.changes
    require_same_key(name, stored, None if changes.history else wanted, filled=filled)
    if changes.history:  # its commits know of no key, and so store no choice (KEY-14)
        return
    before = DeleteChoice.from_property(table.properties.get(on_delete_property(settings.name)))
    column = mark_column_id_or_missing(
        schema, changes.deleted_at if changes.marks_deleted_rows else ""
    )
    require_same_on_delete(name, schema, before, column, filled=filled)


# Asks the question of ``headgate check`` about a transform: what becomes of no rows.


def check_transform(settings: SinkSettings) -> str:
    """Check that the transform can be read, and that its columns fit the table.

    With many tables, checks that routes find what they look at. Instead of a cluster, a session on
    this machine answers: the analysis is the same. A function of this process is called once.
    """
    transform = shaping_of(settings).transform
    assert transform is not None, "asked only when there is one"
    if transform.in_process:
        load_function(transform.function)
    else:
        transform_function_of(transform)
    try:
        plan = _transform_plan(settings)
    except TableMissing:
        raise NotChecked(
            f"{transform.name} can be read; its columns were not compared because there is no table"
        ) from None
    if transform.in_process:
        given = _infer_result_columns(plan)
        return f"{transform.name} gives {', '.join(name for name in given if name != RECORD)}"
    options = spark_options(settings)
    session = open_session(
        replace(options, master="" if options.remote else "local[1]", parallelism=1)
    )
    try:
        columns = columns_of_transform(session.spark, plan)
    finally:
        session.close()
    return f"{transform.name} gives {', '.join(columns)}"


def _infer_result_columns(plan: WriterPlan) -> list[str]:
    function = UserFunction(plan, RecordNumbers({}))
    try:
        return list(function.infer_result_schema().names)
    except HeadgateError:
        raise
    except Exception as error:  # what it raises on another system's account
        raise RetryLater(
            f"transform.python, called without rows: {type_and_first_line_of(error)}",
            "see that what the function asks for is there",
        ) from error


def _transform_plan(settings: SinkSettings) -> WriterPlan:
    source = SourcePlan({}, record_columns=settings.table.record_columns.columns_by_part())
    tables = settings.tables
    with open_tables_creating_nothing(settings) as opened:
        plan = opened.plan_writes(source)
    if not tables:
        return plan
    behind = SourcePlan({}, record_columns=record_columns_by_part(settings), routing=tables.routing)
    return replace(plan, source=behind)
