"""Implements ``OpenedTables`` for all kinds but Iceberg: a table, and its followers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.ports import (
    Lead,
    SourceTopics,
)
from headgate.control_protocol.stamps import StampingTable
from headgate.control_protocol.table_kinds import Layout, TableKind, WantedTable
from headgate.data.writers.layout_plans import LayoutAside, LayoutPlans, PlansAside
from headgate.sink.aside import IcebergAside, ready_aside
from headgate.sink.gone import PATIENCE_S, refuse_gone
from headgate.sink.kind_lead import as_lead, kind_followers, kind_lead
from headgate.sink.kind_shelf import KindShelf
from headgate.sink.kinds import wanted_quarantine, wanted_table
from headgate.sink.made_tables import MakingTopics, TableMaker
from headgate.sink.opened_tables import Coordinated, Maintained
from headgate.sink.planning import Planning, planning_of, shaping
from headgate.sink.preconditions import refuse_columns_aside, refuse_place, refuse_schema
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.creation import key_ids
from headgate.tables.iceberg.gate import Gates
from headgate.tables.layouts import schema_of


def ready_kind(settings: SinkSettings, kind: TableKind, stack: ExitStack) -> KindTables:
    """Create the tables if that is allowed; ``stack`` closes what the quarantine needs.

    Raises if the table cannot take the records.
    """
    wanted = wanted_table(settings)
    try:
        layout = kind.layout(wanted)
    except TableMissing:
        if not settings.table.create:
            raise
        refuse_gone(settings, PATIENCE_S)
        refuse_place(settings.table.location)
        kind.ensure(wanted)
        layout = kind.layout(wanted)
    refuse_layout(layout, settings)
    aside = ready_aside(settings, stack)
    if settings.quarantine.keeps and aside is None:
        ensure_quarantine(settings, kind)
    return KindTables(settings, kind, aside)


def ensure_quarantine(settings: SinkSettings, kind: TableKind) -> None:
    """Create the quarantine if it is missing. Raises as ``refuse_quarantine``."""
    wanted = wanted_quarantine(settings)
    kind.ensure(wanted)
    refuse_quarantine(kind.layout(wanted), settings)


def refuse_quarantine(layout: Layout, settings: SinkSettings) -> None:
    """Raise ``TableUnfit`` for a table that cannot keep the sink's bad records."""
    refuse_place(layout.location)
    refuse_columns_aside(settings.quarantine.table, schema_of(layout.columns))


def refuse_layout(layout: Layout, settings: SinkSettings) -> None:
    """Raise ``TableChanged`` or ``KeyUnfit`` if records could never become files of the layout."""
    schema = schema_of(layout.columns)
    refuse_schema(schema, settings)
    key_ids(schema, settings.table.key)
    refuse_place(layout.location)


class KindTables:
    """The table of the sink, and its followers. ``aside``: a quarantine of another kind."""

    def __init__(
        self, settings: SinkSettings, kind: TableKind, aside: IcebergAside | None = None
    ) -> None:
        self.wanted: WantedTable = wanted_table(settings)
        self._settings = settings
        self._kind = kind
        self._aside = aside

    def lead(self) -> Lead:
        return kind_lead(self._settings, self._kind)

    def planning(self) -> Planning:
        settings, kind = self._settings, self._kind
        plans = LayoutPlans(
            lambda: kind.layout(self.wanted), shaping(settings), self._plans_aside()
        )
        return planning_of(settings, plans, KindShelf(settings, kind).stock())

    def _plans_aside(self) -> PlansAside | None:
        settings, kind = self._settings, self._kind
        if self._aside is not None:
            return self._aside.plans()
        if not settings.quarantine.keeps:
            return None
        wanted = wanted_quarantine(settings)
        return LayoutAside(lambda: kind.layout(wanted), lambda: kind.reader(wanted, settings.name))

    def coordinated(
        self,
        settings: SinkSettings,
        topics: SourceTopics,
        opening: ExitStack,
        maintained: Maintained | None,
    ) -> Coordinated:
        table = self._kind.open(wanted_table(settings), settings.name)
        opening.callback(table.close)
        maker = None
        if settings.tables:
            shelf = KindShelf(settings, self._kind)
            maker = TableMaker(settings, shelf, filled=lambda: table.read().filled)
        aside, gates = self._aside, Gates()
        opened = partial(aside.follower, gates) if aside else None
        told = aside.told(settings, opening) if aside else lambda: None
        followers = kind_followers(settings, self._kind, maker, aside=opened, told=told)
        opening.callback(followers.close)
        if aside:
            aside.maintain(settings, gates, opening, maintained)
        sources = MakingTopics(topics, maker) if maker else topics
        coordinated = Coordinated(as_lead(table, self._kind), followers, sources)
        if isinstance(table, StampingTable) and not settings.tables:  # a ledger has no files
            return replace(coordinated, stamp=table.stamp)
        return coordinated
