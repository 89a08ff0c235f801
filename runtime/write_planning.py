"""Plans how batches are written: to the sink's table, or to the tables that its routes name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from headgate.config.column_rules import rules_of_decoded_columns
from headgate.config.multi_table_settings import CreateFrom
from headgate.config.routed_tables import DeclaredTables
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import transform_plan
from headgate.control_protocol.identifiers import tag_name
from headgate.control_protocol.ports import Batch, BatchOutcome
from headgate.data_plane.batch.row_rules import RowRules
from headgate.data_plane.batch.transform_and_distribution import Shaping
from headgate.data_plane.batch.writer_task_plan import Handling, SourcePlan, WriterPlan
from headgate.data_plane.routing.table_lookup import RoutedPlans, TableLookup, TablePlans


class Planning:
    """The plans of one sink. Used by one thread at a time."""

    def __init__(
        self, settings: SinkSettings, plans: TablePlans, routed: RoutedPlans | None = None
    ) -> None:
        self._settings = settings
        self.plans = plans
        self._routed = routed

    def write_planned(
        self, batch: Batch, write: Callable[[WriterPlan], BatchOutcome]
    ) -> BatchOutcome:
        """Write the batch by its plan. Raises what planning raises."""
        source = build_source_plan(self._settings, batch)
        if self._routed is None:
            return write(self.plans.load_plan(batch, source))
        return self._routed.write_until_tables_planned(batch, source, write)

    def drop_plans_with_temporary_credentials(self) -> bool:
        """Drop plans whose credentials are temporary; return whether there were any."""
        return (self._routed or self.plans).drop_plans_with_temporary_credentials()


def planning_of(settings: SinkSettings, plans: TablePlans, lookup: TableLookup) -> Planning:
    """Return the plans for these tables, some of which routes may name."""
    routed = RoutedPlans(lookup, plans, DeclaredTables(settings)) if settings.tables else None
    return Planning(settings, plans, routed)


def build_source_plan(settings: SinkSettings, batch: Batch) -> SourcePlan:
    """Return where the batch's records come from, and how their values are read."""
    tables = settings.tables
    changes = settings.changes.change_rules_for_key(settings.table.key)
    return SourcePlan(
        kafka=dict(settings.kafka),
        topic_ids=batch.topic_ids,
        format_name=settings.format.type,
        format_options=dict(settings.format.options),
        record_columns=record_columns_by_part(settings),
        rules=rules_of_decoded_columns(settings) if settings.transform or not tables else {},
        key_format_name=settings.format.key_type,
        key_format_options=dict(settings.format.key_options),
        handling=Handling(
            policy=settings.quarantine.policy,
            tombstones=(changes and changes.tombstones.disposal) or settings.quarantine.tombstones,
            limits=settings.quarantine.bad_record_limits,
            tag=tag_name(settings.name, settings.table.branch),
            excerpts=settings.quarantine.excerpts and not settings.shape.hidden_columns,
            keeps_content=not settings.shape.hidden_columns,
            unrouted_tombstones=settings.changes.tombstones.disposal,
            **({"unmatched": tables.unmatched} if tables else {}),
        ),
        sink=settings.name,
        redaction=settings.redaction_for_tasks,
        schema_policy=settings.table.schema.policy,
        routing=tables.routing if tables else None,
        creates_tables=tables.create.schema is not CreateFrom.OFF and not settings.transform,
        changes=changes,
    )


def shaping_of(settings: SinkSettings) -> Shaping:
    """Return what happens to rows between decoding and files."""
    parts = record_columns_by_part(settings) if settings.tables else {}
    here = settings.transforms_in_process
    transform = transform_plan(settings.transform, parts, in_process=here)
    rules, late_by = settings.shape.row_rules, settings.maintenance.column_for_skipping_late_rows
    if late_by:
        rules = replace(rules or RowRules(), late_by=late_by)
    return Shaping(transform, settings.spark.distribution, rules)


def record_columns_by_part(settings: SinkSettings) -> Mapping[str, str]:
    """Return, by part of the record, the column that takes it when records are decoded.

    These are the table's own columns, or the columns that a transform receives.
    """
    if settings.tables and not settings.transform:
        return {}
    named = settings.tables or settings.table
    return named.record_columns.columns_by_part()
