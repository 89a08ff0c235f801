"""Implements ``Format`` for Iceberg: the tables of one catalog."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table

from headgate.config.catalog_location import refuse_catalog, sqlite_file
from headgate.config.catalog_settings import CatalogSettings
from headgate.config.route_checks import pattern_of, policy_of, section_of
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import declaration, declared, quarantine_declaration
from headgate.config.table_settings import TableSettings
from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import HeadgateError, MissingRights, TableMissing
from headgate.control_protocol.identifiers import tag_name
from headgate.data_plane.batch.routes import RAW_NAME_PROPERTY
from headgate.participant.settings import UnknownFields
from headgate.runtime.catalogs import open_catalog
from headgate.runtime.sink_tables import Answer, Format, Maintained, TableAtRest, secondary_names
from headgate.tables.iceberg.catalog import TIMEOUT_S, catalog_failure
from headgate.tables.iceberg.commit_lock import Gates
from headgate.tables.iceberg.maintenance.snapshot_expiry import Upkeep
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_loading import loaded_each
from headgate.tables.iceberg.upsert.index_memory import IndexMemory
from headgate.tables.storage.object_stores import refused_operation

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

    from headgate.data_plane.batch.plugin_plans import QuarantinePlans
    from headgate.data_plane.batch.write_plan import Plans, SourcePlan, WriterPlan
    from headgate.data_plane.routing.table_lookup import IcebergStock
    from headgate.tables.iceberg.multi_table_commit import JointDeliveries
    from headgate.tables.iceberg.upsert.upsert_commit import KeyedRows

ANSWER_S_MAX = 5.0


def opened_iceberg(
    settings: SinkSettings, place: CatalogSettings, opening: ExitStack, *, looks: bool
) -> IcebergFormat:
    """Open a catalog, which ``opening`` closes. Raises what ``open_catalog`` raises.

    With ``looks`` it is left as it is: raises ``TableMissing`` if its file does not exist.
    """
    from headgate.runtime.missing_tables import PATIENCE_S, refuse_gone

    refuse_catalog(place)
    database = sqlite_file(place)
    if database and not database.exists():  # connecting to SQLite would create it
        if looks:
            raise TableMissing(
                f"catalog {place.name!r}: the database {database} does not exist yet",
                "the first start creates it, or correct catalog.properties.uri",
            )
        if place is settings.catalog:
            refuse_gone(settings, PATIENCE_S)
    timeout_s = ANSWER_S_MAX if looks else TIMEOUT_S
    catalog = open_catalog(settings, timeout_s, of=place, looking=looks)
    opening.callback(catalog.close)
    return IcebergFormat(settings, catalog)


class IcebergFormat:
    """The tables of one catalog, which its opener closes.

    Without ``gates`` a table is opened for a person's claim, or for reading: it has no index and
    does no upkeep of its own.
    """

    def __init__(
        self, settings: SinkSettings, catalog: Catalog, gates: Gates | None = None
    ) -> None:
        self.settings = settings
        self.catalog = catalog
        self._gates = gates
        index_bytes = settings.changes.index_memory_bytes
        self._memory = None if gates is None else IndexMemory(index_bytes)

    def ready(self) -> None:
        from headgate.runtime.start_checks import refuse_start
        from headgate.tables.iceberg.table_creation import ensure_table

        refuse_start(self.catalog, self.settings)
        table = self.settings.table
        ensure_table(self.catalog, table.identifier, declaration(table))

    def refuse_unfit(self) -> None:
        from headgate.runtime.start_checks import refuse_apart, refuse_there

        refuse_apart(self.catalog, self.settings)
        refuse_there(self.catalog, self.settings)

    def ready_quarantine(self) -> None:
        from headgate.runtime.start_checks import refuse_place
        from headgate.tables.iceberg.table_creation import ensure_table

        wanted = self.settings.quarantine
        if self.settings.apart:
            refuse_place(wanted.location or wanted.catalog.properties.get("warehouse", ""))
        if not ensure_table(self.catalog, wanted.table, quarantine_declaration(wanted.location)):
            self.refuse_quarantine()

    def refuse_quarantine(self) -> str:
        """Return the quarantine's UUID. Raises ``TableMissing``, and where it cannot be filled."""
        from headgate.runtime.start_checks import refuse_columns_aside, refuse_place
        from headgate.tables.iceberg.catalog_support import refuse_unread
        from headgate.tables.storage.object_stores import refuse_signing

        name = self.settings.quarantine.table
        try:
            table = self.catalog.load_table(name)
        except Exception as error:
            refuse_unread(name, error)
            raise catalog_failure(error, f"table {name} cannot be read") from error
        refuse_signing(name, table.io.properties)
        refuse_place(table.location())
        refuse_columns_aside(name, table.schema())
        return str(table.metadata.table_uuid)

    def open(self, name: str, *, leads: bool = False) -> IcebergTable:
        settings, gates = self.settings, self._gates
        if gates is None:
            return IcebergTable(self.catalog, name, settings.name, settings.table.branch)
        expire_after_ms = settings.maintenance.expire_after_ms or None
        return IcebergTable(
            self.catalog,
            name,
            settings.name,
            settings.table.branch,
            readd_dropped=(settings.tables or settings.table).schema.readd_dropped,
            upkeep=Upkeep(self.catalog, gate=gates.of(name), expire_after_ms=expire_after_ms),
            keyed=self._keyed(name),
            warms=leads,
            refuse_columns=self._refuse_columns() if leads else None,
            keeps_columns=self._keeps_columns(name),
        )

    def _refuse_columns(self) -> Callable[[Schema], None] | None:
        """Return what raises as a start would; none where the sink itself changes columns (S5)."""
        from headgate.runtime.start_checks import (
            refuse_schema,  # a command that only reads needs none
        )

        settings = self.settings
        if settings.table.schema.unknown_fields is UnknownFields.EVOLVE:
            return None
        return lambda schema: refuse_schema(schema, settings)

    def _keeps_columns(self, name: str) -> bool:
        """Return whether others may not take columns away from files written before (S6, S10)."""
        settings = self.settings
        if name == settings.table.identifier:
            return settings.table.schema.unknown_fields is not UnknownFields.EVOLVE
        if name in secondary_names(settings):
            return False
        each = section_of(settings.tables, name)
        return policy_of(settings.tables, each).unknown_fields is not UnknownFields.EVOLVE

    def _keyed(self, name: str) -> KeyedRows | None:
        """Return how records replace rows of this table, if it has a key."""
        settings = self.settings
        is_primary = name == settings.table.identifier
        named = settings.table if is_primary else settings.tables
        key = settings.table.key if is_primary else settings.tables.routing.key_of(name)
        if not key or name in secondary_names(settings):
            return None
        from headgate.tables.iceberg.upsert.upsert_commit import KeyedBy, KeyedRows  # reads files

        places, bytes_max = named.record_columns, settings.changes.index_memory_bytes
        by = KeyedBy(key, places.partition, places.offset, places.topic, bytes_max)
        return KeyedRows(by, memory=None if is_primary else self._memory)

    def at_rest(self, name: str) -> TableAtRest:
        return self.loaded(self.load(name))

    def each_at_rest(self, names: Collection[str]) -> Iterator[tuple[str, Answer]]:
        for name, answer in loaded_each(self.catalog, names):
            if isinstance(answer, Table):
                yield name, self.loaded(answer)
            elif not isinstance(answer, TableMissing):
                yield name, answer

    def loaded(self, table: Table) -> TableAtRest:
        """Return a loaded table for reading."""
        settings, metadata = self.settings, table.metadata
        reader = IcebergReader(table, settings.name, settings.table.branch)
        tagged = tag_name(settings.name, settings.table.branch) in metadata.refs
        uuid = str(metadata.table_uuid)
        return TableAtRest(reader, reader.drafted, lambda: table.schema().schema_id, uuid, tagged)

    def load(self, name: str) -> Table:
        """Load a table. Raises ``TableMissing``, and what reading a catalog raises."""
        try:
            return self.catalog.load_table(name)
        except Exception as error:
            raise _failure(error, name) from error

    def exists(self, name: str) -> bool:
        return self.catalog.table_exists(name)

    def names(self, namespace: str) -> Collection[str]:
        try:
            return [found[-1] for found in self.catalog.list_tables(namespace)]
        except NoSuchNamespaceError:
            return ()

    def missing(self, names: Collection[str]) -> list[str]:
        spaces = {name.rpartition(".")[0] for name in names}
        there = {f"{space}.{short}" for space in spaces for short in self.names(space)}
        return sorted(name for name in set(names) - there if not self.exists(name))

    def named_by_routes(self) -> set[str]:
        patterns = [pattern_of(route.to) for route in self.settings.tables.route]
        found = (f"{s}.{short}" for s in self._namespaces() for short in self.names(s))
        return {name for name in found if any(each.fullmatch(name) for each in patterns)}

    def _namespaces(self) -> set[str]:
        wanted = {route.to.rpartition(".")[0] for route in self.settings.tables.route}
        plain = {name for name in wanted if "{" not in name}
        patterns = [pattern_of(name) for name in wanted - plain]
        if not patterns:
            return plain
        there = (".".join(found) for found in self.catalog.list_namespaces())
        return plain | {name for name in there if any(p.fullmatch(name) for p in patterns)}

    def create(self, table: TableSettings, raw: str, inferred: Struct) -> bool:
        from headgate.tables.iceberg.table_creation import ensure_table  # not for readers

        wanted = declared(table)
        marked = {**wanted.properties, RAW_NAME_PROPERTY: raw}
        made = replace(wanted, properties=marked, inferred=inferred)
        return ensure_table(self.catalog, table.identifier, made)

    def plans(self, aside: QuarantinePlans | None) -> Plans:
        from headgate.data_plane.batch.write_plan import Plans
        from headgate.runtime.write_planning import shaping

        del aside  # in the same catalog
        return Plans(self.catalog, shaping(self.settings))

    def plan(self, source: SourcePlan) -> WriterPlan:
        from headgate.control_protocol.events import TableStart
        from headgate.data_plane.batch.write_plan import plan_for
        from headgate.runtime.write_planning import shaping

        table = self.load(self.settings.table.identifier)
        start = TableStart(
            table=self.settings.table.identifier,
            uuid=str(table.metadata.table_uuid),
            schema_id=table.schema().schema_id,
            spec_id=table.spec().spec_id,
            file_prefix="",
        )
        return plan_for(self.catalog, start, source, shaping(self.settings))

    def quarantine_plans(self) -> Plans:
        from headgate.data_plane.batch.write_plan import Plans

        return Plans(self.catalog)

    def stock(self) -> IcebergStock:
        from headgate.data_plane.routing.table_lookup import IcebergStock

        return IcebergStock(self.catalog)

    def at_work(self, settings: SinkSettings, gates: Gates) -> Format:
        return IcebergFormat(settings, self.catalog, gates)

    def told(self, opening: ExitStack) -> Callable[[], None]:
        aside, settings = self.settings.quarantine, self.settings
        if not aside.dead_letter_topic:
            return lambda: None
        from headgate.kafka.dead_letter_topic import DeadLetterTopic
        from headgate.runtime.dead_letter_forwarder import Forwarder
        from headgate.tables.iceberg.dead_letter_rows import UnsentRows

        rows = UnsentRows(self.catalog, aside.table, settings.name, settings.table.branch)
        group_id = f"{settings.source.group_id}-dead-letters"
        forwarder = Forwarder(
            rows,
            lambda end: DeadLetterTopic(settings.kafka, aside.dead_letter_topic, group_id, end),
        )
        opening.callback(forwarder.close)
        return forwarder.wake

    def joint(self) -> JointDeliveries | None:
        from headgate.tables.iceberg.multi_table_commit import JointDeliveries

        return JointDeliveries(self.catalog) if self.settings.tables.atomic else None

    def maintain(self, opening: ExitStack, maintained: Maintained | None) -> None:
        from headgate.runtime.maintenance.scheduler import Maintenance  # only if needed

        assert self._gates is not None, "a coordinator's tables only"
        told = (maintained,) if maintained else ()
        opening.callback(Maintenance(self.settings, self.catalog, self._gates, *told).close)


def _failure(error: Exception, identifier: str) -> HeadgateError:
    what = f"table {identifier} cannot be read"
    if isinstance(error, PermissionError) and refused_operation(error) == "access":
        return MissingRights(f"{what}: {error}", "grant read access to its metadata")
    # A SQL catalog that was never written to does not have its own tables yet.
    if type(error).__name__ in ("OperationalError", "ProgrammingError") and (
        "no such table: iceberg_tables" in str(error) or "UndefinedTable" in str(error)
    ):
        return TableMissing(f"{what}: the catalog is empty")
    return catalog_failure(error, what)
