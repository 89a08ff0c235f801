"""Describes a table that routes name, as a writer sees it: found, to be created, or unavailable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.events import Destination
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.schema_evolution import Refusal

if TYPE_CHECKING:  # checking settings must not import Arrow
    from headgate.data_plane.batch.writer_task_plan import SourcePlan, WriterPlan


@dataclass(frozen=True, slots=True)
class CreationSource:
    """Says how a missing table gets its columns (rule CREATE-1).

    ``source`` says how its records are read; ``declared``: the sink file has the columns.
    """

    source: SourcePlan
    declared: bool = False


@dataclass(frozen=True, slots=True)
class RoutedTable:
    """With a ``plan`` it exists, with ``creation`` it may be made; else ``problem`` says why not.

    ``raw_name`` is the value that its property has for its records (ROUTE-3), ``refused`` the
    fields that become no columns (SCHEMA-2). ``trouble``: what is wrong with a table that took rows
    before, or could: others' doing, not the route's (SUSPEND-1). ``prefix``: where its files go, if
    START says it.
    """

    name: str
    plan: WriterPlan | None = None
    problem: str = ""
    uuid: str = ""
    schema_id: int = 0
    raw_name: str = ""
    creation: CreationSource | None = None
    refused: tuple[Refusal, ...] = ()
    trouble: str = ""
    prefix: str = ""

    @property
    def destination(self) -> Destination:
        return Destination(self.name, self.uuid, self.schema_id)


def placeholder_for_dropped_table(name: str) -> RoutedTable:
    """Return a table that existed before."""
    why = f"{TableMissing.code} table {name} no longer exists: it was dropped or renamed"
    return RoutedTable(name, problem=why, trouble=why)


def table_of_start(plan: WriterPlan, batch: Batch) -> RoutedTable:
    """Return the table that START names, whose plan is the batch's."""
    at = batch.table
    return RoutedTable(
        at.table,
        plan,
        uuid=at.uuid,
        schema_id=at.schema_id,
        refused=at.refused,
        prefix=at.file_prefix,
    )


def tables_of_plan(plan: WriterPlan, batch: Batch) -> Mapping[str, RoutedTable]:
    """Return the tables that rows of the batch may go to, by name."""
    if plan.source.routing is not None:
        return plan.tables
    return {batch.table.table: table_of_start(plan, batch)}
