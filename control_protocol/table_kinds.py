"""The port by which a kind of table joins: its inputs, its promises, its capabilities.

A kind brings its commits (``ports.SinkTable``), the columns by which participants write Parquet
files (``Layout``), and its history (``TableReader``). The protocol, the writers, and all commands
that operate a sink are headgate's. A package registers one by an entry point of the group
``headgate.tables``; ``docs/writing-a-table.md`` writes one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, SinkTable
from headgate.control_protocol.table_history import ONLY_BRANCH, TableReader


class Guarantee(StrEnum):
    """How often a record of the source is in the table, whatever fails."""

    EXACTLY_ONCE = "exactly once"
    IDEMPOTENT = "exactly once by key"
    """A record may be written again, over itself."""

    AT_LEAST_ONCE = "at least once"


class Capability(StrEnum):
    """What only some kinds of tables can do; a setting that needs one is refused without it.

    The port carries each of these. What has no capability here, only Iceberg does: maintenance,
    rollback, sort orders, several tables in one commit (decision 0018).
    """

    BRANCHES = "branches"
    """``open``, ``layout``, ``reader`` and ``ensure`` heed ``WantedTable.branch``."""

    EVOLUTION = "new columns"
    """``evolve`` adds what records need (rules S3, S5); the table is a ``ports.Lead``."""

    FOLLOWERS = "quarantine"
    """``open`` returns a ``FollowingTable``, which may be paid for what another table decides."""

    KEYS = "rows by key"
    """A commit takes key files beside row files (rules U1 to U4, U8 to U10)."""

    KEYED_TABLES = "rows by key of many tables"
    """``open`` returns a table that takes key files too where it follows and has a key; for a kind
    with ``KEYS`` and ``MANY_TABLES``."""

    MANY_TABLES = "many tables"
    """The kind is a ``ListingKind``, its tables follow (``FOLLOWERS``), and one of them may be a
    ledger: views have ``filled``, and commits heed ``forgets`` (rule N5)."""


@dataclass(frozen=True, slots=True)
class Traits:
    """The promises of a kind's tables, and their capabilities beyond appending."""

    guarantee: Guarantee
    capabilities: frozenset[Capability]


@dataclass(frozen=True, slots=True)
class RowKey:
    """The columns of a table's key, and those that say which record a row is of (rule U2)."""

    key: tuple[str, ...]
    partition: str
    offset: str
    topic: str = ""


@dataclass(frozen=True, slots=True)
class WantedTable:
    """A sink file's table, with values of no table format.

    ``storage`` holds the keys of [catalog.properties], secrets among them. ``columns`` are those
    that the file declares; ``create``: whether a missing table is made of them. An idle sink
    commits at least once in ``renewed_ms`` all the same (0: perhaps never). ``by_spark``: whether
    Spark jobs write its files. ``key``: the columns that identify a row, for a kind with
    ``Capability.KEYS``. ``lead``: of a quarantine the [table.properties] of the table whose commits
    decide its rows; where a sink has many tables, of each the ``tables.create.properties``.
    ``ledger``: it is the one of these that decides, and has no rows. ``branch``: another than
    ``ONLY_BRANCH`` only for a kind with ``Capability.BRANCHES``.
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
    lead: Mapping[str, str] | None = None
    ledger: bool = False
    branch: str = ONLY_BRANCH


class Dressing(Protocol):
    """Extra columns and names of the files of a stamping table (rule P13); it can be pickled."""

    @property
    def columns(self) -> Sequence[Any]:
        """Return the columns that a file has behind the table's, as Arrow fields."""

    def path(self, stamp: str, partition: Sequence[Any]) -> str:
        """Return where a new file of the stamp goes, with these values of ``partition_by``.

        Raises ``ValueError`` if it is not a stamp of this table.
        """

    def announced(self, path: str) -> Mapping[str, bytes]:
        """Return what has to be written before the file, by its path."""

    def dressed(self, rows: Any, path: str, begin: int) -> Any:
        """Return the Arrow table with ``columns`` behind its own; the file has ``begin`` rows."""


class HeldValues(Protocol):
    """Checks values where a table does not hold all of its columns' types; it can be pickled."""

    def unfit(self, rows: Any) -> Mapping[int, str]:
        """Return, by row of an Arrow batch, why the table cannot hold it: such records are bad."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How participants write files of a table.

    ``layout_id`` is another number for other columns or another partitioning; the table's view
    has it as ``schema_id``. ``partition_by`` names columns: all rows of a file share their values,
    which the file holds as well. Files go below ``location``/data, unless ``dressing`` says where.
    ``values``: which records are bad, though their values have the columns' types. ``tamed``, of a
    quarantine, which takes every record: gives an Arrow batch with something legible in place of
    what the table cannot hold; it can be pickled. ``properties``: those of ``WantedTable`` that the
    table keeps.
    """

    uuid: str
    layout_id: int
    columns: Struct
    location: str
    partition_by: tuple[str, ...] = ()
    storage: Mapping[str, str] = field(default_factory=dict)
    dressing: Dressing | None = None
    values: HeldValues | None = None
    tamed: Callable[[Any], Any] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def layout_number(text: str) -> int:
    """Return a ``layout_id`` for a text that describes columns and partitioning."""
    return zlib.crc32(text.encode()) & 0x7FFFFFFF


NumberedFile = tuple[WrittenFile, int]


def numbered(attempt: CommitAttempt) -> tuple[NumberedFile, ...]:
    """Return each file with a number that is higher for a later transaction: its records are newer
    whatever their offsets, for a topic that was re-created begins at 0 again (U3)."""
    numbers = attempt.transactions or (0,) * len(attempt.files)
    return tuple(zip(attempt.files, numbers, strict=True))


class FollowingTable(SinkTable, Protocol):
    """A table that can be a quarantine, of a kind with ``Capability.FOLLOWERS``.

    Its rows are decided by another table's commit, and come with a later one of its own, perhaps by
    another process. That is all it needs: what is decided and not paid yet is headgate's business.
    """

    def refuse_files(self, files: Sequence[WrittenFile]) -> None:
        """Raise ``StopSink`` for files that the table as it is now could not be given.

        Called before their rows are decided, for afterwards nobody writes them again.
        """


class TableKind(Protocol):
    """One kind of table. It keeps no state: every process makes its own."""

    @property
    def guarantee(self) -> Guarantee: ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    def refuse(self, wanted: WantedTable) -> None:
        """Raise ``ConfigurationError`` for a table that this kind cannot be; makes no call."""

    def ensure(self, wanted: WantedTable) -> None:
        """Make the table if it is missing and may be made.

        Several processes may do so at once. Raises ``TableMissing``, ``Unreachable``; and
        ``TableUnfit`` for a table that the sink could not fill.
        """

    def open(self, wanted: WantedTable, sink: SinkName) -> SinkTable:
        """Open the table for the coordinator: one thread uses it.

        A table whose files bear the mark of their commit is a ``stamps.StampingTable``.
        """

    def layout(self, wanted: WantedTable) -> Layout:
        """Return the table as it is now, for participants. Raises as ``SinkTable.read``."""

    def reader(self, wanted: WantedTable, sink: SinkName) -> TableReader:
        """Open the table for audit, status and check. Raises as ``SinkTable.read``."""


@runtime_checkable
class LockedKind(Protocol):
    """A kind whose commits need a lock that lies elsewhere; ``headgate check`` asks for it."""

    def reach_lock(self, wanted: WantedTable) -> str:
        """Say where the lock is, having reached it without taking it. Raises ``Unreachable``."""


@runtime_checkable
class SparkKind(Protocol):
    """A kind that commits through Spark, in this process's only JVM.

    If Spark jobs write the files as well, one session does both.
    """

    def spark_conf(self, wanted: WantedTable) -> Mapping[str, str]:
        """Return what the session has to be started with, whatever its master."""


class ListingKind(TableKind, Protocol):
    """A kind with ``Capability.MANY_TABLES``."""

    def names(self, like: WantedTable) -> Collection[str]:
        """Return the last part of the name of each table that may be beside this one.

        They are in its namespace, at locations that differ in the last part; not all need be
        tables. Raises ``Unreachable``.
        """
