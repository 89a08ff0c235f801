"""Asks the questions of ``headgate check`` about a table of any format: its state, its storage."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.update import AssertTableUUID

from headgate.config.catalog_settings import Backend
from headgate.config.keyed_table_checks import KeysByRoute
from headgate.config.registry_auth_settings import REGISTRY_AUTH
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import declaration_if_creation_allowed, declaration_of
from headgate.config.table_format_registry import spark_conf_for_format_commits
from headgate.config.table_settings import ICEBERG
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import (
    CatalogRefused,
    HeadgateError,
    MissingRights,
    TableMissing,
    WriteFailed,
)
from headgate.control_protocol.identifiers import Sender
from headgate.control_protocol.ports import Lineage, TableView
from headgate.control_protocol.spark_batch_decision import without_query_offset
from headgate.control_protocol.table_format import FileSchema
from headgate.coordinator.added_partitions import hold_added_partitions
from headgate.coordinator.recovery import (
    fit_offsets_to_sources,
    record_to_resume_from,
    require_group_not_taken,
    require_quarantine_not_replaced,
    require_sink_name_not_taken,
    require_sources_unshared,
    require_table_not_recreated,
)
from headgate.coordinator.state import Identity, State
from headgate.data_plane.files.format_choice import require_usable_write_properties
from headgate.data_plane.files.metrics import leaves_of, metrics_modes
from headgate.data_plane.files.parquet import describe_ignored_properties
from headgate.operations.access.kafka_connection import open_reachable_source_topics
from headgate.operations.access.tables import find_start_error_of_missing_table, open_primary
from headgate.runtime.catalogs import spark_options
from headgate.runtime.sink_tables import open_tables_creating_nothing
from headgate.runtime.start_checks import (
    location_or_warehouse_of_new_table,
    require_creatable_table,
    require_expirable_rows_if_expiring,
    require_fillable_table,
    require_fitting_file_schema,
    require_known_scheme_or_writable_folder,
    require_writable_sqlite_catalog,
)
from headgate.tables.iceberg.catalog import require_atomic_swap, translate_catalog_error
from headgate.tables.iceberg.complete_empty_table import completed_schema, plan_completion
from headgate.tables.iceberg.file_schema import file_schema_of
from headgate.tables.iceberg.java_catalog import JavaCatalog
from headgate.tables.iceberg.maintenance.row_expiry import HOUR_MS, WAIT_MS
from headgate.tables.iceberg.maintenance.snapshot_selection import snapshot_retention
from headgate.tables.storage.local_file_io import local_path_of_encoded_uri
from headgate.tables.storage.object_stores import file_io_properties
from headgate.tables.storage.store_write_check import require_writable_store

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from headgate.data_plane.spark.session import OpenSession


_ROOM_BYTES_MIN = 1_000_000

Question = Callable[[], str]


def _require_disk_space(folder: Path) -> None:
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(nearest).free
    if free < _ROOM_BYTES_MIN:
        raise WriteFailed(f"{nearest} has {free:,} bytes left", "make room, or move the table")


class NotChecked(Exception):
    """A question that cannot be answered without changing something; says why."""


class _StorageLocations(NamedTuple):
    """Where a table's metadata goes, and where its data files."""

    metadata: str
    data: str


class TableCheck:
    """What ``headgate check`` asks about a sink's table, of any format, in the order of a start.

    Each question uses what the ones before found out. ``has_catalog``: whether a catalog lists its
    tables; then ``check_catalog``, ``check_rights`` and ``check_file_properties`` are asked, too.
    ``has_lock``: whether its commits need an external one. ``asks_group``: the notes next to the
    group's offsets can tell about a table that is gone. ``commits``, ``creates``: whether who asks
    is to commit to tables, and to create missing ones.
    """

    def __init__(
        self,
        settings: SinkSettings,
        *,
        asks_group: bool = False,
        commits: bool = True,
        creates: bool = True,
    ) -> None:
        self._asks_group = asks_group
        self._commits, self._creates = commits, creates
        self._settings = settings
        self._view: TableView | None = None
        self._found: Table | None = None
        self._layout: FileSchema | None = None
        with open_tables_creating_nothing(settings) as tables:
            self.has_catalog = tables.has_catalog
            self.has_lock = tables.format_with_external_lock is not None
        self._identity = Identity(
            settings.name,
            settings.source.group_id,
            Sender("check", ""),
            keyed=settings.replaces_primary_rows,
            routed_keys=KeysByRoute.from_settings(settings),
            growth_ms=settings.changes.added_partitions_hold_ms,
            multiples_only=settings.changes.refuses_uneven_partition_growth,
        )

    @property
    def has_found_table(self) -> bool:
        """Return whether there is a table; known after ``check_table``."""
        return self._layout is not None

    @property
    def loaded_table(self) -> Table | None:
        """Return the Iceberg table, if there is one; known after ``check_table``."""
        return self._found

    def check_catalog(self) -> str:
        catalog = self._settings.catalog
        try:
            with open_tables_creating_nothing(self._settings) as tables:
                tables.require_catalog_format()
                tables.atomic_commits()
        except TableMissing as error:
            if not self._settings.table.create:
                raise
            self._require_not_dropped()
            return f"{error.message}: the first start creates it"
        if self._commits:
            require_writable_sqlite_catalog(catalog)
        in_java = ", in Java" if catalog.backend is Backend.JAVA else ""
        return f"{catalog.name!r} ({catalog.properties.get('type', 'by its uri')}) opens{in_java}"

    def check_table(self) -> str:
        wanted = self._settings.table
        try:
            with open_tables_creating_nothing(self._settings) as tables:
                if self.has_catalog:
                    self._found = tables.require_catalog_format().load_table(tables.name)
                    self._layout = file_schema_of(self._found)
                else:
                    self._layout = tables.file_schema(tables.name)
        except TableMissing as error:
            if not wanted.create:
                if not self.has_catalog:
                    raise
                raise TableMissing(
                    error.message,
                    "create it, correct table.identifier, or set table.create with its columns",
                ) from None
            self._require_not_dropped()
            if self.has_catalog and self._creates:
                self._require_creatable()
            return f"{wanted.identifier} does not exist yet; the first start creates it"
        of = "" if self.has_catalog else f"{wanted.type}, "
        return f"{wanted.identifier} exists ({of}UUID {self._layout.uuid})"

    def _require_creatable(self) -> None:
        try:
            with open_tables_creating_nothing(self._settings) as tables:
                require_creatable_table(self._settings, tables.require_catalog_format().catalog)
        except TableMissing:
            require_creatable_table(self._settings)

    def check_rights(self) -> str:
        """Check that the catalog lets this principal do what the sink will do."""
        return check_catalog_rights(self._settings, self._settings.table.identifier)

    def check_columns(self) -> str:
        """Check that every declared column exists with the declared type, and can be written."""
        assert self._layout is not None  # asked only if the table exists
        if self._found is not None:
            wanted_table = declaration_if_creation_allowed(self._settings.table)
            schema = completed_schema(self._found, wanted_table)
            require_fillable_table(self._found, self._settings, schema)
            if step := plan_completion(self._found, wanted_table):
                return f"it has no rows yet, and the next start adds {', '.join(step.changes)}"
        else:
            require_fitting_file_schema(self._layout, self._settings)
        wanted = len(declaration_of(self._settings.table).columns)
        there = len(self._layout.columns.fields)
        return f"{there} in the table, {wanted} of them declared here and equal"

    def check_row_expiry(self) -> str:
        """Say when a row is gone, from every reader and from storage. Raises ``RowExpiryUnfit``."""
        wanted = self._settings.maintenance
        if self._found is None:
            shown = f"rows go {_duration_text(wanted.rows_after_ms)} after their {wanted.rows_by}"
            return f"{shown}; how long snapshots keep them is known once there is a table"
        require_expirable_rows_if_expiring(self._settings, self._found, self._found.schema())
        return describe_row_expiry(self._settings, self._found.properties)

    def check_file_properties(self) -> str:
        """Check that files can be written by the table's properties; list unsupported ones."""
        table = self._found
        assert table is not None  # asked only if the table exists
        schema, properties = table.schema(), table.properties
        field_leaves = leaves_of(schema, metrics_modes(schema, properties, table.sort_order()))
        require_usable_write_properties(schema, properties, table.sort_order())
        ignored = describe_ignored_properties(properties, field_leaves)
        return (
            f"not supported: {'; '.join(ignored)}" if ignored else "as the table's properties ask"
        )

    def check_lock(self) -> str:
        """Say where the lock is that the format's commits need. Raises ``Unreachable``."""
        with open_tables_creating_nothing(self._settings) as tables:
            lock = tables.format_with_external_lock
            assert lock is not None, "asked only of formats that have one"
            return lock.probe_lock(tables.table_spec_of(tables.name))

    def check_quarantine(self) -> str:
        """Check that it exists and can be filled, and is the one that the sink has filled."""
        return check_quarantine(self._settings, self._require_same_quarantine)

    def _present_or_future_location(self) -> str:
        """Return where the table is, or will be."""
        return (
            self._layout.location
            if self._layout
            else location_or_warehouse_of_new_table(self._settings)
        )

    def _storage_locations(self) -> _StorageLocations:
        """Return where metadata goes, and where data files: properties may name other stores."""
        own = self._settings.table.properties if self._settings.table.type == ICEBERG else {}
        properties = own if self._found is None else self._found.properties
        names = (TableProperties.WRITE_METADATA_PATH, TableProperties.WRITE_DATA_PATH)
        location = self._present_or_future_location()
        metadata, data = (properties.get(name, "") or location for name in names)
        return _StorageLocations(metadata, data)

    def _file_io_properties(self, location: str) -> dict[str, str]:
        """Return a participant's properties, which a catalog may only give out with a table."""
        if self._found is not None:
            return file_io_properties(self._found.io.properties, location)
        if self.has_catalog and "://" not in location:
            raise NotChecked(
                f"writing to {location or 'the catalog`s own choice'} was not tried: where a new "
                "table lies, and with which keys, the catalog says when it makes one"
            )
        return file_io_properties(self._settings.catalog.properties, location)

    def check_sink_state(self) -> str:
        """Ask what a coordinator would ask before its first claim, with the same code."""
        settings = self._settings
        with open_primary(settings) as table:
            view = table.read()
        require_sink_name_not_taken(view.record or view.branch_record, self._identity)
        record = record_to_resume_from(view, settings.coordinator)
        self._view = view
        if record is None:
            return f"a first start; it starts at {settings.source.start_at}"
        return (
            f"goes on after transaction {record.transaction} of group {record.group_id}"
            f"{', paused' if record.paused else ''}"
        )

    def check_stored_offsets(self) -> str:
        """Check that the source still has what the table says to read next."""
        assert self._view is not None  # asked only after sink_state
        settings = self._settings
        with open_reachable_source_topics(settings) as topics:
            now, note = topics.describe(), topics.committed_offset_metadata()
        ids = {topic: state.topic_id for topic, state in now.items()}
        require_sources_unshared(self._view, ids, settings.table.shared_with)
        if self._view.lineage is Lineage.FRESH:
            require_group_not_taken(note, self._identity)
        require_table_not_recreated(self._view, None, note, settings.coordinator)
        record = record_to_resume_from(self._view, settings.coordinator)
        if record is None:
            return "none yet"
        fit_offsets_to_sources(record.offsets, record.topic_ids, now, settings.coordinator)
        looking = State(self._identity, settings.coordinator)
        _, held = hold_added_partitions(looking, record.offsets, record.topic_ids, now, now_ms=0)
        within = (
            f"{count_of(len(without_query_offset(record.offsets)), 'partition')}, all within "
            "their logs"
        )
        return "; ".join([within, *(tell.text for tell in held)])

    def check_storage(self) -> str:
        """Check a local folder's rights; on an object store, write, read and remove a file."""
        return "; ".join(map(self._check_location, dict.fromkeys(self._storage_locations())))

    def _check_location(self, location: str) -> str:
        require_known_scheme_or_writable_folder(location)
        if (folder := local_path_of_encoded_uri(location)) is not None:
            _require_disk_space(folder)
            return f"{folder} may be written"
        path = require_writable_store(self._file_io_properties(location), location)
        return f"{path} was written, read and removed again"

    def check_executors(self) -> str:
        """Let Spark's executors write to the store, with what they would have in a batch.

        They write data files alone, so they need no rights where the table's metadata is.
        """
        if self._has_only_local_executor():
            return "tasks run on this machine, and see the same as this process"
        _, location = self._storage_locations()
        if local_path_of_encoded_uri(location) is not None:
            raise NotChecked(f"whether each of them has the folder {location} is not asked")
        from headgate.data_plane.spark.executor_store_check import (
            check_store_by_executors_and_describe,
        )

        properties = self._file_io_properties(location)
        return self._ask_executors(
            lambda session: check_store_by_executors_and_describe(session, properties, location)
        )

    def check_executor_tokens(self) -> str:
        """Let Spark's executors ask for the tokens that they need in a batch."""
        if self._has_only_local_executor():
            return "tasks run on this machine, and ask with the same files as this process"
        from headgate.data_plane.spark.executor_store_check import (
            check_tokens_by_executors_and_describe,
        )

        kafka, registry = self._settings.kafka, self._settings.format.options
        return self._ask_executors(
            lambda session: check_tokens_by_executors_and_describe(
                session, kafka, registry.get(REGISTRY_AUTH, "")
            )
        )

    def _has_only_local_executor(self) -> bool:
        """Return whether Spark has no executor but this machine. Raises ``NotChecked``."""
        spark = self._settings.spark
        master = spark.master or spark.conf.get("spark.master", "")
        if not spark.remote and not master:
            raise NotChecked("without spark.master tasks run here, unless spark-submit says else")
        return not spark.remote and master.partition("[")[0] == "local"

    def _ask_executors(self, question: Callable[[OpenSession], str]) -> str:
        if spark_conf_for_format_commits(self._settings) is not None:
            raise NotChecked("this command's only JVM reads the table, and has no executors")
        from headgate.data_plane.spark.session import open_session

        session = open_session(spark_options(self._settings))
        try:
            return question(session)
        finally:
            session.close()

    def _require_same_quarantine(self, uuid: str | None) -> None:
        """Raise as a start would if bad records went to another quarantine so far."""
        settings = self._settings
        record = record_to_resume_from(self._view, settings.coordinator) if self._view else None
        name, policies, routed = settings.quarantine.table, settings.coordinator, settings.tables
        require_quarantine_not_replaced(name, uuid, record, policies, routed=bool(routed))

    def _require_not_dropped(self) -> None:
        if self._asks_group and (gone := find_start_error_of_missing_table(self._settings)):
            raise gone


# Asks whether the catalog lets this principal commit and create, without changing anything.
#
# A REST server checks rights before requirements. So it gets a commit without updates that requires
# another UUID than the table's: it answers conflict if the principal may commit, and forbidden if
# not. A database checks rights before it looks for rows, so an update of no rows needs them as
# well.


_DENIED = ("permission denied", "readonly database", "InsufficientPrivilege")
_EMPTY = ("no such table", "UndefinedTable")
_MORE_THAN_NEEDED = ("DELETE", "TRUNCATE")


class CannotAsk(Exception):
    """This kind of catalog cannot be asked in that way; says why."""


def check_commit_rights(table: Table) -> str:
    """Ask for a commit.

    Raises ``MissingRights``, ``Unreachable``, ``CatalogRefused``, ``CannotAsk``.
    """
    name = ".".join(table.name())
    if engine := _sqlalchemy_engine_or_none(table.catalog):
        return _check_statement_allowed(
            engine, name, "UPDATE iceberg_tables SET table_name = table_name"
        )
    if _is_hive_metastore(table.catalog):
        try:
            require_atomic_swap(table.catalog, name)
        except Exception as error:
            raise _translate_rights_error(error, f"table {name} may not be committed") from error
        return f"{name} may be altered, and its metastore compares and sets (it was asked)"
    if not (_is_rest_catalog(table.catalog) or isinstance(table.catalog, JavaCatalog)):
        raise CannotAsk(f"whether {name} may be committed was not tried: a check changes nothing")
    try:
        table.catalog.commit_table(table, (AssertTableUUID(uuid=uuid.uuid4()),), ())
    except CommitFailedException:
        return f"{name} may be committed"
    except Exception as error:
        raise _translate_rights_error(error, f"table {name} may not be committed") from error
    raise CatalogRefused(
        f"the catalog took a commit of {name} that required another table (it changed nothing)",
        "a catalog that does not check requirements cannot be the sink's lock",
    )


def check_create_rights(catalog: Catalog, identifier: str) -> str:
    """Ask for a table.

    Raises as ``check_commit_rights``. A staged table does not exist until it is committed.
    """
    if engine := _sqlalchemy_engine_or_none(catalog):
        fields = "INSERT INTO iceberg_tables SELECT * FROM iceberg_tables"
        return _check_statement_allowed(engine, identifier, fields)
    if isinstance(catalog, JavaCatalog) and catalog.kind == "hive":
        try:
            catalog.require_atomic_swap_of_new_table(identifier)
        except Exception as error:
            raise _translate_rights_error(
                error, f"table {identifier} may not be created"
            ) from error
        return (
            f"a view could be made and removed, and the metastore of {identifier} compares and sets"
        )
    if not _is_rest_catalog(catalog):
        raise CannotAsk(f"whether {identifier} may be created was not tried")
    try:
        catalog.create_table_transaction(identifier, Schema())
    except NoSuchNamespaceError as error:
        why = f"the namespace of {identifier} does not exist yet: the first start creates it"
        raise CannotAsk(why) from error
    except Exception as error:
        raise _translate_rights_error(error, f"table {identifier} may not be created") from error
    return f"{identifier} may be created"


def _is_rest_catalog(catalog: Catalog) -> bool:
    from pyiceberg.catalog.rest import RestCatalog

    return isinstance(catalog, RestCatalog)


def _is_hive_metastore(catalog: Catalog) -> bool:
    return isinstance(catalog, JavaCatalog) and catalog.kind == "hive"


def _sqlalchemy_engine_or_none(catalog: Catalog) -> Engine | None:
    return getattr(catalog, "engine", None)


def _translate_rights_error(error: Exception, what: str) -> HeadgateError:
    found = translate_catalog_error(error, what)
    if isinstance(found, MissingRights):
        found.hint = "docs/guides/security.md names the rights of each role; check the credential"
    return found


def _check_statement_allowed(engine: Engine, name: str, statement: str) -> str:
    """Ask whether the database would run the statement, on no row, and roll it back."""
    from sqlalchemy import text
    from sqlalchemy.exc import DBAPIError

    verb = statement.partition(" ")[0]
    try:
        with engine.connect() as connection:
            connection.execute(text(f"{statement} WHERE 1 = 0"))
            connection.rollback()
            wide = _find_too_wide_rights(connection) if engine.dialect.name == "postgresql" else []
            connection.rollback()
    except DBAPIError as error:
        answer = f"{error.orig!r} {error}"
        if any(word in answer for word in _DENIED):
            raise MissingRights(
                f"{name}: the catalog's database does not let this user {verb} iceberg_tables",
                f"grant {verb} on it; docs/guides/security.md has the commands",
            ) from error
        if any(word in answer for word in _EMPTY):
            raise CannotAsk("the catalog is empty: the first start creates its tables") from error
        raise translate_catalog_error(
            error, f"{name}: the catalog's database does not answer"
        ) from error
    if wide:
        raise CannotAsk(
            f"{name} may be written, and this user may {' and '.join(wide)} iceberg_tables too, "
            "which no role needs (docs/guides/security.md)"
        )
    return f"{name} may be {'committed' if verb == 'UPDATE' else 'created'}"


def _find_too_wide_rights(connection: Connection) -> list[str]:
    from sqlalchemy import text

    query = text("SELECT has_table_privilege('iceberg_tables', :right)")
    return [
        right for right in _MORE_THAN_NEEDED if connection.execute(query, {"right": right}).scalar()
    ]


def check_quarantine(
    settings: SinkSettings, require_same: Callable[[str | None], None] = lambda _: None
) -> str:
    """Say whether the quarantine is there, and can be filled. Raises what opening it raises.

    ``require_same`` gets its UUID, and raises if it is not the one that the sink has filled.
    """
    wanted = settings.quarantine
    catalog = wanted.catalog if settings.has_quarantine_of_other_format else settings.catalog
    require_writable_sqlite_catalog(catalog)
    try:
        with open_tables_creating_nothing(settings) as tables:
            uuid = tables.require_fit_quarantine_and_uuid()
            layout = tables.file_schema(wanted.table)
    except TableMissing:
        require_known_scheme_or_writable_folder(
            wanted.location or catalog.properties.get("warehouse", "")
        )
        require_same(None)
        return f"{wanted.table} does not exist yet; the next start creates it"
    require_same(uuid)
    found = f"{wanted.table} exists ({settings.table_type_of(wanted.table)}, UUID {uuid})"
    if local_path_of_encoded_uri(layout.location) is not None:
        return found  # its rights were looked at
    path = require_writable_store(
        file_io_properties(dict(layout.storage), layout.location), layout.location
    )
    return f"{found}; {path} was written, read and removed again"


def check_catalog_rights(settings: SinkSettings, name: str) -> str:
    """Say whether a table's catalog lets this principal do what the sink will do with it.

    Raises ``NotChecked``.
    """
    which = "next" if name == settings.quarantine.table else "first"
    try:
        with open_tables_creating_nothing(settings) as tables:
            found = tables.require_catalog_format(name)
            try:
                table = found.load_table(name)
            except TableMissing:
                return check_create_rights(found.catalog, name)
            return check_commit_rights(table)
    except CannotAsk as reason:
        raise NotChecked(str(reason)) from reason
    except TableMissing as error:
        raise NotChecked(f"{error.message}: the {which} start creates it") from error


# Says for ``headgate check`` when a row that expires is gone (EXPIRY-1, EXPIRY-2).


def describe_row_expiry(settings: SinkSettings, properties: Mapping[str, str]) -> str:
    """Return by when no reader shows a row any more, and by when storage has not its bytes."""
    wanted = settings.maintenance
    idle_ms = settings.coordinator.tag_refresh_interval_ms  # the limit stands on the last change
    shown_ms = wanted.rows_after_ms + WAIT_MS + HOUR_MS + wanted.interval_ms + idle_ms
    told = (
        f"no reader shows a row later than {_duration_text(shown_ms)} after its {wanted.rows_by} "
        f"({_duration_text(wanted.rows_after_ms)}, up to a day for files with few such rows, an "
        f"hour, a round, and up to {_duration_text(idle_ms)} if nobody changes the table)"
    )
    kept_ms, kept = snapshot_retention(properties) or (wanted.expire_after_ms, 1)
    if not kept_ms:
        return f"{told}; its bytes stay, because no snapshot ever expires"
    if not (wanted.compact and wanted.orphans and wanted.dead_per_thousand == 1):
        return (
            f"{told}; its bytes may stay: set maintenance.compact and orphans, and "
            "dead_per_thousand = 1"
        )
    gone_ms = shown_ms + kept_ms + wanted.orphans_after_ms
    return (
        f"{told}; storage has no bytes of it later than {_duration_text(gone_ms)} after it "
        f"(snapshots stay for {_duration_text(kept_ms)}, the newest {kept} for longer; orphans for "
        f"{_duration_text(wanted.orphans_after_ms)}). The quarantine and the topic "
        "keep their own time"
    )


def _duration_text(ms: int) -> str:
    """Return days and hours, rounded up to minutes."""
    minutes = -(-ms // 60_000)
    days, rest = divmod(minutes, 24 * 60)
    hours, left = divmod(rest, 60)
    parts = ((days, "d"), (hours, "h"), (left, "min"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 min"
