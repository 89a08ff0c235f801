"""The questions of ``headgate check`` about catalog, table and storage."""

from __future__ import annotations

from pyiceberg.table import Table

from headgate.control_protocol.errors import (
    MissingRights,
    TableMissing,
)
from headgate.control_protocol.identifiers import Sender
from headgate.control_protocol.ports import Lineage, TableView
from headgate.coordinator.recovery import (
    fitted,
    recorded,
    refuse_other_group,
    refuse_other_sink,
    refuse_recreated,
    refuse_shared,
)
from headgate.coordinator.state import Identity
from headgate.data.writers.encodings import refuse_files
from headgate.data.writers.metrics import leaves_of
from headgate.data.writers.metrics_modes import metrics_modes
from headgate.data.writers.parquet_options import unheeded
from headgate.data.writers.store_trial import try_store
from headgate.operations.catalog_rights import Unasked, may_commit, may_create
from headgate.operations.kafka_access import source_topics
from headgate.operations.routed_tables import told_of_routed
from headgate.operations.table_access import opened_catalog, opened_table, vanished
from headgate.sink.catalog_place import sqlite_file
from headgate.sink.catalog_settings import Backend
from headgate.sink.catalogs import spark_options
from headgate.sink.declaration import declared
from headgate.sink.preconditions import (
    future_location,
    refuse_place,
    refuse_table,
    writable,
)
from headgate.sink.settings import SinkSettings
from headgate.sink.starting import refuse_apart
from headgate.tables.iceberg.history import read_history
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.stores.local import local_path
from headgate.tables.stores.object_stores import for_files


class NotChecked(Exception):
    """A question that cannot be answered without changing something; says why."""


class TableCheck:
    """Asked in this order; what one question learnt, the next one uses.

    ``asks_group``: the notes beside the group's offsets can be asked for a table that is gone.
    """

    def __init__(self, settings: SinkSettings, *, asks_group: bool = False) -> None:
        self._asks_group = asks_group
        self._settings = settings
        self._table: Table | None = None
        self._view: TableView | None = None
        self._identity = Identity(settings.name, settings.source.group_id, Sender("check", ""))

    @property
    def exists(self) -> bool:
        return self._table is not None

    def catalog(self) -> str:
        catalog = self._settings.catalog
        try:
            with opened_catalog(self._settings) as opened:
                refuse_apart(opened, self._settings)
        except TableMissing as error:
            if not self._settings.table.create:
                raise
            self._refuse_gone()
            return f"{error.message}: the first start makes it"
        if (database := sqlite_file(catalog)) and not writable(database):
            raise MissingRights(
                f"catalog {catalog.name!r}: {database} may not be written", "grant write access"
            )
        in_java = ", in Java" if catalog.backend is Backend.JAVA else ""
        return f"{catalog.name!r} ({catalog.properties.get('type', 'by its uri')}) opens{in_java}"

    def table(self) -> str:
        wanted = self._settings.table
        try:
            with opened_table(self._settings) as table:
                self._table = table
        except TableMissing as error:
            if not wanted.create:
                raise TableMissing(
                    error.message,
                    "create it, correct table.identifier, or set table.create with its columns",
                ) from None
            self._refuse_gone()
            return f"{wanted.identifier} does not exist yet; the first start creates it"
        return f"{wanted.identifier} exists (UUID {self._table.metadata.table_uuid})"

    def _refuse_gone(self) -> None:
        if self._asks_group and (gone := vanished(self._settings)):
            raise gone

    def rights(self) -> str:
        """Whether the catalog lets this principal do what the sink will."""
        try:
            with opened_catalog(self._settings) as catalog:
                if self._table is None:
                    return may_create(catalog, self._settings.table.identifier)
                return may_commit(self._table)
        except Unasked as reason:
            raise NotChecked(str(reason)) from reason
        except TableMissing as error:
            raise NotChecked(f"{error.message}: the first start makes it") from error

    def columns(self) -> str:
        """Every declared column is in the table, with the declared type, and can be written."""
        assert self._table is not None  # asked only when the table exists
        schema = self._table.schema()
        refuse_table(self._table, self._settings)
        wanted = len(declared(self._settings.table).columns)
        return f"{len(schema.fields)} in the table, {wanted} of them declared here and equal"

    def files(self) -> str:
        """Whether files can be written as the table's properties ask, and what is not followed."""
        assert self._table is not None  # asked only when the table exists
        schema, properties = self._table.schema(), self._table.properties
        leaves = leaves_of(schema, metrics_modes(schema, properties, self._table.sort_order()))
        refuse_files(schema, properties, self._table.sort_order())
        ignored = unheeded(properties, leaves)
        return f"not followed: {'; '.join(ignored)}" if ignored else "as the table's properties ask"

    def routed(self) -> str:
        """Whether the tables that the ledger remembers are there, and take rows (I1, N5)."""
        settings = self._settings
        with opened_table(settings) as ledger:
            history = read_history(ledger, settings.name, settings.table.branch)
            told = told_of_routed(settings, ledger, history)
        if told:
            raise TableMissing(
                "; ".join(told),
                "mend or restore them, then headgate tables SINK resume (docs/tables.md)",
            )
        return f"{len(history.filled)} were filled, and none of them is gone or parked"

    def sink_state(self) -> str:
        """Asks what a coordinator would ask before its first claim, with the same code."""
        settings = self._settings
        with opened_catalog(settings) as catalog:
            table = IcebergTable(
                catalog, settings.table.identifier, settings.name, settings.table.branch
            )
            view = table.read()
        refuse_other_group(view.record or view.branch_record, self._identity)
        record = recorded(view, settings.coordinator)
        self._view = view
        if record is None:
            return f"a first start; it begins at {settings.source.start_at}"
        return (
            f"goes on after transaction {record.transaction} of group {record.group_id}"
            f"{', paused' if record.paused else ''}"
        )

    def stored_offsets(self) -> str:
        """Whether the source still has what the table says to read next."""
        assert self._view is not None  # asked only behind sink_state
        settings = self._settings
        with source_topics(settings) as topics:
            now, note = topics.describe(), topics.committed_note()
        ids = {topic: state.topic_id for topic, state in now.items()}
        refuse_shared(self._view, ids, settings.table.shared_with)
        if self._view.lineage is Lineage.FRESH:
            refuse_other_sink(note, self._identity)
        refuse_recreated(self._view, None, note, settings.coordinator)
        record = recorded(self._view, settings.coordinator)
        if record is None:
            return "none yet"
        fitted(record.offsets, record.topic_ids, now, settings.coordinator)
        return f"{len(record.offsets)} partitions, all within their logs"

    def storage(self) -> str:
        """Ask a local folder for its rights, and an object store by writing, reading, removing."""
        location = self._location()
        refuse_place(location)
        if (folder := local_path(location)) is not None:
            return f"{folder} may be written"
        path = try_store(self._file_properties(location), location)
        return f"{path} was written, read and removed again"

    def executors(self) -> str:
        """Let Spark's executors write to the store, with what they would have in a batch."""
        spark, location = self._settings.spark, self._location()
        master = spark.master or spark.conf.get("spark.master", "")
        if not spark.remote and master.partition("[")[0] == "local":
            return "tasks run on this machine, and see what was seen from here"
        if not spark.remote and not master:
            raise NotChecked("without spark.master tasks run here, unless spark-submit says else")
        if local_path(location) is not None:
            raise NotChecked(f"whether each of them has the folder {location} is not asked")
        from headgate.data.spark.session import open_session
        from headgate.data.spark.store_trial import try_from_executors

        properties = self._file_properties(location)
        session = open_session(spark_options(self._settings))
        try:
            return try_from_executors(session, properties, location)
        finally:
            session.close()

    def _location(self) -> str:
        table = self._table
        return table.metadata.location if table else future_location(self._settings)

    def _file_properties(self, location: str) -> dict[str, str]:
        """What a participant would take, which the catalog may give out with a table only."""
        if self._table is not None:
            return for_files(self._table.io.properties)
        if "://" not in location:
            raise NotChecked(
                f"writing to {location or 'the catalog`s own choice'} was not tried: where a new "
                "table lies, and with which keys, the catalog says when it makes one"
            )
        return for_files(self._settings.catalog.properties)
