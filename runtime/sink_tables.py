"""A sink's tables by name: the one place that knows which format each has, and how it is opened.

``Format`` is the port, with Iceberg behind it like every other (``iceberg_format``,
``table_format_adapter``). Nothing is created before ``ready``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from headgate.config.shared_configuration import agreed, fingerprint
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_formats import kind_of
from headgate.config.table_settings import TableSettings
from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.commit_tokens import StampingTable
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.ports import (
    PrimaryTable,
    Secondaries,
    SecondaryTable,
    SourceTopics,
    TableView,
)
from headgate.control_protocol.table_history import FileRows, TableReader
from headgate.coordinator.pending_commits import undelivered
from headgate.tables.secondary_tables import SecondaryTables

if TYPE_CHECKING:  # a reader creates no tables and writes no files
    from headgate.data_plane.batch.plugin_plans import QuarantinePlans
    from headgate.data_plane.batch.write_plan import SourcePlan, WriterPlan
    from headgate.data_plane.routing.table_lookup import TablePlans, TableStock
    from headgate.runtime.maintenance.rounds import Done
    from headgate.runtime.table_creation import TableMaker
    from headgate.runtime.write_planning import Planning
    from headgate.tables.iceberg.commit_lock import Gates
    from headgate.tables.iceberg.multi_table_commit import JointDeliveries

Maintained = Callable[["Done", bool], None]
"""Receives each round of maintenance, and whether a part of it failed."""


@dataclass(frozen=True, slots=True)
class Coordinated:
    """A coordinator's ports: the primary table, the secondary ones, and the sources.

    Describing the sources may create tables for their topics. ``stamp``: the table's, if it stamps
    its files (P13).
    """

    table: PrimaryTable
    secondaries: Secondaries
    sources: SourceTopics
    stamp: Callable[[], str] = lambda: ""


@dataclass(frozen=True, slots=True)
class TableAtRest:
    """A table as it is now, for reading.

    ``drafted`` reads what is pending for it by a pending commit's manifest, with these columns. It
    raises ``FileNotFoundError``. ``tagged``: whether it carries the sink's tag, which only formats
    that are listed by a catalog need to tell; then ``uuid`` is its UUID.
    """

    reader: TableReader
    drafted: Callable[[str, Sequence[str]], Iterator[FileRows]]
    schema_id: Callable[[], int]
    uuid: str = ""
    tagged: bool = True


class Format(Protocol):
    """The tables of a sink that have one format, by name. Several threads may ask at once."""

    def ready(self) -> None:
        """Create the sink's table if that is allowed. Raises if it cannot take the records."""

    def ready_quarantine(self) -> None:
        """Create the quarantine if it is missing. Raises if it cannot take rejected records."""

    def refuse_unfit(self) -> None:
        """Raise if the sink's table, as it is, cannot take the records; ``TableMissing``."""

    def open(self, name: str, *, leads: bool = False) -> SecondaryTable:
        """Return the table for commits, which the caller closes.

        ``leads``: it is the sink's own, and a coordinator commits to it.
        """

    def at_rest(self, name: str) -> TableAtRest:
        """Return the table for reading; the caller closes the reader. Raises ``TableMissing``."""

    def each_at_rest(self, names: Collection[str]) -> Iterator[tuple[str, Answer]]:
        """Yield each table that exists with its name, or the error that says why it is not read.

        One that does not answer keeps no other from it.
        """

    def exists(self, name: str) -> bool:
        """Return whether the table exists, usable or not. Raises ``RetryLater``."""

    def names(self, namespace: str) -> Collection[str]:
        """Return the last part of each table's name; some may not be tables."""

    def named_by_routes(self) -> set[str]:
        """Return existing tables whose names a route can produce, where a catalog lists them."""

    def missing(self, names: Collection[str]) -> list[str]:
        """Return, sorted, the names of tables that do not exist."""

    def create(self, table: TableSettings, raw: str, inferred: Struct) -> bool:
        """Create the table, and return whether this call did.

        ``inferred`` columns, which records showed, come before those of the sink file. ``raw`` is
        kept: the name before the route turned it into a table name.
        """

    def plans(self, aside: QuarantinePlans | None) -> TablePlans:
        """Return how files of the sink's table are written; ``aside``: those of a quarantine."""

    def plan(self, source: SourcePlan) -> WriterPlan:
        """Return how files of the sink's table, as it is now, are written from this source."""

    def quarantine_plans(self) -> QuarantinePlans:
        """Return how files of the quarantine are written."""

    def stock(self) -> TableStock:
        """Return the tables as participants use them."""

    def at_work(self, settings: SinkSettings, gates: Gates) -> Format:
        """Return the same tables for one coordinator life, by its settings."""

    def told(self, opening: ExitStack) -> Callable[[], None]:
        """Return what is to hear of commits to the quarantine; ``opening`` ends it."""

    def joint(self) -> JointDeliveries | None:
        """Return what commits to several tables in one call, if that is wanted."""

    def maintain(self, opening: ExitStack, maintained: Maintained | None) -> None:
        """Begin maintenance, which ``opening`` ends."""


Answer = TableAtRest | HeadgateError


def secondary_names(settings: SinkSettings) -> tuple[str, ...]:
    """Return the tables that are delivered for what the sink's table decides (rule D1)."""
    return (settings.quarantine.table,) if settings.quarantine.keeps else ()


def routing(settings: SinkSettings) -> str:
    """Fingerprint what decides a row and its table; all members must agree on it (P11, D3)."""
    return fingerprint(agreed(settings))


class SinkTables:
    """The tables of one sink, resolved from its settings once; ``opening`` closes what it opens.

    ``looks``: nothing is changed, not even a catalog's own tables.
    """

    def __init__(self, settings: SinkSettings, opening: ExitStack, *, looks: bool = False) -> None:
        self.settings = settings
        self.name = settings.table.identifier
        self._opening = opening
        self._looks = looks
        self._formats: dict[bool, Format] = {}

    def of(self, name: str) -> Format:
        """Return the format of a table, opened at its first use."""
        apart = self._is_apart(name)
        if apart not in self._formats:
            self._formats[apart] = self._opened(name)
        return self._formats[apart]

    def _is_apart(self, name: str) -> bool:
        return self.settings.apart and name == self.settings.quarantine.table

    def _opened(self, name: str) -> Format:
        settings = self.settings
        if kind := kind_of(settings, name):
            from headgate.runtime.table_format_adapter import KindFormat

            self._opening.callback(kind.close)
            return KindFormat(settings, kind)
        from headgate.runtime.iceberg_format import opened_iceberg

        place = settings.quarantine.catalog if self._is_apart(name) else settings.catalog
        return opened_iceberg(settings, place, self._opening, looks=self._looks)

    @property
    def primary(self) -> Format:
        return self.of(self.name)

    @property
    def quarantine(self) -> Format:
        return self.of(self.settings.quarantine.table)

    # -------------------------------------------------------------------------------- for commands

    @cached_property
    def reader(self) -> TableReader:
        """The sink's own table as it was when it was first asked for.

        Raises what opening it raises; ``TableMissing`` without one.
        """
        return self._opening.enter_context(closing(self.primary.at_rest(self.name).reader))

    @contextmanager
    def at_rest(self, name: str) -> Iterator[TableAtRest]:
        """Open a table for reading. Raises as ``Format.at_rest``."""
        table = self.of(name).at_rest(name)
        with closing(table.reader):
            yield table

    def undelivered(self, record: CommitRecord | None) -> tuple[PendingCommit, ...]:
        """Return what secondary tables are still pending, as far as they can be read (rule D7)."""
        if record is None or not record.pending_commits:
            return ()
        views = dict[str, TableView]()
        for name in {pending_commit.table for pending_commit in record.pending_commits}:
            try:
                with closing(self.of(name).open(name)) as table:
                    views[name] = table.read()
            except HeadgateError:
                continue
        return undelivered(record.pending_commits, views, self.reader.view().uuid)

    # ----------------------------------------------------------------------------------- for a run

    def ready(self) -> SinkTables:
        """Create what may be created. Raises if a table cannot take its records."""
        self.primary.ready()
        if self.settings.quarantine.keeps:
            self.quarantine.ready_quarantine()
        return self

    def open_primary(self) -> PrimaryTable:
        """Return the sink's table, which the caller closes."""
        return self.primary.open(self.name)

    def planning(self) -> Planning:
        """Return how batches are written."""
        from headgate.runtime.write_planning import planning_of

        aside = self.quarantine.quarantine_plans() if self.settings.quarantine.keeps else None
        return planning_of(self.settings, self.primary.plans(aside), self.primary.stock())

    def secondaries(
        self, maker: TableMaker | None = None, told: Callable[[], None] = lambda: None
    ) -> SecondaryTables:
        """Return all tables but the primary one, which the caller closes.

        ``maker`` creates those that are missing; ``told`` hears of commits to them.
        """
        settings = self.settings
        return SecondaryTables(
            lambda name: self.of(name).open(name),
            told,
            required=secondary_names(settings) if settings.tables else None,
            make=maker.wanted if maker else None,
            listed=maker.listed if maker else lambda _: (),
            joint=self.primary.joint() if maker else None,
        )

    def coordinated(
        self,
        settings: SinkSettings,
        topics: SourceTopics,
        opening: ExitStack,
        maintained: Maintained | None,
    ) -> Coordinated:
        """Open the ports for one coordinator life, by its settings; ``opening`` closes them."""
        from headgate.runtime.table_creation import MakingTopics, TableMaker

        tables = self._at_work(settings, opening)
        table = tables.primary.open(self.name, leads=True)
        opening.callback(table.close)
        maker = None
        if settings.tables:
            maker = TableMaker(settings, tables.primary, filled=lambda: table.read().filled)
        told = tables.quarantine.told(opening) if settings.quarantine.keeps else lambda: None
        secondaries = tables.secondaries(maker, told)
        opening.callback(secondaries.close)
        if settings.maintenance:
            kept = tables.quarantine if settings.apart else tables.primary
            kept.maintain(opening, maintained)
        sources = MakingTopics(topics, maker) if maker else topics
        coordinated = Coordinated(table, secondaries, sources)
        bare = getattr(table, "bare", table)
        if isinstance(bare, StampingTable) and not settings.tables:  # a ledger has no files
            return replace(coordinated, stamp=bare.stamp)
        return coordinated

    def _at_work(self, settings: SinkSettings, opening: ExitStack) -> SinkTables:
        """Return the same tables, whose commits and maintenance meet at gates of their own."""
        from headgate.tables.iceberg.commit_lock import Gates

        gates, tables = Gates(), SinkTables(settings, opening)
        for name in (self.name, *secondary_names(settings)):
            tables._formats[tables._is_apart(name)] = self.of(name).at_work(settings, gates)
        return tables


@contextmanager
def looked_at(settings: SinkSettings) -> Iterator[SinkTables]:
    """Yield the sink's tables as they are; nothing is created, not even a catalog's own tables."""
    with ExitStack() as opening:
        yield SinkTables(settings, opening, looks=True)
