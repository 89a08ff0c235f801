"""Implements ``OpenedTables`` for all kinds but Iceberg: a table, and perhaps its quarantine."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.ports import (
    Lead,
    SourceTopics,
)
from headgate.control_protocol.stamps import StampingTable
from headgate.control_protocol.table_kinds import Layout, TableKind, WantedTable
from headgate.data.writers.layout_plans import LayoutPlans
from headgate.sink.gone import PATIENCE_S, refuse_gone
from headgate.sink.kind_lead import as_lead, kind_followers, kind_lead
from headgate.sink.kind_shelf import KindShelf
from headgate.sink.kinds import wanted_quarantine, wanted_table
from headgate.sink.made_tables import MakingTopics, TableMaker
from headgate.sink.opened_tables import Coordinated, Maintained
from headgate.sink.planning import Planning, planning_of, shaping
from headgate.sink.preconditions import refuse_place, refuse_schema
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.creation import key_ids
from headgate.tables.layouts import schema_of


def ready_kind(settings: SinkSettings, kind: TableKind) -> KindTables:
    """Create the table if that is allowed. Raises if it cannot take the records."""
    tables = KindTables(settings, kind)
    try:
        layout = kind.layout(tables.wanted)
    except TableMissing:
        if not settings.table.create:
            raise
        refuse_gone(settings, PATIENCE_S)
        refuse_place(settings.table.location)
        kind.ensure(tables.wanted)
        layout = kind.layout(tables.wanted)
    refuse_layout(layout, settings)
    if settings.quarantine.keeps:
        kind.ensure(wanted_quarantine(settings))
    return tables


def refuse_layout(layout: Layout, settings: SinkSettings) -> None:
    """Raise ``TableChanged`` or ``KeyUnfit`` if records could never become files of the layout."""
    schema = schema_of(layout.columns)
    refuse_schema(schema, settings)
    key_ids(schema, settings.table.key)
    refuse_place(layout.location)


class KindTables:
    """The table of the sink, and its followers."""

    def __init__(self, settings: SinkSettings, kind: TableKind) -> None:
        self.wanted: WantedTable = wanted_table(settings)
        self._settings = settings
        self._kind = kind

    def lead(self) -> Lead:
        return kind_lead(self._settings, self._kind)

    def planning(self) -> Planning:
        settings, kind = self._settings, self._kind
        plans = LayoutPlans(lambda: kind.layout(self.wanted), shaping(settings))
        if settings.quarantine.keeps:
            aside = wanted_quarantine(settings)
            plans = LayoutPlans(
                lambda: kind.layout(self.wanted),
                shaping(settings),
                lambda: kind.layout(aside),
                lambda: kind.reader(aside, settings.name),
            )
        return planning_of(settings, plans, KindShelf(settings, kind).stock())

    def coordinated(
        self,
        settings: SinkSettings,
        topics: SourceTopics,
        opening: ExitStack,
        maintained: Maintained | None,
    ) -> Coordinated:
        del maintained  # the settings refuse maintenance
        table = self._kind.open(wanted_table(settings), settings.name)
        opening.callback(table.close)
        maker = None
        if settings.tables:
            shelf = KindShelf(settings, self._kind)
            maker = TableMaker(settings, shelf, filled=lambda: table.read().filled)
        followers = kind_followers(settings, self._kind, maker)
        if followers is not None:
            opening.callback(followers.close)
        sources = MakingTopics(topics, maker) if maker else topics
        coordinated = Coordinated(as_lead(table, self._kind), followers, sources)
        if isinstance(table, StampingTable) and not settings.tables:  # a ledger has no files
            return replace(coordinated, stamp=table.stamp)
        return coordinated
