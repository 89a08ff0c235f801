"""Implements ``TableFormat`` for Iceberg: the tables of one catalog."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from threading import Lock
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from headgate.control_protocol.errors import (
    HeadgateError,
    MissingRights,
    StopSink,
    TableMissing,
    Unreachable,
)
from headgate.control_protocol.identifiers import SinkName, tag_name
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome
from headgate.control_protocol.table_format import (
    Capability,
    FileSchema,
    Guarantee,
    RollbackSnapshot,
    SnapshotTime,
    TableFormat,
    TableSpec,
    Use,
)
from headgate.control_protocol.table_history import TableReader
from headgate.tables.iceberg.catalog import translate_catalog_error
from headgate.tables.iceberg.commit_mutex import CommitLocks
from headgate.tables.iceberg.file_schema import file_schema_of
from headgate.tables.iceberg.load_each_table import load_each_table
from headgate.tables.iceberg.maintenance.snapshot_expiry import SnapshotExpiry
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.supported_tables import raise_if_metadata_not_understood
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.upsert.index_memory import IndexMemory
from headgate.tables.storage.object_stores import refused_operation_of, require_no_remote_signing

if TYPE_CHECKING:
    from headgate.tables.iceberg.atomic_deliveries import AtomicDeliveries
    from headgate.tables.iceberg.dead_letter_rows import UnsentRows
    from headgate.tables.iceberg.rollback import IcebergSnapshots
    from headgate.tables.iceberg.row_deletion import Deletion
    from headgate.tables.iceberg.upsert.upsert_commit import KeyedRows


class IcebergFormat(TableFormat):
    """The tables of one catalog, which its opener closes.

    ``commit_locks``: where commits of a coordinator and its maintenance of the same table meet.
    """

    guarantee = Guarantee.EXACTLY_ONCE
    capabilities = frozenset(Capability)

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.commit_locks = CommitLocks()
        self._memory: IndexMemory | None = None
        self._lock = Lock()

    def with_fresh_commit_locks(self) -> IcebergFormat:
        # Locks of an earlier coordinator may be held by its last call, which hangs.
        return IcebergFormat(self.catalog)

    def require_supported(self, spec: TableSpec) -> None:
        """Do nothing: the settings are checked where they are declared."""

    def create(self, spec: TableSpec) -> bool:
        """Do as the port says. Raises as ``create_table_if_missing``."""
        from headgate.tables.iceberg.table_creation import (  # not for readers
            TableDeclaration,
            create_table_if_missing,
        )

        declaration = TableDeclaration.from_spec(spec) if spec.create else None
        return create_table_if_missing(self.catalog, spec.name, declaration)

    def exists(self, spec: TableSpec) -> bool:
        """Do as the port says. Also raises ``MissingRights`` and ``ConfigurationError``."""
        try:
            return self.catalog.table_exists(spec.name)
        except Exception as error:
            what = f"the catalog does not say whether table {spec.name} exists"
            raise translate_catalog_error(error, what) from error

    def list_table_names(self, beside: TableSpec) -> Collection[str]:
        namespace = beside.name.rpartition(".")[0]
        return _last_names_of(
            lambda: self.catalog.list_tables(namespace), f"the tables of {namespace}"
        )

    def short_namespace_names_in(self, parent: str) -> Collection[str]:
        return _last_names_of(
            lambda: self.catalog.list_namespaces(parent or ()), f"the namespaces in {parent!r}"
        )

    def open(self, spec: TableSpec, sink: SinkName, use: Use = Use.OPERATOR) -> IcebergTable:
        # A person's claim reads no index, and must not expire snapshots: it may be what saves them.
        deleted_at = spec.key.deleted_at if spec.key else None
        if use is Use.OPERATOR:
            return IcebergTable(self.catalog, spec.name, sink, spec.branch, deleted_at=deleted_at)
        expire_after_ms = spec.expire_after_ms or None
        commit_lock = self.commit_locks.find_or_add_lock(spec.name)
        return IcebergTable(
            self.catalog,
            spec.name,
            sink,
            spec.branch,
            readd_dropped=spec.readd_dropped,
            upkeep=SnapshotExpiry(
                self.catalog, commit_lock=commit_lock, expire_after_ms=expire_after_ms
            ),
            keyed=self._keyed_rows(spec, use),
            warms=use is Use.PRIMARY,
            keeps_columns=spec.keeps_columns,
            deleted_at=deleted_at,
        )

    def _keyed_rows(self, spec: TableSpec, use: Use) -> KeyedRows | None:
        """Return how records replace rows of the table, if it has a key."""
        if spec.key is None:
            return None
        from headgate.tables.iceberg.upsert.upsert_commit import KeyedBy, KeyedRows  # reads files

        bytes_max = spec.index_memory_bytes
        by = KeyedBy(**asdict(spec.key), index_bytes_max=bytes_max)
        if use is Use.PRIMARY:
            return KeyedRows(by)
        with self._lock:  # secondary tables are opened by several threads
            self._memory = self._memory or IndexMemory(bytes_max)
        return KeyedRows(by, memory=self._memory)

    def file_schema(self, spec: TableSpec) -> FileSchema:
        """Do as the port says. Raises ``ConfigurationError`` for files that need signed requests,
        ``MissingRights``, and as ``SinkTable.read``."""
        try:
            table = self.catalog.load_table(spec.name)
        except Exception as error:
            raise_if_metadata_not_understood(spec.name, error)
            failure = translate_catalog_error(error, f"table {spec.name} cannot be read")
            if not isinstance(failure, (MissingRights, TableMissing, StopSink)):
                failure = Unreachable(failure.message, failure.hint)
            raise failure from error
        require_no_remote_signing(spec.name, table.io.properties)
        return file_schema_of(table)

    def load_table(self, name: str) -> Table:
        """Load a table for reading. Raises ``TableMissing``, and what reading a catalog raises."""
        try:
            return self.catalog.load_table(name)
        except Exception as error:
            raise _translate_read_error(error, name) from error

    def reader(self, spec: TableSpec, sink: SinkName) -> IcebergReader:
        return IcebergReader(self.load_table(spec.name), sink, spec.branch)

    def open_committable_reader(self, spec: TableSpec, sink: SinkName) -> IcebergReader:
        return IcebergReader(self.open(spec, sink).load(), sink, spec.branch)

    def open_readers(
        self, specs: Sequence[TableSpec], sink: SinkName
    ) -> Iterator[tuple[str, TableReader | HeadgateError]]:
        branches = {spec.name: spec.branch for spec in specs}
        for name, answer in load_each_table(self.catalog, branches):
            if isinstance(answer, Table):
                yield name, IcebergReader(answer, sink, branches[name])
            else:
                yield name, answer

    def newest_commit(self, spec: TableSpec, sink: SinkName) -> SnapshotTime | None:
        metadata = self.catalog.load_table(spec.name).metadata
        ref = metadata.refs.get(tag_name(sink, spec.branch))
        snapshot = metadata.snapshot_by_id(ref.snapshot_id) if ref else None
        if snapshot is None:
            return None
        return SnapshotTime(snapshot.snapshot_id, snapshot.timestamp_ms / 1000)

    def snapshots_of(self, reader: TableReader) -> IcebergSnapshots:
        assert isinstance(reader, IcebergReader), "opened by this format"
        return reader.snapshots()

    def read_snapshots(self, spec: TableSpec, sink: SinkName) -> IcebergSnapshots:
        from headgate.tables.iceberg.rollback import IcebergSnapshots  # of rollbacks only

        return IcebergSnapshots(self.open(spec, sink).load(), sink, spec.branch)

    def roll_back(
        self, spec: TableSpec, sink: SinkName, attempt: CommitAttempt, target: RollbackSnapshot
    ) -> CommitOutcome:
        return self.open(spec, sink).roll_back(attempt, target)

    def make_branch(self, spec: TableSpec, name: str, snapshot_id: int, kept_ms: int) -> None:
        from headgate.tables.iceberg.rollback import make_branch  # of rollbacks only

        make_branch(self.load_table(spec.name), name, snapshot_id, kept_ms)

    def row_deletion(
        self,
        spec: TableSpec,
        sink: SinkName,
        predicate: str,
        *,
        asked_by: str,
        coordinate_columns: tuple[str, str, str] | None,
    ) -> Deletion:
        from headgate.tables.iceberg.row_deletion import Deletion, parse_predicate  # reads files

        matching, of = parse_predicate(predicate), (sink, spec.branch)
        return Deletion(
            self.catalog, spec.name, of, matching, asked_by=asked_by, columns=coordinate_columns
        )

    def atomic_commits(self) -> AtomicDeliveries:
        from headgate.tables.iceberg.atomic_deliveries import AtomicDeliveries

        return AtomicDeliveries(self.catalog)

    def unsent_dead_letters(self, spec: TableSpec, sink: SinkName) -> UnsentRows:
        from headgate.tables.iceberg.dead_letter_rows import UnsentRows

        return UnsentRows(self.catalog, spec.name, sink, spec.branch)

    def close(self) -> None:
        """Do nothing: the catalog is closed by its opener."""


def _last_names_of(list_identifiers: Callable[[], list[Identifier]], what: str) -> Collection[str]:
    """Return the last part of each name, and none where the namespace is missing.

    Raises ``Unreachable`` for missing rights, too: they may come back, and no participant should
    stop for good.
    """
    try:
        return [identifier[-1] for identifier in list_identifiers()]
    except NoSuchNamespaceError:
        return ()
    except Exception as error:
        failure = translate_catalog_error(error, f"{what} cannot be listed")
        code = f"{failure.code} " if isinstance(failure, MissingRights) else ""
        raise Unreachable(f"{code}{failure.message}", failure.hint) from error


def _translate_read_error(error: Exception, identifier: str) -> HeadgateError:
    what = f"table {identifier} cannot be read"
    if isinstance(error, PermissionError) and refused_operation_of(error) == "access":
        return MissingRights(f"{what}: {error}", "grant read access to its metadata")
    # A SQL catalog that was never written to does not have its own tables yet.
    if type(error).__name__ in ("OperationalError", "ProgrammingError") and (
        "no such table: iceberg_tables" in str(error) or "UndefinedTable" in str(error)
    ):
        return TableMissing(f"{what}: the catalog is empty")
    return translate_catalog_error(error, what)
