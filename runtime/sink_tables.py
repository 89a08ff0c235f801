"""Opens a sink's tables by name: the one place that knows which format each has.

``TableFormat`` is the port, with Iceberg behind it like every other; what only some formats support
is asked for by its ``Supports`` protocols. Nothing is created before ``prepare_tables``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from headgate.config.quarantine_settings import QuarantineSettings
from headgate.config.routed_tables import compile_template_pattern
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import (
    declaration_if_creation_allowed,
    quarantine_declaration,
)
from headgate.config.table_format_registry import (
    plugin_format_of_table,
    routed_spec_to_create,
    table_spec_of,
)
from headgate.config.table_settings import TableSettings
from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.commit_tokens import SupportsCommitTokens
from headgate.control_protocol.errors import (
    HeadgateError,
    RetryLater,
    TableChanged,
    TableFormatLacks,
    TableMissing,
    TableRecreated,
)
from headgate.control_protocol.ports import (
    AllSecondaryTables,
    CommitAttempt,
    CommitOutcome,
    PrimaryTable,
    SecondaryTable,
    SinkTable,
    SourceTopics,
    TableView,
)
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.control_protocol.table_format import (
    AtomicCommits,
    Capability,
    FileSchema,
    LoadedReader,
    RollbackSnapshot,
    SupportsAtomicCommit,
    SupportsCatalog,
    SupportsColumnCheck,
    SupportsDeadLetters,
    SupportsDelivery,
    SupportsLock,
    SupportsMaintenance,
    SupportsReplay,
    SupportsRollback,
    SupportsRowDeletion,
    SupportsStagedRows,
    SupportsStaging,
    TableFormat,
    TableSnapshots,
    TableSpec,
    Use,
)
from headgate.control_protocol.table_history import FileRows, TableReader
from headgate.coordinator.secondary_pending_commits import find_undelivered_commits
from headgate.data_plane.routing.routes import pattern_of_table_names
from headgate.participant.settings import UnknownFields
from headgate.tables.concurrent_secondary_tables import SecondaryTables
from headgate.tables.iceberg.catalog import missing_rights_or_none, translate_catalog_error
from headgate.tables.staged_file_lists import StagedFileLists
from headgate.tables.unstaged_secondary_table import FileListSecondaryTable, FixedColumns

if TYPE_CHECKING:  # a reader creates no tables and writes no files
    from pyiceberg.catalog import Catalog

    from headgate.data_plane.batch.file_schema_plans import QuarantinePlans
    from headgate.data_plane.batch.writer_task_plan import SourcePlan, WriterPlan
    from headgate.data_plane.routing.table_lookup import TablePlans
    from headgate.runtime.routed_table_creation import TableMaker
    from headgate.runtime.write_planning import Planning
    from headgate.tables.iceberg.dead_letter_rows import UnsentRows


_log = redacted_logger("headgate.runtime")


@dataclass(frozen=True, slots=True)
class Coordinated:
    """A coordinator's ports: the primary table, the secondary ones, and the sources.

    Describing the sources may create tables for their topics. ``new_token`` returns a commit token,
    if the table asks for them (TOKEN-2). ``tables``: those of this coordinator, for their
    maintenance.
    """

    table: PrimaryTable
    secondaries: AllSecondaryTables
    sources: SourceTopics
    tables: SinkTables
    new_token: Callable[[], str] = lambda: ""


@dataclass(frozen=True, slots=True)
class TableAtRest:
    """A table as it is now, for reading.

    ``staged_rows`` reads what is pending for it by a pending commit's manifest, with these columns.
    It raises ``FileNotFoundError``. ``tagged``: whether it carries the sink's tag, which only
    formats that are listed by a catalog need to tell; then ``uuid`` is its UUID.
    """

    reader: TableReader
    staged_rows: Callable[[str, Sequence[str]], Iterator[FileRows]]
    schema_id: Callable[[], int]
    uuid: str = ""
    tagged: bool = True


Answer = TableAtRest | HeadgateError


def quarantine_as_secondary_tables(quarantine: QuarantineSettings) -> tuple[str, ...]:
    """Return the tables that receive rows which the primary table decides (rule PENDING-1)."""
    return (quarantine.table,) if quarantine.keeps_rejected_records else ()


def require_catalog(settings: SinkSettings) -> None:
    """Raise ``TableFormatLacks`` unless a catalog lists the sink's tables; nothing is opened."""
    with open_tables_creating_nothing(settings) as tables:
        if not tables.has_catalog:
            tables.require_catalog_format()


def translate_table_error(error: Exception, what_failed: str) -> HeadgateError:
    """Translate what a table, its catalog or its store raised, whatever the format; the message
    begins with ``what_failed``."""
    return translate_catalog_error(error, what_failed)


class DryRunTables(NamedTuple):
    """Empty copies of a sink's tables, and the names of those that were there to copy.

    There are more of these names with each table that is asked for.
    """

    tables: SinkTables
    copied: Collection[str]


class SinkTables:
    """The tables of one sink, resolved from its settings once; ``opening`` closes what it opens.

    ``looks``: nothing is changed, not even a catalog's own tables. Several threads may ask at once.
    """

    def __init__(self, settings: SinkSettings, opening: ExitStack, *, looks: bool = False) -> None:
        self.settings = settings
        self.name = settings.table.identifier
        self._opening = opening
        self._looks = looks
        self._formats: dict[bool, TableFormat] = {}

    @classmethod
    def from_open_catalog(cls, settings: SinkSettings, catalog: Catalog) -> SinkTables:
        """Return the sink's tables in a catalog that the caller has opened, and closes."""
        from headgate.tables.iceberg.table_format import IcebergFormat

        tables, found = cls(settings, ExitStack()), IcebergFormat(catalog)
        tables._formats = {False: found, True: found}
        return tables

    @classmethod
    def for_dry_run(
        cls, settings: SinkSettings, folder: Path, quarantine: str, opening: ExitStack
    ) -> DryRunTables:
        """Return empty copies of the sink's tables.

        A table is copied when it is first asked for; the sink's own one and a quarantine are made
        at once. Raises as a start does.
        """
        from headgate.runtime.start_checks import require_fillable_table
        from headgate.tables.iceberg.complete_empty_table import (
            complete_table_if_empty,
            completed_schema,
        )
        from headgate.tables.iceberg.dry_run_catalog import DryRunCatalog
        from headgate.tables.iceberg.table_creation import create_table_if_missing

        real: Catalog | None = None
        with suppress(TableMissing):  # the catalog has no database yet
            real = (
                opening.enter_context(open_tables_creating_nothing(settings))
                .require_catalog_format()
                .catalog
            )
        catalog = DryRunCatalog(folder, real)
        opening.callback(catalog.close)
        name, declared = settings.table.identifier, declaration_if_creation_allowed(settings.table)
        if real is not None and real.table_exists(name):
            found = real.load_table(name)
            require_fillable_table(found, settings, completed_schema(found, declared))
        create_table_if_missing(catalog, name, declared)
        complete_table_if_empty(catalog, name, declared)
        create_table_if_missing(catalog, quarantine, quarantine_declaration())
        return DryRunTables(cls.from_open_catalog(settings, catalog), catalog.copied)

    def with_settings(self, settings: SinkSettings) -> SinkTables:
        """Return the same tables under other settings; what closes these closes those, too."""
        tables = SinkTables(settings, self._opening, looks=self._looks)
        tables._formats = self._formats
        return tables

    # ------------------------------------------------------------------------- which format it is

    def format_of(self, name: str) -> TableFormat:
        """Return the format of a table, opened at its first use."""
        apart = self._is_quarantine_of_other_format(name)
        if apart not in self._formats:
            self._formats[apart] = self._open_format(name)
        return self._formats[apart]

    def _is_quarantine_of_other_format(self, name: str) -> bool:
        return (
            self.settings.has_quarantine_of_other_format and name == self.settings.quarantine.table
        )

    def _open_format(self, name: str) -> TableFormat:
        settings = self.settings
        if found := plugin_format_of_table(settings, name):
            self._opening.callback(found.close)
            return found
        from headgate.runtime.catalogs import open_iceberg_format

        place = (
            settings.quarantine.catalog
            if self._is_quarantine_of_other_format(name)
            else settings.catalog
        )
        return open_iceberg_format(settings, place, self._opening, read_only=self._looks)

    def table_spec_of(self, name: str) -> TableSpec:
        """Return what the sink file says of a table."""
        return table_spec_of(self.settings, name)

    @property
    def primary_format(self) -> TableFormat:
        return self.format_of(self.name)

    # What only some formats support, for commands that need it: they raise ``TableFormatLacks``.

    def require_rollback_format(self) -> SupportsRollback:
        """Return the format as one whose tables go back to older snapshots."""
        if isinstance(found := self.primary_format, SupportsRollback):
            return found
        raise self._iceberg_only_error(self.name)

    def require_row_deletion_format(self) -> SupportsRowDeletion:
        """Return the format as one from whose tables people delete rows."""
        if isinstance(found := self.primary_format, SupportsRowDeletion):
            return found
        raise self._iceberg_only_error(self.name)

    def require_maintained_format(self) -> SupportsMaintenance:
        """Return the format of the tables that headgate maintains."""
        if found := self.maintained_format:
            return found
        raise self._iceberg_only_error(self._name_of_any_maintained_table)

    @property
    def maintained_format(self) -> SupportsMaintenance | None:
        """Return the format of the tables that headgate maintains, if there are some."""
        return self._maintained_format_of(self._name_of_any_maintained_table)

    @property
    def _name_of_any_maintained_table(self) -> str:
        """Return one of the tables to maintain: beside a table of another format it is the
        quarantine."""
        return (
            self.settings.quarantine.table
            if self.settings.has_quarantine_of_other_format
            else self.name
        )

    def _maintained_format_of(self, name: str) -> SupportsMaintenance | None:
        found = self.format_of(name)
        return found if isinstance(found, SupportsMaintenance) else None

    def catalog_format_of(self, name: str = "") -> SupportsCatalog | None:
        """Return a table's format, or the sink's, if a catalog lists its tables."""
        found = self.format_of(name or self.name)
        return found if isinstance(found, SupportsCatalog) else None

    @property
    def has_catalog(self) -> bool:
        """Return whether a catalog lists the sink's tables; nothing is opened for the answer."""
        return plugin_format_of_table(self.settings, self.name) is None

    @property
    def format_with_external_lock(self) -> SupportsLock | None:
        """Return the format as one whose commits need an external lock, if they do."""
        if self.has_catalog:  # to open one would need its answer
            return None
        return found if isinstance(found := self.primary_format, SupportsLock) else None

    def require_catalog_format(self, name: str = "") -> SupportsCatalog:
        """Return a table's format, or the sink's, as one whose tables a catalog lists."""
        if found := self.catalog_format_of(name):
            return found
        raise self._iceberg_only_error(name or self.name)

    def _iceberg_only_error(self, name: str) -> TableFormatLacks:
        return TableFormatLacks(
            f"this works with Iceberg tables only, and {name} is a table of format "
            f"{self.settings.table_type_of(name)}",
            "use the tools of its own format",
        )

    # --------------------------------------------------------------------------------- its tables

    def open_table(self, name: str, use: Use = Use.OPERATOR) -> SecondaryTable:
        """Return any table of the sink, the primary too, for commits; the caller closes it.

        Raises ``TableRecreated`` for a former quarantine that cannot be found any more.
        """
        settings, found = self.settings, self.format_of(name)
        is_primary = name == self.name
        if not (is_primary or settings.tables or self.catalog_format_of(name)):
            self._require_former_quarantine_exists(name)
        spec = self.table_spec_of(name)
        table = found.open(spec, settings.name, use)
        if use is Use.PRIMARY and isinstance(table, SupportsColumnCheck):
            self._set_column_check_unless_evolving(table)
        if isinstance(table, SupportsStaging):
            return cast("SecondaryTable", table)
        evolves = Capability.EVOLUTION in found.capabilities
        primary = cast("PrimaryTable", table) if evolves else FixedColumns(table)
        if is_primary:  # nothing is ever pending for it, so nobody asks it to stage files
            return cast("SecondaryTable", primary)
        return FileListSecondaryTable(
            cast("SupportsDelivery", table), primary, self._staged_file_lists(spec)
        )

    def open_primary(self, use: Use = Use.OPERATOR) -> PrimaryTable:
        """Return the sink's table, which the caller closes."""
        return self.open_table(self.name, use)

    def _set_column_check_unless_evolving(self, table: SupportsColumnCheck) -> None:
        """Raise at a commit what a start would; not where the sink itself changes columns
        (SCHEMA-5)."""
        from headgate.runtime.start_checks import require_fitting_schema  # not for readers

        if self.settings.table.schema.unknown_fields is not UnknownFields.EVOLVE:
            table.set_column_check(partial(require_fitting_schema, settings=self.settings))

    def _staged_file_lists(self, spec: TableSpec) -> StagedFileLists:
        """Return what is pending for a table whose format does not stage files by itself."""
        return StagedFileLists(spec.storage, spec.location, self.settings.name)

    def _require_former_quarantine_exists(self, name: str) -> None:
        """Find a quarantine, which the sink file may not ask for any more, although rows are
        pending for it.

        Raises ``TableRecreated`` if it cannot be found.
        """
        if name in quarantine_as_secondary_tables(self.settings.quarantine):
            return
        if name == self.settings.quarantine.table:
            with suppress(TableMissing):
                self.file_schema(name)
                return
        raise TableRecreated(
            f"as far as {self.name} knows, {name} is to receive rows, but the sink file names no "
            "such quarantine any more",
            "name it as before, until headgate status says that nothing is pending, and stop the "
            "sink with headgate stop SINK (docs/guides/quarantine.md, Another quarantine)",
        )

    @contextmanager
    def open_for_reading(self, name: str) -> Iterator[TableAtRest]:
        """Open a table for reading. Raises ``TableMissing``, and what reading a catalog raises."""
        reader = self.format_of(name).reader(self.table_spec_of(name), self.settings.name)
        with closing(reader):
            yield self._build_at_rest(name, reader)

    def _build_at_rest(self, name: str, reader: TableReader) -> TableAtRest:
        if isinstance(reader, SupportsStagedRows):
            return TableAtRest(
                reader,
                reader.staged_rows,
                lambda: reader.schema_id,
                reader.uuid,
                reader.has_sink_tag,
            )
        staged_rows = (
            _refuse_staged_read
            if name == self.name
            else self._staged_file_lists(self.table_spec_of(name)).read_rows
        )
        return TableAtRest(reader, staged_rows, lambda: reader.view().schema_id)

    def open_each_existing_for_reading(
        self, names: Collection[str]
    ) -> Iterator[tuple[str, Answer]]:
        """Yield each routed table that exists with its name, or the error that says why it is not
        read; the caller closes the readers.

        One that does not answer keeps no other from it.
        """
        if found := self.catalog_format_of():
            readers = found.open_readers(
                [self.table_spec_of(name) for name in names], self.settings.name
            )
        else:
            readers = self._readers_or_outages_of(names)
        for name, answer in readers:
            if not isinstance(answer, HeadgateError):
                yield name, self._build_at_rest(name, answer)
            elif not isinstance(answer, TableMissing):
                yield name, answer

    def _readers_or_outages_of(
        self, names: Collection[str]
    ) -> Iterator[tuple[str, TableReader | HeadgateError]]:
        for name in names:
            try:
                yield name, self.primary_format.reader(self.table_spec_of(name), self.settings.name)
            except RetryLater as error:
                yield name, missing_rights_or_none(error) or error
            except HeadgateError:  # dropped, or damaged: it is suspended, which is reported
                continue

    def file_schema(self, name: str) -> FileSchema:
        """Return how files of a table are written now. Raises as ``TableFormat.file_schema``."""
        return self.format_of(name).file_schema(self.table_spec_of(name))

    def exists(self, name: str) -> bool:
        """Return whether a table exists, usable or not. Raises as ``TableFormat.exists``."""
        return self.format_of(name).exists(self.table_spec_of(name))

    def short_table_names_in(self, namespace: str) -> Collection[str]:
        """Return the last part of the name of each table there; some may not be tables."""
        return self.primary_format.list_table_names(self.table_spec_of(f"{namespace}.any"))

    def find_missing_tables(self, names: Collection[str]) -> list[str]:
        """Return, sorted, the names of routed tables that do not exist."""
        wanted = set(names)
        if self.catalog_format_of():  # a list takes one call for all of them
            spaces = {name.rpartition(".")[0] for name in names}
            wanted -= {
                f"{space}.{short}" for space in spaces for short in self.short_table_names_in(space)
            }
        return sorted(name for name in wanted if not self.exists(name))

    def find_tables_that_routes_can_name(self) -> set[str]:
        """Return existing tables whose names a route can produce, where a catalog lists them."""
        found = self.catalog_format_of()
        if found is None:
            return set()
        routes = self.settings.tables.routing.routes
        names = [pattern_of_table_names(route) for route in routes]
        templates = {route.to.rpartition(".")[0] for route in routes}
        spaces = {each for one in templates for each in _namespaces_of_template(one, found)}
        there = (
            f"{space}.{short}" for space in spaces for short in self.short_table_names_in(space)
        )
        return {name for name in there if any(each.fullmatch(name) for each in names)}

    def create_routed_table_if_missing(
        self, table: TableSettings, name_before_routing: str, inferred_columns: Struct
    ) -> bool:
        """Create a routed table, and return whether this call did.

        ``inferred_columns``, which records showed, come before those of the sink file.
        ``name_before_routing`` is kept: the name that the route turned into a table name.
        """
        spec, found = (
            routed_spec_to_create(self.settings, table, name_before_routing, inferred_columns),
            self.primary_format,
        )
        found.require_supported(spec)
        return found.create(spec)

    # -------------------------------------------------------------------------------- for commands

    @cached_property
    def reader(self) -> TableReader:
        """The sink's own table as it was when it was first asked for.

        Raises what opening it raises; ``TableMissing`` without one.
        """
        return self._opening.enter_context(self.open_for_reading(self.name)).reader

    def read_undelivered_commits(self, record: CommitRecord | None) -> tuple[PendingCommit, ...]:
        """Return what is pending for secondary tables, as far as these can be read (rule
        PENDING-7)."""
        if record is None or not record.pending_commits:
            return ()
        views = dict[str, TableView]()
        for name in {pending_commit.table for pending_commit in record.pending_commits}:
            try:
                with closing(self.open_table(name)) as table:
                    views[name] = table.read()
            except HeadgateError:
                continue
        return find_undelivered_commits(record.pending_commits, views, self.reader.view().uuid)

    def open_committable_reader(self, name: str) -> LoadedReader:
        """Open a table as a commit to it does. Raises ``TableFormatLacks``, and as
        ``SinkTable.read``."""
        if isinstance(found := self.format_of(name), SupportsReplay):
            return found.open_committable_reader(self.table_spec_of(name), self.settings.name)
        raise self._iceberg_only_error(name)

    def read_snapshots(self, name: str) -> TableSnapshots:
        """Return the snapshots of a table. Raises as ``SinkTable.read``."""
        return self.require_rollback_format().read_snapshots(
            self.table_spec_of(name), self.settings.name
        )

    def snapshots_of(self, table: TableAtRest) -> TableSnapshots:
        """Return the snapshots of a table that is open for reading."""
        return self.require_rollback_format().snapshots_of(table.reader)

    def roll_back(self, attempt: CommitAttempt, target: RollbackSnapshot) -> CommitOutcome:
        """Commit a claim that continues an older snapshot of the table that it was read from."""
        spec = self.table_spec_of(attempt.base.table)
        return self.require_rollback_format().roll_back(spec, self.settings.name, attempt, target)

    def require_fit_table(self) -> None:
        """Raise if the sink's table, as it is, cannot take the records; ``TableMissing``."""
        from headgate.runtime.start_checks import require_fit_table

        require_fit_table(self)

    def require_fit_quarantine_and_uuid(self) -> str:
        """Return the quarantine's UUID. Raises ``TableMissing``, and where it cannot be filled."""
        from headgate.runtime.start_checks import require_fit_quarantine_layout

        layout = self.file_schema(self.settings.quarantine.table)
        require_fit_quarantine_layout(layout, self.settings.quarantine)
        return layout.uuid

    def plan_writes(self, source: SourcePlan) -> WriterPlan:
        """Return how files of the sink's table, as it is now, are written from this source."""
        from headgate.data_plane.batch.writer_task_plan import plan_of_file_schema
        from headgate.runtime.write_planning import shaping_of

        layout = self.file_schema(self.name)
        return plan_of_file_schema(layout, self.name, source, shaping_of(self.settings))

    # ----------------------------------------------------------------------------------- for a run

    def prepare_tables(self) -> SinkTables:
        """Create what may be created. Raises if a table cannot take its records."""
        from headgate.runtime.start_checks import require_fit_or_creatable_and_exists

        try:
            there = require_fit_or_creatable_and_exists(self)
        except TableChanged:
            if not self._try_complete_empty_table():
                raise
            there = require_fit_or_creatable_and_exists(self)
        if not there:
            self.primary_format.create(self.table_spec_of(self.name))
            self.require_fit_table()
        if self.settings.quarantine.keeps_rejected_records:
            self.prepare_quarantine()
        return self

    def _try_complete_empty_table(self) -> bool:
        """Add columns that the sink file has got since a start created the table, which still has
        no rows; return whether it may have them now."""
        from headgate.tables.iceberg.complete_empty_table import complete_table_if_empty
        from headgate.tables.iceberg.table_creation import TableDeclaration

        found, spec = self.catalog_format_of(), self.table_spec_of(self.name)
        if found is None or not spec.create:
            return False
        with suppress(Exception):  # what it lacks is reported; or another participant added it
            changes = complete_table_if_empty(
                found.catalog, self.name, TableDeclaration.from_spec(spec)
            )
            if changes:
                _log.info("table %s, which has no rows yet: %s", self.name, ", ".join(changes))
            return bool(changes)
        return True

    def prepare_quarantine(self) -> None:
        """Create the quarantine if it is missing. Raises if it cannot take rejected records."""
        from headgate.runtime.start_checks import require_known_scheme_or_writable_folder

        wanted = self.settings.quarantine
        if self.settings.has_quarantine_of_other_format:
            require_known_scheme_or_writable_folder(
                wanted.location or wanted.catalog.properties.get("warehouse", "")
            )
        self.format_of(wanted.table).create(self.table_spec_of(wanted.table))
        self.require_fit_quarantine_and_uuid()

    def build_planning(self) -> Planning:
        """Build what says how batches are written."""
        from headgate.data_plane.routing.table_lookup import TableLookup
        from headgate.runtime.write_planning import planning_of

        quarantine_plans = (
            self._quarantine_plans() if self.settings.quarantine.keeps_rejected_records else None
        )
        lookup = TableLookup(self.primary_format, self.table_spec_of)
        return planning_of(self.settings, self._table_plans(quarantine_plans), lookup)

    def _table_plans(self, quarantine_plans: QuarantinePlans | None) -> TablePlans:
        from headgate.data_plane.batch.file_schema_plans import FileSchemaPlans
        from headgate.data_plane.batch.writer_task_plan import Plans
        from headgate.runtime.write_planning import shaping_of

        shape = shaping_of(self.settings)
        if found := self.catalog_format_of():  # it has the quarantine, too
            return Plans(found.catalog, shape)
        return FileSchemaPlans(partial(self.file_schema, self.name), shape, quarantine_plans)

    def _quarantine_plans(self) -> QuarantinePlans:
        from headgate.data_plane.batch.file_schema_plans import FileSchemaQuarantinePlans
        from headgate.data_plane.batch.writer_task_plan import Plans

        name = self.settings.quarantine.table
        if found := self.catalog_format_of(name):
            return Plans(found.catalog)
        read = partial(self.format_of(name).reader, self.table_spec_of(name), self.settings.name)
        return FileSchemaQuarantinePlans(partial(self.file_schema, name), read)

    def atomic_commits(self) -> AtomicCommits | None:
        """Return what delivers to several tables in one call, if the sink file asks for that.

        Raises ``NotAtomic`` if the catalog has no such call.
        """
        found = self.primary_format
        if not (self.settings.tables.atomic and isinstance(found, SupportsAtomicCommit)):
            return None
        return found.atomic_commits()

    def open_secondaries(
        self,
        maker: TableMaker | None = None,
        on_commit: Callable[[], None] = lambda: None,
        use: Use = Use.OPERATOR,
    ) -> SecondaryTables:
        """Return all tables but the primary one, which the caller closes.

        ``maker`` creates those that are missing; ``on_commit`` is called at commits to them.
        """
        settings = self.settings
        return SecondaryTables(
            partial(self.open_table, use=use),
            on_commit,
            required=quarantine_as_secondary_tables(settings.quarantine)
            if settings.tables
            else None,
            make=maker.create_requested_or_why_not if maker else None,
            listed=maker.table_lister if maker else lambda _: (),
            together=self.atomic_commits() if maker else None,
        )

    def open_coordinator_ports(
        self, settings: SinkSettings, topics: SourceTopics, opening: ExitStack
    ) -> Coordinated:
        """Open the ports for one coordinator life, by its settings; ``opening`` closes them."""
        from headgate.runtime.routed_table_creation import TableCreatingTopics, TableMaker

        tables = self._copy_for_coordinator(settings, opening)
        table = tables.open_primary(Use.PRIMARY)
        opening.callback(table.close)
        maker = None
        if settings.tables:
            maker = TableMaker(settings, tables, filled=lambda: table.read().filled)
        on_commit = (
            tables.start_dead_letter_forwarder(opening)
            if settings.quarantine.keeps_rejected_records
            else lambda: None
        )
        secondaries = tables.open_secondaries(maker, on_commit, Use.SECONDARY)
        opening.callback(secondaries.close)
        sources = TableCreatingTopics(topics, maker) if maker else topics
        coordinated = Coordinated(table, secondaries, sources, tables)
        bare: SinkTable = getattr(table, "bare", table)  # a wrapper does not show what it supports
        if isinstance(bare, SupportsCommitTokens) and not settings.tables:  # a ledger has no files
            return replace(coordinated, new_token=bare.new_token)
        return coordinated

    def _copy_for_coordinator(self, settings: SinkSettings, opening: ExitStack) -> SinkTables:
        """Return the same tables for one coordinator life."""
        tables, made = SinkTables(settings, opening), dict[int, TableFormat]()
        for name in (self.name, *quarantine_as_secondary_tables(settings.quarantine)):
            found = self.format_of(name)
            if id(found) not in made and (maintained := self._maintained_format_of(name)):
                made[id(found)] = maintained.with_fresh_commit_locks()
            tables._formats[tables._is_quarantine_of_other_format(name)] = made.get(
                id(found), found
            )
        return tables

    def unsent_dead_letters(self, name: str) -> UnsentRows | None:
        """Return a quarantine's rows to send to the dead-letter topic, if its format tells them."""
        found = self.format_of(name)
        if not isinstance(found, SupportsDeadLetters):
            return None
        rows: UnsentRows = found.unsent_dead_letters(self.table_spec_of(name), self.settings.name)
        return rows

    def start_dead_letter_forwarder(self, opening: ExitStack) -> Callable[[], None]:
        """Start the forwarder, which ``opening`` ends; return what wakes it.

        That is to be called after each commit to the quarantine.
        """
        aside, settings = self.settings.quarantine, self.settings
        rows = self.unsent_dead_letters(aside.table) if aside.dead_letter_topic else None
        if rows is None:
            return lambda: None
        from headgate.kafka.dead_letter_topic import DeadLetterTopic
        from headgate.runtime.dead_letter_forwarder import Forwarder

        group_id = f"{settings.source.group_id}-dead-letters"
        forwarder = Forwarder(
            rows,
            lambda end: DeadLetterTopic(settings.kafka, aside.dead_letter_topic, group_id, end),
        )
        opening.callback(forwarder.close)
        return forwarder.wake


def _namespaces_of_template(template: str, catalog_format: SupportsCatalog) -> list[str]:
    """Return the namespaces that a template can become; what only its text names may be missing."""
    found = [""]
    for level in template.split("."):
        pattern = compile_template_pattern(level)
        found = [
            f"{parent}.{short}".lstrip(".")
            for parent in found
            for short in (
                catalog_format.short_namespace_names_in(parent) if "{" in level else (level,)
            )
            if pattern.fullmatch(short)
        ]
    return found


def _refuse_staged_read(manifest: str, _columns: Sequence[str]) -> Iterator[FileRows]:
    raise FileNotFoundError(f"the sink's own table is to receive nothing: {manifest}")


@contextmanager
def open_tables_creating_nothing(settings: SinkSettings) -> Iterator[SinkTables]:
    """Yield the sink's tables as they are; no table is created, not even a catalog's own ones."""
    with ExitStack() as opening:
        yield SinkTables(settings, opening, looks=True)
