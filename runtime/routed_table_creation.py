"""Creates missing tables that routes name, in the coordinator (rules CREATE-1, CREATE-3, CREATE-4,
ROUTE-4).

Declared tables of topics are created once the sources are described, before START names their
partitions: a participant that reads a topic finds its table. Others are created when a participant
asks for them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from threading import Lock
from typing import NamedTuple, Protocol

from headgate.config.multi_table_settings import (
    CreateFrom,
    OneTableSettings,
    OnMissing,
    TablesSettings,
)
from headgate.config.routed_tables import ONE_NAME, section_of_table, settings_of_routed_table
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_settings import TableSettings
from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import TableMissing, TablesUnfit
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Changed, SourceTopics, TopicState, Want
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.control_protocol.schema_evolution import wide_structs_as_maps
from headgate.data_plane.routing.routes import pattern_of_table_names
from headgate.tables.iceberg.catalog import translate_catalog_error

COUNTED_S = 60.0
AGAIN_S = 60.0
"""Delay before retrying a table that could not be created."""

_log = redacted_logger(__name__)


class TableCreation(Protocol):
    """Routed tables by name, as ``SinkTables`` has them. Several threads may ask at once."""

    def exists(self, name: str) -> bool: ...

    def short_table_names_in(self, namespace: str) -> Collection[str]: ...

    def create_routed_table_if_missing(
        self, table: TableSettings, name_before_routing: str, inferred_columns: Struct
    ) -> bool: ...


class TableMaker:
    """Creates tables. One that cannot be created does not block the others.

    ``filled`` asks the ledger which tables it has filled: none of these is created again
    (LEDGER-2). One coordinator uses it; several of its threads may call
    ``create_requested_or_why_not`` at once.
    """

    def __init__(
        self,
        settings: SinkSettings,
        tables: TableCreation,
        monotonic_s: Callable[[], float] = time.monotonic,
        *,
        filled: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._filled = filled
        self._settings = settings
        self._tables = tables
        self._now_s = monotonic_s
        self._there: set[str] = set()
        self._refused: dict[str, float] = {}
        self._by_topic: frozenset[str] = frozenset()
        self._guard = NewTables(settings.tables, tables.short_table_names_in, monotonic_s)

    def try_create_declared_tables(self, topics: Mapping[str, TopicState]) -> None:
        """Create the tables that the topics name, and those that the sink file names in full."""
        if self._settings.tables.create.schema is CreateFrom.OFF:
            return
        named = self._settings.tables.routing.tables_of_topics_winning_collisions(sorted(topics))
        wanted = {target.table: target.raw for target in named.values()}
        self._by_topic = frozenset(wanted)
        for each in self._settings.tables.table:
            if each.columns and ONE_NAME.fullmatch(each.match):
                wanted.setdefault(each.match, each.match)
        for table, raw in sorted(wanted.items()):
            if table not in self._there and self._now_s() >= self._refused.get(table, 0.0):
                self._try_create_if_columns_declared(table, raw)

    def create_requested_or_why_not(self, want: Want) -> Changed | None:
        """Create a table that a participant asks for; return why not, or ``None`` if it exists.

        Raises as ``create_table_if_missing``, and ``ConfigurationError`` as CREATE-3.
        """
        try:
            return self._create_requested_untranslated(want)
        except Exception as error:  # noqa: BLE001 - whatever a catalog raises becomes one of ours
            failure = translate_catalog_error(error, f"table {want.at.table} cannot be created")
            raise failure from (None if failure is error else error)

    def _create_requested_untranslated(self, want: Want) -> Changed | None:
        tables, table = self._settings.tables, want.at.table
        each = section_of_table(tables, table) or OneTableSettings(match=table)
        if not any(
            pattern_of_table_names(route).fullmatch(table) for route in tables.routing.routes
        ):
            return Changed(table, why="no route of the coordinator's sink file names it")
        if self._tables.exists(table):
            return None
        if self._must_not_be_recreated(table):
            return Changed(table, why=dropped_table_text(table), dropped=True)
        if not tables.routing.may_create(table):
            return Changed(table, why="its columns are not declared")
        by_topic = table in self._by_topic
        admission = self._guard.try_count_new_table(table, by_topic=by_topic)
        if admission.why_not and admission.ends_by_itself:
            return Changed(table, failure=admission.why_not)
        if admission.why_not:
            return Changed(table, why=admission.why_not, any_other=not by_topic)
        self._create_table(
            table, want.raw or table, each, Struct() if each.columns else want.columns
        )
        return None

    def _try_create_if_columns_declared(self, table: str, name_before_routing: str) -> None:
        each = section_of_table(self._settings.tables, table)
        if each is None or not each.columns:
            return
        try:
            if not self._tables.exists(table):
                if self._must_not_be_recreated(table):
                    return
                self._guard.require_room_and_count_topic_table(table)
                self._create_table(table, name_before_routing, each, Struct())
            self._there.add(table)
        except Exception as found:  # noqa: BLE001 - whatever a catalog raises becomes one of ours
            error = translate_catalog_error(found, f"table {table} cannot be created")
            self._refused[table] = self._now_s() + AGAIN_S
            _log.warning("table %s cannot be created, its records are unmatched: %s", table, error)

    def _must_not_be_recreated(self, table: str) -> bool:
        """LEDGER-2: return whether rows went to a table that is gone, and nobody asked for a new
        one."""
        return self._settings.tables.on_missing is OnMissing.SUSPEND and table in self._filled()

    def _create_table(
        self, table: str, name_before_routing: str, section: OneTableSettings, columns: Struct
    ) -> None:
        wholly = wide_structs_as_maps(columns, Struct())
        names = [column.name for column in wholly.fields]
        wanted = settings_of_routed_table(self._settings.tables, table, section, names)
        if self._tables.create_routed_table_if_missing(wanted, name_before_routing, wholly):
            _log.info("table %s was made for %s", table, name_before_routing)

    @property
    def table_lister(self) -> Callable[[str], Collection[str]]:
        return self._tables.short_table_names_in


def dropped_table_text(table: str) -> str:
    return (
        f"{TableMissing.code} table {table} no longer exists although rows went to it: it was "
        "dropped or renamed"
    )


class Admission(NamedTuple):
    """Why a table is not created, if it is not; and whether the reason passes."""

    why_not: str = ""
    ends_by_itself: bool = False


class NewTables:
    """Limits the number of tables, and how many are new within a minute (ROUTE-4).

    Only names taken from the content of records are slowed down: topics are created by people.
    Their records wait until the table may be created.
    """

    def __init__(
        self,
        tables: TablesSettings,
        listed: Callable[[str], Collection[str]],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._tables = tables
        self._names = [pattern_of_table_names(route) for route in tables.routing.routes]
        self._listed = listed
        self._now_s = monotonic_s
        self._lock = Lock()
        self._new: deque[float] = deque()
        self._counted: dict[str, tuple[float, set[str]]] = {}

    def try_count_new_table(self, table: str, *, by_topic: bool) -> Admission:
        """Count the table as created now; else return why not, and whether that ends by itself.

        Then records wait for the table, too: in the quarantine they would be lost to one with a
        key. There are at most ``tables.max`` tables, so that this is not for ever.
        """
        with self._lock:
            namespace, _, short = table.rpartition(".")
            known = self._short_names_of_routable_tables_in(namespace)
            if len(known) >= self._tables.max:
                return Admission(f"there are tables.max = {self._tables.max} tables")
            if not by_topic and not self._try_take_creation_permit():
                most = self._tables.new_per_minute_max
                why_not = f"tables.new_per_minute_max = {most} tables were created"
                return Admission(why_not, ends_by_itself=True)
            known.add(short)
            return Admission()

    def require_room_and_count_topic_table(self, table: str) -> None:
        """Count a table that a topic names. Raises ``TablesUnfit`` if there are too many."""
        admission = self.try_count_new_table(table, by_topic=True)
        if admission.why_not:
            raise TablesUnfit(admission.why_not, "raise it, or narrow the routes")

    def _short_names_of_routable_tables_in(self, namespace: str) -> set[str]:
        """Return the namespace's tables that routes can name, looked up now and then."""
        until_s, known = self._counted.get(namespace, (0.0, set[str]()))
        if self._now_s() >= until_s:
            named = (f"{namespace}.{short}" for short in self._listed(namespace))
            known = {
                name.rpartition(".")[2]
                for name in named
                if any(each.fullmatch(name) for each in self._names)
            }
            self._counted[namespace] = (self._now_s() + COUNTED_S, known)
        return known

    def _try_take_creation_permit(self) -> bool:
        """Count one table more of this minute; return ``False`` if there were too many."""
        while self._new and self._now_s() - self._new[0] >= 60:
            self._new.popleft()
        if len(self._new) >= self._tables.new_per_minute_max:
            return False
        self._new.append(self._now_s())
        return True


class TableCreatingTopics:
    """Implements ``SourceTopics``, and creates the tables of the topics it describes."""

    def __init__(self, topics: SourceTopics, maker: TableMaker) -> None:
        self._topics = topics
        self._maker = maker

    def describe(self) -> Mapping[str, TopicState]:
        """Describe the topics, and create the tables that they and the sink file name."""
        states = self._topics.describe()
        self._maker.try_create_declared_tables(states)
        return states

    def offsets_at(self, timestamp_ms: int) -> Offsets:
        return self._topics.offsets_at(timestamp_ms)

    def committed_offset_metadata(self) -> str | None:
        return self._topics.committed_offset_metadata()

    def close(self) -> None:
        self._topics.close()
