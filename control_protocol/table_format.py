"""Defines the port for table formats: what they receive, guarantee, and are capable of.

A format provides its commits (``ports.SinkTable``), the columns with which participants write
Parquet files (``FileSchema``), and its history (``TableReader``). The protocol, the writers, and
all commands that operate a sink belong to headgate. A package registers a format with an entry
point in the group ``headgate.tables``; docs/table-formats/writing-a-table-format.md develops one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.errors import HeadgateError, RetryLater, TableMissing
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import Epoch, SinkName
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    SecondaryTable,
    SinkTable,
    Staging,
    TableView,
)
from headgate.control_protocol.table_history import (
    ONLY_BRANCH,
    FencedConnector,
    FileRows,
    SinkCommit,
    TableReader,
)


class Guarantee(StrEnum):
    """Says how often a record of the source is in the table, whatever fails."""

    EXACTLY_ONCE = "exactly once"
    IDEMPOTENT = "exactly once by key"
    """A record may be written again, and then overwrites itself."""

    AT_LEAST_ONCE = "at least once"


class Capability(StrEnum):
    """Names what only some formats support; a setting that needs one is refused without it.

    Only Iceberg supports what has no capability here: maintenance, rollback, sort orders, several
    tables in one commit (decision 0018); some of it are the optional protocols below.
    """

    BRANCHES = "branches"
    """Every method uses ``TableSpec.branch``."""

    EVOLUTION = "new columns"
    """``evolve`` adds columns that records need (rules SCHEMA-3, SCHEMA-5); the table is a
    ``ports.PrimaryTable``."""

    SECONDARY_TABLES = "quarantine"
    """``open`` returns a ``SupportsDelivery``: it receives what another table has decided."""

    KEYS = "rows by key"
    """A commit takes key files beside row files (rules KEY-1 to KEY-4, KEY-8 to KEY-10)."""

    KEYED_TABLES = "rows by key of many tables"
    """``open`` returns a table that also takes key files if it is a secondary one with a key; for a
    format with ``KEYS`` and ``MANY_TABLES``."""

    MANY_TABLES = "many tables"
    """``list_table_names`` lists tables, these can be secondary ones (``SECONDARY_TABLES``), and
    one may be a ledger: views have ``filled``, and commits apply ``forgets`` (rule LEDGER-2)."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Says what tables of a format guarantee, and can do beyond appending."""

    guarantee: Guarantee
    capabilities: frozenset[Capability]


@dataclass(frozen=True, slots=True)
class RowKey:
    """Names the columns of a table's key, and those that identify a row's record (rule KEY-2).

    ``deleted_at``: the column in which deletes mark rows (KEY-13); empty: they remove them.
    """

    key: tuple[str, ...]
    partition: str
    offset: str
    topic: str = ""
    deleted_at: str = ""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """Describes a table of a sink file, in values that are independent of table formats.

    ``storage`` holds the keys of [catalog.properties], including secrets. ``columns`` are those
    that the file declares; ``create``: whether a missing table is created from them. Even an idle
    sink commits at least once in ``renewed_ms`` (0: perhaps never). ``by_spark``: whether
    Spark jobs write its files. ``key``: the columns that identify a row, for a format with
    ``Capability.KEYS``. ``primary``: for a quarantine, the [table.properties] of the table whose
    commits decide its rows; for each of many tables, the ``tables.create.properties``.
    ``ledger``: it is the one of these that decides, and has no rows. ``branch``: differs from
    ``ONLY_BRANCH`` only for a format with ``Capability.BRANCHES``.

    What only Iceberg is asked for: ``inferred`` names the columns that records have shown, which
    are optional; ``sort_by``: a column's name, or ``name desc``; ``expire_after_ms``: the age at
    which snapshots expire (0: as the table's own properties say); ``index_memory_bytes``: what the
    indexes of keys may hold; ``readd_dropped``: whether a dropped column may come back (SCHEMA-6);
    ``keeps_columns``: no file is taken whose values the table has no column for (SCHEMA-9).
    """

    name: str
    location: str
    create: bool = False
    columns: Struct = field(default_factory=Struct)
    comments: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)
    renewed_ms: int = 24 * 3_600_000
    by_spark: bool = False
    key: RowKey | None = None
    primary: Mapping[str, str] | None = None
    ledger: bool = False
    branch: str = ONLY_BRANCH
    inferred: frozenset[str] = frozenset()
    sort_by: tuple[str, ...] = ()
    expire_after_ms: int = 0
    index_memory_bytes: int = 4 * 1024**3
    readd_dropped: bool = False
    keeps_columns: bool = False


class Use(StrEnum):
    """Says what a table is opened for."""

    OPERATOR = "operator"
    """An operator's commit, or a look: adds no rows, reads no index, begins no maintenance."""

    SECONDARY = "secondary"
    """A coordinator's deliveries of pending commits."""

    PRIMARY = "primary"
    """A coordinator's own commits: what they need may be read ahead."""


class FileMarking(Protocol):
    """Names the files of a table with commit tokens, and adds columns to them (rule TOKEN-2).

    It can be pickled.
    """

    @property
    def meta_columns(self) -> Sequence[Any]:
        """Return the columns that a file has after the table's own, as Arrow fields."""

    def new_path(self, token: str, partition: Sequence[Any]) -> str:
        """Return the path of a new file with this token and these values of ``partition_by``.

        Raises ``ValueError`` if it is not a token of this table.
        """

    def files_to_write_before(self, path: str) -> Mapping[str, bytes]:
        """Return the files to write before the one at this path: contents by path."""

    def with_meta_columns(self, rows: Any, path: str, rows_before: int) -> Any:
        """Return the Arrow table with ``meta_columns`` behind it; so many rows are in the file
        already."""


class ValueCheck(Protocol):
    """Finds values that a table cannot hold, although their type fits; can be pickled."""

    def find_unsupported_rows(self, rows: Any) -> Mapping[int, str]:
        """Return why the table cannot hold some rows of an Arrow batch: their records are bad."""


@dataclass(frozen=True, slots=True)
class NativeSchema:
    """Holds a table's schema, partitioning and sort order as Iceberg's JSON, with column ids.

    ``older_schemas`` returns the others that the table has had, the oldest first. Files go where
    ``FileSchema.properties`` say; ``FileSchema.storage`` may hold credentials that expire.
    """

    schema_json: str
    spec_json: str
    sort_order_json: str
    older_schemas: Callable[[], tuple[str, ...]] = tuple


@dataclass(frozen=True, slots=True)
class FileSchema:
    """Says how participants write files of a table.

    ``schema_id`` differs for different columns or partitionings; it is that of the table's view.
    ``partition_by`` names columns: all rows of a file have the same values in them, and the
    file contains these columns too. Files go below ``location``/data, unless ``marking`` names
    paths. ``values`` finds bad records whose values have the columns' types.
    ``replace_unsupported``, for a quarantine, which takes every record, returns an Arrow batch with
    something legible in place of what the table cannot hold; it can be pickled. ``properties``:
    those of ``TableSpec`` that the table keeps. ``native``: what neutral
    columns do not say, for a format that is Iceberg's.
    """

    uuid: str
    schema_id: int
    columns: Struct
    location: str
    partition_by: tuple[str, ...] = ()
    storage: Mapping[str, str] = field(default_factory=dict)
    marking: FileMarking | None = None
    values: ValueCheck | None = None
    replace_unsupported: Callable[[Any], Any] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    native: NativeSchema | None = None


def schema_id_of_text(text: str) -> int:
    """Return a ``schema_id`` for a text that describes columns and partitioning."""
    return zlib.crc32(text.encode()) & 0x7FFFFFFF


NumberedFile = tuple[WrittenFile, int]


def files_with_transaction_ranks(attempt: CommitAttempt) -> tuple[NumberedFile, ...]:
    """Return each file with the rank of its transaction in the attempt, higher for a later one: its
    records are newer whatever their offsets, since the offsets of a re-created topic start at 0
    again (KEY-3)."""
    ranks = attempt.transactions or (0,) * len(attempt.files)
    return tuple(zip(attempt.files, ranks, strict=True))


class SupportsDelivery(SinkTable, Protocol):
    """Describes a table that can be a quarantine, of a format with ``Capability.SECONDARY_TABLES``.

    Another table's commit decides its rows; a later commit of its own adds them, perhaps by another
    process. That is all it needs: headgate keeps track of what is decided and not yet delivered.
    """

    def require_files_fit_and_exist(self, files: Sequence[WrittenFile]) -> None:
        """Raise ``StopSink`` for files that the table in its current state could not take.

        Called before their rows are decided, because afterwards nobody writes them again.
        """


class TableFormat(Protocol):
    """Opens the tables of one format. It keeps no state of theirs: every process creates its own
    instance.

    A class that inherits from it need not define what has a body here.
    """

    @property
    def guarantee(self) -> Guarantee: ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    def require_supported(self, spec: TableSpec) -> None:
        """Raise ``ConfigurationError`` for a table that this format does not support; no I/O."""

    def create(self, spec: TableSpec) -> bool:
        """Create the table if it is missing and ``spec.create`` allows it; return whether it was.

        Several processes may do so at once. Raises ``TableMissing``, ``Unreachable``; and
        ``TableUnfit`` for a table that the sink could not fill.
        """

    def exists(self, spec: TableSpec) -> bool:
        """Return whether the table is there, usable or not. Raises ``RetryLater``."""
        try:
            self.file_schema(spec)
        except TableMissing:
            return False
        except RetryLater:
            raise
        except HeadgateError:
            return True
        return True

    def list_table_names(self, beside: TableSpec) -> Collection[str]:
        """Return the last part of the name of each possible table beside this one.

        They are in its namespace, at locations that differ in the last part; not all of them need
        to be tables. Raises ``Unreachable``. Asked only of a format with
        ``Capability.MANY_TABLES``.
        """
        raise NotImplementedError(f"tables beside {beside.name} are not listed")

    def open(self, spec: TableSpec, sink: SinkName, use: Use = Use.OPERATOR) -> SinkTable:
        """Open the table for commits: one thread uses it.

        A table whose files are marked with their commit is a
        ``commit_tokens.SupportsCommitTokens``; what else it supports, it shows by the ``Supports``
        protocols for tables.
        """

    def file_schema(self, spec: TableSpec) -> FileSchema:
        """Return how participants write files of the table as it is now.

        Raises as ``SinkTable.read``.
        """

    def reader(self, spec: TableSpec, sink: SinkName) -> TableReader:
        """Open the table for audit, status and check. Raises as ``SinkTable.read``."""

    def close(self) -> None:
        """Let go of what the instance itself holds, such as a connection."""


@runtime_checkable
class SupportsLock(Protocol):
    """Describes a format whose commits need an external lock; ``headgate check`` tests whether it
    answers.
    """

    def probe_lock(self, spec: TableSpec) -> str:
        """Reach the lock without taking it; return where it is. Raises ``Unreachable``."""


@runtime_checkable
class SupportsSparkSession(Protocol):
    """Describes a format that commits through Spark, in this process's only JVM.

    If Spark jobs write the files as well, one session does both.
    """

    def spark_conf(self, spec: TableSpec) -> Mapping[str, str]:
        """Return the configuration that the session has to be started with, whatever its master."""


# What only some formats support, and runtime asks for by ``isinstance``. A wrapper around a table
# or format hides what it does not forward: ask the wrapped one (``FixedColumns.bare``).


@runtime_checkable
class SupportsCatalog(Protocol):
    """Describes a format whose tables a catalog finds by their names: ``list_table_names`` lists no
    views.
    """

    @property
    def catalog(self) -> Any:
        """Return the catalog, which the format's opener closes."""

    def short_namespace_names_in(self, parent: str) -> Collection[str]:
        """Return the last part of the name of each namespace directly there; ``""`` is the root.

        None of a parent that does not exist. Raises ``Unreachable``.
        """

    def load_table(self, name: str) -> Any:
        """Load a table for reading, as the catalog's library has it.

        Raises ``TableMissing``, and what reading a catalog raises.
        """

    def open_readers(
        self, specs: Sequence[TableSpec], sink: SinkName
    ) -> Iterator[tuple[str, TableReader | HeadgateError]]:
        """Yield each table's name with a reader of it, or the error that says why there is none.

        One that does not answer keeps no other from it.
        """


class SnapshotTime(NamedTuple):
    """Says when a snapshot was committed."""

    snapshot_id: int
    committed_at_s: float


@runtime_checkable
class SupportsMaintenance(Protocol):
    """Describes a format whose tables headgate maintains, in the catalog that has them."""

    @property
    def catalog(self) -> Any: ...

    @property
    def commit_locks(self) -> Any:
        """Return where commits and maintenance of the same table wait for each other."""

    def newest_commit(self, spec: TableSpec, sink: SinkName) -> SnapshotTime | None:
        """Return the snapshot of the sink's last commit, and its time; ``None``: none.

        Raises what the catalog raises.
        """

    def with_fresh_commit_locks(self) -> TableFormat:
        """Return the same tables for one coordinator, whose commits and maintenance wait for each
        other and share the memory of indexes."""


_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

DeliveryOutcome = CommitOutcome | HeadgateError


class Calls(Protocol):
    """Calls the tables of a sink."""

    def call_each(self, call: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
        """Call with each of the items, several at a time; the answers are in their order."""

    def call_or_suspending_error_of_table(
        self, table: str, call: Callable[[], _Answer]
    ) -> _Answer | HeadgateError:
        """Return the error that is this table's own trouble; raise any other (SUSPEND-1)."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Describes what is delivered to one table."""

    table: SecondaryTable
    attempt: CommitAttempt

    @property
    def table_name(self) -> str:
        return self.attempt.base.table

    def deliver(self) -> CommitOutcome:
        """Deliver to it by a call of its own."""
        return self.table.commit(self.attempt)


class AtomicCommits(Protocol):
    """Delivers to several tables in one call of their catalog (PENDING-5)."""

    def deliver(self, deliveries: Sequence[Delivery], calls: Calls) -> list[DeliveryOutcome]:
        """Return the outcome for each table. Raises as its own commit would."""


@runtime_checkable
class SupportsAtomicCommit(Protocol):
    """Describes a format that can commit to several tables in one call."""

    def atomic_commits(self) -> AtomicCommits:
        """Return what delivers to several tables in one call.

        Raises ``NotAtomic`` if the catalog has no such call.
        """


@dataclass(frozen=True, slots=True)
class RollbackSnapshot:
    """Describes a person's move: the new snapshot continues ``snapshot_id``, and the tag
    ``kept_as`` keeps the branch's former head, for ``kept_ms``. ``None``: an empty table, as at
    first.
    """

    snapshot_id: int | None
    kept_as: str
    kept_ms: int


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """Describes a snapshot that a table still has. ``record``: the sink's, if it is the sink's own
    commit.

    ``deleted``: how many rows people deleted with it; ``by_others``: names a snapshot that is not
    the sink's commit; ``first``: no earlier one has been removed from the table.
    """

    snapshot_id: int
    parent: int | None
    record: CommitRecord | None
    deleted: int = 0
    by_others: str = ""
    first: bool = False


class TableSnapshots(Protocol):
    """Finds the snapshots of a table, as it was when it was read.

    ``deleted``: how many rows people deleted from it in all.
    """

    @property
    def view(self) -> TableView:
        """Return the table as it was when it was read. Raises as ``SinkTable.read``."""

    @property
    def uuid(self) -> str: ...

    @property
    def head(self) -> int | None:
        """Return the newest snapshot of the branch."""

    @property
    def deleted_and_expired_row_count(self) -> int: ...

    def snapshot(self, snapshot_id: int | None) -> TableSnapshot | None: ...

    def snapshot_of_ref(self, name: str) -> TableSnapshot | None:
        """Return the snapshot that a branch or tag of this name keeps."""

    def newest_first(self) -> Iterator[TableSnapshot]:
        """Yield all snapshots, those on no branch among them."""

    def ancestry(self, snapshot_id: int | None) -> Iterator[TableSnapshot]:
        """Yield the snapshot and those before it, as far as the table still has them."""


@runtime_checkable
class SupportsRollback(Protocol):
    """Describes a format whose tables go back to an older snapshot, by one commit (rule
    ROLLBACK-1).
    """

    def snapshots_of(self, reader: TableReader) -> TableSnapshots:
        """Return the snapshots of the table that this format's reader reads."""

    def read_snapshots(self, spec: TableSpec, sink: SinkName) -> TableSnapshots:
        """Return the table's snapshots as they are now. Raises as ``SinkTable.read``."""

    def roll_back(
        self, spec: TableSpec, sink: SinkName, attempt: CommitAttempt, target: RollbackSnapshot
    ) -> CommitOutcome:
        """Commit a person's claim, which adds no rows and continues an older snapshot."""

    def make_branch(self, spec: TableSpec, name: str, snapshot_id: int, kept_ms: int) -> None:
        """Make a branch, for ``kept_ms``, on a snapshot; no row and no other ref changes.

        Raises ``ConfigurationError`` for a name that is taken, and ``Unreachable`` if it is not
        known whether it was made.
        """


@dataclass(frozen=True, slots=True)
class MatchingCount:
    """Counts how many rows a predicate matches, in how many files."""

    rows: int
    files: int


class PredicateDeletion(Protocol):
    """Deletes the rows of one table that match a predicate (COMPACTION-1)."""

    @property
    def deleted_count(self) -> MatchingCount:
        """Return what it has deleted."""

    def require_deletable(self) -> None:
        """Raise ``DeletionRefused`` for a table whose rows must not be deleted this way."""

    def count_matching(self) -> MatchingCount:
        """Return what it would delete now. Raises ``DeletionRefused``, ``PredicateUnfit``."""

    def delete_and_return_doubt(self, wait_for_quiet: Callable[[], None]) -> str:
        """Delete what matches; return a reason if that is not certain, else an empty text.

        ``wait_for_quiet`` returns when the sink commits nothing. Raises as ``count_matching``.
        """


@runtime_checkable
class SupportsRowDeletion(Protocol):
    """Describes a format from whose tables people delete rows by a predicate."""

    def row_deletion(
        self,
        spec: TableSpec,
        sink: SinkName,
        predicate: str,
        *,
        asked_by: str,
        coordinate_columns: tuple[str, str, str] | None,
    ) -> PredicateDeletion:
        """Return the deletion of the rows that match.

        ``coordinate_columns`` say of which record a row is. Raises ``PredicateUnfit`` for no
        predicate.
        """


@runtime_checkable
class SupportsDeadLetters(Protocol):
    """Describes a format whose quarantine can tell which of its rows were not sent on yet."""

    def unsent_dead_letters(self, spec: TableSpec, sink: SinkName) -> Any:
        """Return the rows to send to the dead-letter topic."""


@runtime_checkable
class SupportsStaging(Protocol):
    """Describes a secondary table that stages files by itself; headgate keeps lists of files for
    others.
    """

    def stage(self, staging: Staging) -> tuple[PendingCommit, ...]: ...

    def delete_undecided_manifests(
        self, before_epoch: Epoch, pending_manifests: frozenset[str]
    ) -> None: ...

    def delete_delivered_key_files(self, delivered_commits: Sequence[PendingCommit]) -> None: ...


@runtime_checkable
class SupportsFencedConnector(Protocol):
    """Describes a reader of tables that a connector of Kafka Connect may have filled before the
    sink.
    """

    def fenced_connector(self) -> FencedConnector | None:
        """Return the connector that the newest takeover keeps away, while it does (TAKEOVER-14)."""


@runtime_checkable
class SupportsStagedRows(Protocol):
    """Describes a reader that reads staged files, and tells the sink's tables from others' by their
    tag.
    """

    @property
    def has_sink_tag(self) -> bool:
        """Return whether the table carries the sink's tag."""

    @property
    def uuid(self) -> str: ...

    @property
    def schema_id(self) -> int: ...

    def staged_rows(self, manifest: str, columns: Sequence[str]) -> Iterator[FileRows]:
        """Read a staged manifest. Raises ``FileNotFoundError``."""


class LoadedReader(SupportsStagedRows, TableReader, Protocol):
    """Reads a table that the format's own library has loaded."""

    @property
    def table(self) -> Any:
        """Return that library's table, for what works on it, such as writers of files."""


class Anywhere(Enum):
    """Stands for all offsets, where none bounds them."""

    ANYWHERE = auto()


@runtime_checkable
class SupportsKeyedAudit(LoadedReader, Protocol):
    """Describes a reader that tells what the commits to a keyed table removed (rules KEY-1,
    KEY-10).
    """

    def removed_row_count_of_commit(self, commit: SinkCommit) -> int | None:
        """Return how many rows the commit removed; ``None``: no longer known."""

    def columns_added_after_creation(self) -> frozenset[str]:
        """Return columns that some of the table's schemas lack: older rows have no value in
        them."""

    def end_offsets_of_former_on_delete(self) -> Offsets | Anywhere:
        """Return below which offsets deletes may have marked rows, or removed them, unlike those
        that come now (KEY-13)."""

    def missing_staged_files(self, manifest: str) -> list[str]:
        """Return the files of a staged manifest, with rows or with keys, that are gone.

        Raises ``FileNotFoundError`` for the manifest.
        """

    def open_reader_as_of_now(self) -> SupportsKeyedAudit:
        """Return a reader of the table as it is now."""


@runtime_checkable
class SupportsReplay(Protocol):
    """Describes a format to whose tables people give rows back, which expired or were put aside
    (rule SUSPEND-6).
    """

    def open_committable_reader(self, spec: TableSpec, sink: SinkName) -> LoadedReader:
        """Open the table as a commit to it does. Raises as ``SinkTable.read``."""


@runtime_checkable
class SupportsColumnCheck(Protocol):
    """Describes a table that checks its columns again when a commit meets others than the last one
    did.
    """

    def set_column_check(self, require_columns_fit: Callable[[Any], None]) -> None:
        """Call ``require_columns_fit`` with the columns, as an Iceberg schema, before a commit.

        It raises what a start would raise.
        """
