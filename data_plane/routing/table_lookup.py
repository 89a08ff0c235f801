"""Looks up and keeps the tables that routes name, and plans how files of each are written.

START does not name them (rule LEDGER-1). Namespaces are listed, so that a field with arbitrary
values costs no calls; only tables that records go to are loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    MissingRights,
    RetryLater,
    TableMissing,
    Unreachable,
)
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.ports import Batch, BatchOutcome, BatchWritten
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.control_protocol.table_format import SupportsCatalog, TableFormat, TableSpec
from headgate.data_plane.batch.failure_classification import LacksTablePlans
from headgate.data_plane.batch.routed_table import (
    CreationSource,
    RoutedTable,
    placeholder_for_dropped_table,
)
from headgate.data_plane.batch.transform_and_distribution import Shaping
from headgate.data_plane.batch.writer_task_plan import (
    NO_TABLE_IS_CREATED,
    NONE_IS_DECLARED,
    SourcePlan,
    WriterPlan,
    plan_of_file_schema,
    require_own_folder,
)
from headgate.data_plane.files.format_choice import require_parquet_for_keyed_table
from headgate.data_plane.routing.routes import RAW_NAME_PROPERTY, fold_case
from headgate.data_plane.routing.table_resolution import folded_own_table_names
from headgate.tables.iceberg.catalog import missing_rights_or_none
from headgate.tables.storage.object_stores import has_temporary_credentials

# ------------------------------------------------------------------------------------------- tables


class TableLookup:
    """The tables of a format as they are, for one thread at a time. ``spec``: of each name.

    A catalog lists tables. Without one, a list may name other folders, and former tables: then a
    name counts once a table was there, and loading it shows what became of it.
    """

    def __init__(self, of: TableFormat, spec: Callable[[str], TableSpec]) -> None:
        self._format = of
        self._spec = spec
        self._seen = set[str]()

    def list_table_names(self, namespace: str) -> frozenset[str]:
        """Return the last parts of the names of its tables. Raises ``Unreachable``."""
        listed = self._format.list_table_names(self._spec(f"{namespace}.any"))
        if isinstance(self._format, SupportsCatalog):
            return frozenset(listed)
        found = {f"{namespace}.{short}": short for short in listed}
        self._seen |= {
            name for name in found.keys() - self._seen if self._format.exists(self._spec(name))
        }
        return frozenset(short for name, short in found.items() if name in self._seen)

    def look_up_table(self, name: str, source: SourcePlan, shaping: Shaping) -> RoutedTable:
        """Return the table as it is now, or what is wrong with it. Raises ``Unreachable``."""
        try:
            layout = self._format.file_schema(self._spec(name))
        except TableMissing:  # it was listed a moment ago
            return placeholder_for_dropped_table(name)
        except (MissingRights, RetryLater) as error:
            if refused := missing_rights_or_none(error):
                return RoutedTable(name, problem=str(refused), trouble=str(refused))
            raise Unreachable(error.message, error.hint) from error  # nothing is known of the table
        except ConfigurationError as error:
            return RoutedTable(name, problem=error.message)
        except HeadgateError as error:
            return RoutedTable(name, problem=str(error), trouble=str(error))
        self._seen.add(name)
        try:
            plan = plan_of_file_schema(layout, name, source, shaping)
            if source.changes is not None:
                require_parquet_for_keyed_table(name, plan.shape.table_properties)
        except ConfigurationError as error:
            return RoutedTable(name, problem=error.message)
        raw_name = layout.properties.get(RAW_NAME_PROPERTY, "")
        return RoutedTable(name, plan, "", layout.uuid, layout.schema_id, raw_name)


# -------------------------------------------------------------------------------------------- plans


LISTED_S = 10.0
"""How long a namespace's list of tables is kept."""

LOADED_S = 30.0
"""How long a table's schema, properties and keys are kept."""

NAMESPACES_WITHOUT_TABLES_MAX = 100
"""How many lists are kept of namespaces without a known table: records may name any number."""

_TRIES = 5
_log = redacted_logger(__name__)


class TableDeclarations(Protocol):
    """The sink file's settings for a table of this name."""

    def source_plan_for_table(self, source: SourcePlan, table: str) -> SourcePlan:
        """Return how its records are read."""

    def creation_source_of(self, source: SourcePlan, table: str) -> CreationSource | None:
        """Return how a missing table gets its columns; ``None`` if it is not made."""

    @property
    def recreates_missing(self) -> bool:
        """Return whether that includes tables that existed before (LEDGER-2)."""


class TablePlans(Protocol):
    """The plans of a sink's own table; ``Plans`` makes them for Iceberg."""

    shaping: Shaping

    def load_plan(self, batch: Batch, source: SourcePlan) -> WriterPlan: ...

    def drop_plans_with_temporary_credentials(self) -> bool: ...


class RoutedPlans:
    """Does as ``Plans``, for a sink with routes. Used by one thread at a time."""

    def __init__(
        self,
        lookup: TableLookup,
        plans: TablePlans,
        declarations: TableDeclarations,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lookup = lookup
        self._plans = plans
        self._declarations = declarations
        self._now_s = monotonic_s
        self._listed: dict[str, tuple[float, frozenset[str]]] = {}
        self._loaded: dict[str, tuple[float, RoutedTable]] = {}
        self._dropped: set[str] = set()
        self._suspended: frozenset[str] = frozenset()
        self._applied: dict[str, TableStart] = {}

    def write_until_tables_planned(
        self, batch: Batch, source: SourcePlan, write: Callable[[WriterPlan], BatchOutcome]
    ) -> BatchOutcome:
        """Write the batch, again if it wants tables that the plan did not have."""
        wanted: frozenset[str] = frozenset()
        for _ in range(_TRIES):
            outcome = write(self.load_plan(batch, source, wanted))
            if not isinstance(outcome, LacksTablePlans):
                break
            wanted |= outcome.names
        return self._outcome_with_table_troubles(outcome)

    def _outcome_with_table_troubles(self, outcome: BatchOutcome) -> BatchOutcome:
        """SUSPEND-1: add to the status what is wrong with tables that took no records."""
        if not isinstance(outcome, BatchWritten):
            return outcome
        known = {name: table.trouble for name, (_, table) in self._loaded.items()}
        known |= {name: placeholder_for_dropped_table(name).trouble for name in self._dropped}
        return replace(outcome, troubles={name: why for name, why in known.items() if why})

    def load_plan(
        self, batch: Batch, source: SourcePlan, wanted_tables: frozenset[str] = frozenset()
    ) -> WriterPlan:
        """Return the plan with the quarantine, tables of the batch's topics, those wanted and used.

        Raises as ``Plans.load_plan``.
        """
        routing = source.routing
        assert routing is not None, "chosen for it"
        primary = replace(source, record_columns={}, rules={}, routing=None)
        plan = self._plans.load_plan(batch, primary)
        require_own_folder(
            replace(batch.table, file_prefix=f"{plan.shape.data_location}/{batch.folder}"),
            plan.shape.data_location,
        )
        self._forget_suspended(frozenset(batch.suspended))
        self._invalidate_changed_tables(batch.changed_tables)
        own = folded_own_table_names(batch)
        alone = {
            target.table
            for topic in {at.topic for at in batch.ranges}
            if (target := routing.table_of_topic(topic)) and fold_case(target.table) not in own
        } - self._suspended
        self._refresh_stale_listings(
            {_namespace_of(name) for name in (*alone, *wanted_tables)}, alone
        )
        # ROUTE-4: what exists is never left out for its number: this process knows only what it met
        names = sorted({*alone, *wanted_tables, *self._loaded, *self._dropped})
        tables = {
            name: table for name in names if (table := self._get_or_look_up_table(name, source))
        }
        no_creation_reason = self._why_no_table_is_created(batch.changed_tables, source)
        for start in batch.changed_tables:
            if (known := tables.get(start.table)) and known.uuid == start.uuid:
                tables[known.name] = replace(known, refused=start.refused)
        refusals = {
            start.table: start.refused[0].reason
            for start in batch.changed_tables
            if start.table and start.refused and not start.uuid
        }
        # Refused ones at once: a write that finds out each time that it lacks them may never end.
        # Not those that are there by now (ROUTE-4): somebody made them after the refusal.
        refused = {name for name in refusals if not self._is_listed(name)}
        for name in sorted({*alone, *wanted_tables, *refused} - tables.keys()):
            if name in alone or not no_creation_reason:
                tables[name] = self._missing_routed_table(name, source, refusals.get(name))
        return replace(
            plan,
            source=source,
            tables=tables,
            listed_tables={name: listed for name, (_, listed) in self._listed.items()},
            no_creation_reason=no_creation_reason,
        )

    def _invalidate_changed_tables(self, changes: tuple[TableStart, ...]) -> None:
        """Look again at what TABLES named, once for each answer."""
        for start in changes:
            if not start.table or self._applied.get(start.table) == start:
                continue
            self._applied[start.table] = start
            self._loaded.pop(start.table, None)
            until_s, known = self._listed.get(_namespace_of(start.table), (0.0, frozenset[str]()))
            short = frozenset({_last_part_of(start.table)})
            known = known | short if start.uuid else known - short
            self._listed[_namespace_of(start.table)] = until_s, known

    def _why_no_table_is_created(self, changes: tuple[TableStart, ...], source: SourcePlan) -> str:
        """ROUTE-4: return why no table is made now for names from records."""
        if not source.creates_tables:
            return NO_TABLE_IS_CREATED
        reasons = [why.reason for start in changes if not start.table for why in start.refused]
        return f"and none is made now: {reasons[0]}" if reasons else ""

    def _missing_routed_table(
        self, name: str, source: SourcePlan, refusal: str | None
    ) -> RoutedTable:
        """CREATE-1: return a missing table; only the coordinator makes it, if anybody does."""
        if refusal is not None:
            dropped = refusal.startswith(TableMissing.code)  # the coordinator knew it (LEDGER-2)
            return RoutedTable(name, problem=refusal, trouble=refusal if dropped else "")
        creation = self._declarations.creation_source_of(source, name)
        why = NONE_IS_DECLARED if source.creates_tables else NO_TABLE_IS_CREATED
        problem = "" if creation else f"there is no table {name}, {why}"
        return RoutedTable(name, problem=problem, creation=creation)

    def _forget_suspended(self, suspended: frozenset[str]) -> None:
        """Forget suspended tables, so that they are looked up again when they are open."""
        for name in suspended:
            self._loaded.pop(name, None)
        self._dropped -= suspended
        if suspended != self._suspended:
            self._listed.clear()
            self._suspended = suspended

    def drop_plans_with_temporary_credentials(self) -> bool:
        """Forget all routed tables, and the plans with temporary keys; return whether any had."""
        plans = [table.plan for _, table in self._loaded.values() if table.plan]
        self._loaded.clear()
        forgotten = self._plans.drop_plans_with_temporary_credentials()
        return forgotten or any(has_temporary_credentials(each.io_properties) for each in plans)

    def _refresh_stale_listings(self, namespaces: set[str], needed: set[str]) -> None:
        """List the namespaces; a recent list is kept, unless a topic's table is missing in it."""
        now_s = self._now_s()
        used = namespaces | {_namespace_of(name) for name in (*self._loaded, *self._dropped)}
        unused = [namespace for namespace in self._listed if namespace not in used]
        for namespace in unused[:-NAMESPACES_WITHOUT_TABLES_MAX]:
            del self._listed[namespace]
        for namespace in sorted(namespaces | self._listed.keys()):
            until_s, known = self._listed.get(namespace, (0.0, frozenset()))
            missing = any(
                _namespace_of(n) == namespace and _last_part_of(n) not in known for n in needed
            )
            if now_s >= until_s or missing:
                self._listed[namespace] = (
                    now_s + LISTED_S,
                    self._lookup.list_table_names(namespace),
                )

    def _is_listed(self, name: str) -> bool | None:
        """Return whether the list of its namespace has the table; ``None`` if there is no list."""
        listed = self._listed.get(_namespace_of(name))
        return None if listed is None else _last_part_of(name) in listed[1]

    def _get_or_look_up_table(self, name: str, source: SourcePlan) -> RoutedTable | None:
        if self._is_listed(name) is False:
            before = self._loaded.pop(name, None)
            had = before is not None and before[1].plan is not None
            if had and not self._declarations.recreates_missing:
                self._dropped.add(name)
            return placeholder_for_dropped_table(name) if name in self._dropped else None
        self._dropped.discard(name)
        until_s, known = self._loaded.get(name, (0.0, None))
        now_s = self._now_s()
        if known is None or now_s >= until_s:
            own = self._declarations.source_plan_for_table(source, name)
            known = self._lookup.look_up_table(name, own, self._plans.shaping)
            if known.trouble.startswith(TableMissing.code) and self._declarations.recreates_missing:
                self._loaded.pop(name, None)
                return None
            self._loaded[name] = (now_s + LOADED_S, known)
            if known.problem:
                event = event_extra(LogEvent.RECORDS_UNMATCHED, table=name)
                _log.warning("records of %s go nowhere else: %s", name, known.problem, extra=event)
        return known


def _namespace_of(name: str) -> str:
    return name.rpartition(".")[0]


def _last_part_of(name: str) -> str:
    return name.rpartition(".")[2]
