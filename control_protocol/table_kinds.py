"""Defines the port for kinds of tables: what they receive, guarantee, and are capable of.

A kind provides its commits (``ports.SinkTable``), the columns with which participants write Parquet
files (``Layout``), and its history (``TableReader``). The protocol, the writers, and all commands
that operate a sink belong to headgate. A package registers a kind with an entry point in the group
``headgate.tables``; ``docs/writing-a-table.md`` develops one.
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
    """A record may be written again, and then overwrites itself."""

    AT_LEAST_ONCE = "at least once"


class Capability(StrEnum):
    """What only some kinds of tables support; a setting that needs one is refused without it.

    The port supports each of these. Only Iceberg supports what has no capability here: maintenance,
    rollback, sort orders, several tables in one commit (decision 0018).
    """

    BRANCHES = "branches"
    """``open``, ``layout``, ``reader`` and ``ensure`` use ``WantedTable.branch``."""

    EVOLUTION = "new columns"
    """``evolve`` adds columns that records need (rules S3, S5); the table is a ``ports.Lead``."""

    FOLLOWERS = "quarantine"
    """``open`` returns a ``FollowingTable``, which is paid what another table has decided."""

    KEYS = "rows by key"
    """A commit takes key files beside row files (rules U1 to U4, U8 to U10)."""

    KEYED_TABLES = "rows by key of many tables"
    """``open`` returns a table that also takes key files if it is a follower with a key; for a kind
    with ``KEYS`` and ``MANY_TABLES``."""

    MANY_TABLES = "many tables"
    """The kind is a ``ListingKind``, its tables can be followers (``FOLLOWERS``), and one may be a
    ledger: views have ``filled``, and commits apply ``forgets`` (rule N5)."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What a kind's tables guarantee, and their capabilities beyond appending."""

    guarantee: Guarantee
    capabilities: frozenset[Capability]


@dataclass(frozen=True, slots=True)
class RowKey:
    """The columns of a table's key, and those that identify a row's record (rule U2)."""

    key: tuple[str, ...]
    partition: str
    offset: str
    topic: str = ""


@dataclass(frozen=True, slots=True)
class WantedTable:
    """A table of a sink file, in values that are independent of table formats.

    ``storage`` holds the keys of [catalog.properties], including secrets. ``columns`` are those
    that the file declares; ``create``: whether a missing table is created from them. Even an idle
    sink commits at least once in ``renewed_ms`` (0: perhaps never). ``by_spark``: whether
    Spark jobs write its files. ``key``: the columns that identify a row, for a kind with
    ``Capability.KEYS``. ``lead``: for a quarantine, the [table.properties] of the table whose
    commits decide its rows; for each of many tables, the ``tables.create.properties``.
    ``ledger``: it is the one of these that decides, and has no rows. ``branch``: differs from
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
    """Adds columns to the files of a stamping table, and names them (rule P13); can be pickled."""

    @property
    def columns(self) -> Sequence[Any]:
        """Return the columns that a file has after the table's own, as Arrow fields."""

    def path(self, stamp: str, partition: Sequence[Any]) -> str:
        """Return the path of a new file with this stamp and these values of ``partition_by``.

        Raises ``ValueError`` if it is not a stamp of this table.
        """

    def announced(self, path: str) -> Mapping[str, bytes]:
        """Return what has to be written before the file: contents by path."""

    def dressed(self, rows: Any, path: str, begin: int) -> Any:
        """Return the Arrow table with ``columns`` appended; the file already has ``begin`` rows."""


class HeldValues(Protocol):
    """Finds values that a table cannot hold, although their type fits; can be pickled."""

    def unfit(self, rows: Any) -> Mapping[int, str]:
        """Return why the table cannot hold some rows of an Arrow batch: their records are bad."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How participants write files of a table.

    ``layout_id`` differs for different columns or partitionings; it is ``schema_id`` in the table's
    view. ``partition_by`` names columns: all rows of a file have the same values in them, and the
    file contains these columns too. Files go below ``location``/data, unless ``dressing`` names
    paths. ``values`` finds bad records whose values have the columns' types. ``tamed``, for a
    quarantine, which takes every record, returns an Arrow batch with something legible in place of
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
    whatever their offsets, since the offsets of a re-created topic start at 0 again (U3)."""
    numbers = attempt.transactions or (0,) * len(attempt.files)
    return tuple(zip(attempt.files, numbers, strict=True))


class FollowingTable(SinkTable, Protocol):
    """A table that can be a quarantine, of a kind with ``Capability.FOLLOWERS``.

    Another table's commit decides its rows; a later commit of its own adds them, perhaps by another
    process. That is all it needs: headgate keeps track of what is decided and not yet paid.
    """

    def refuse_files(self, files: Sequence[WrittenFile]) -> None:
        """Raise ``StopSink`` for files that the table in its current state could not take.

        Called before their rows are decided, because afterwards nobody writes them again.
        """


class TableKind(Protocol):
    """One kind of table. It keeps no state: every process creates its own instance."""

    @property
    def guarantee(self) -> Guarantee: ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    def refuse(self, wanted: WantedTable) -> None:
        """Raise ``ConfigurationError`` for a table that this kind does not support; no I/O."""

    def ensure(self, wanted: WantedTable) -> None:
        """Create the table if it is missing and ``create`` allows it.

        Several processes may do so at once. Raises ``TableMissing``, ``Unreachable``; and
        ``TableUnfit`` for a table that the sink could not fill.
        """

    def open(self, wanted: WantedTable, sink: SinkName) -> SinkTable:
        """Open the table for the coordinator: one thread uses it.

        A table whose files are marked with their commit is a ``stamps.StampingTable``.
        """

    def layout(self, wanted: WantedTable) -> Layout:
        """Return the table as it is now, for participants. Raises as ``SinkTable.read``."""

    def reader(self, wanted: WantedTable, sink: SinkName) -> TableReader:
        """Open the table for audit, status and check. Raises as ``SinkTable.read``."""


@runtime_checkable
class LockedKind(Protocol):
    """A kind whose commits need an external lock; ``headgate check`` tests whether it answers."""

    def reach_lock(self, wanted: WantedTable) -> str:
        """Reach the lock without taking it; return where it is. Raises ``Unreachable``."""


@runtime_checkable
class SparkKind(Protocol):
    """A kind that commits through Spark, in this process's only JVM.

    If Spark jobs write the files as well, one session does both.
    """

    def spark_conf(self, wanted: WantedTable) -> Mapping[str, str]:
        """Return the configuration that the session has to be started with, whatever its master."""


class ListingKind(TableKind, Protocol):
    """A kind with ``Capability.MANY_TABLES``."""

    def names(self, like: WantedTable) -> Collection[str]:
        """Return the last part of the name of each possible table beside this one.

        They are in its namespace, at locations that differ in the last part; not all of them need
        to be tables. Raises ``Unreachable``.
        """
