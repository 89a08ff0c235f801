"""Defines the port for table formats: what they receive, guarantee, and are capable of.

A format provides its commits (``ports.SinkTable``), the columns with which participants write
Parquet files (``FileSchema``), and its history (``TableReader``). The protocol, the writers, and
all commands that operate a sink belong to headgate. A package registers a format with an entry
point in the group ``headgate.tables``; docs/table-formats/writing-a-table-format.md develops one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import HeadgateError, RetryLater, TableMissing
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
    """What only some formats support; a setting that needs one is refused without it.

    The port supports each of these. Only Iceberg supports what has no capability here: maintenance,
    rollback, sort orders, several tables in one commit (decision 0018).
    """

    BRANCHES = "branches"
    """Every method uses ``TableSpec.branch``."""

    EVOLUTION = "new columns"
    """``evolve`` adds columns that records need (rules S3, S5); the table is a
    ``ports.PrimaryTable``."""

    SECONDARY_TABLES = "quarantine"
    """``open`` returns a ``SupportsDelivery``: it receives what another table has decided."""

    KEYS = "rows by key"
    """A commit takes key files beside row files (rules U1 to U4, U8 to U10)."""

    KEYED_TABLES = "rows by key of many tables"
    """``open`` returns a table that also takes key files if it is a secondary one with a key; for a
    format with ``KEYS`` and ``MANY_TABLES``."""

    MANY_TABLES = "many tables"
    """``names`` lists tables, these can be secondary ones (``SECONDARY_TABLES``), and one may be a
    ledger: views have ``filled``, and commits apply ``forgets`` (rule N5)."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What tables of a format guarantee, and their capabilities beyond appending."""

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
class TableSpec:
    """A table of a sink file, in values that are independent of table formats.

    ``storage`` holds the keys of [catalog.properties], including secrets. ``columns`` are those
    that the file declares; ``create``: whether a missing table is created from them. Even an idle
    sink commits at least once in ``renewed_ms`` (0: perhaps never). ``by_spark``: whether
    Spark jobs write its files. ``key``: the columns that identify a row, for a format with
    ``Capability.KEYS``. ``primary``: for a quarantine, the [table.properties] of the table whose
    commits decide its rows; for each of many tables, the ``tables.create.properties``.
    ``ledger``: it is the one of these that decides, and has no rows. ``branch``: differs from
    ``ONLY_BRANCH`` only for a format with ``Capability.BRANCHES``.
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
class FileSchema:
    """How participants write files of a table.

    ``schema_id`` differs for different columns or partitionings; it is that of the table's view.
    ``partition_by`` names columns: all rows of a file have the same values in them, and the
    file contains these columns too. Files go below ``location``/data, unless ``dressing`` names
    paths. ``values`` finds bad records whose values have the columns' types. ``tamed``, for a
    quarantine, which takes every record, returns an Arrow batch with something legible in place of
    what the table cannot hold; it can be pickled. ``properties``: those of ``TableSpec`` that the
    table keeps.
    """

    uuid: str
    schema_id: int
    columns: Struct
    location: str
    partition_by: tuple[str, ...] = ()
    storage: Mapping[str, str] = field(default_factory=dict)
    dressing: Dressing | None = None
    values: HeldValues | None = None
    tamed: Callable[[Any], Any] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def schema_number(text: str) -> int:
    """Return a ``schema_id`` for a text that describes columns and partitioning."""
    return zlib.crc32(text.encode()) & 0x7FFFFFFF


NumberedFile = tuple[WrittenFile, int]


def numbered(attempt: CommitAttempt) -> tuple[NumberedFile, ...]:
    """Return each file with a number that is higher for a later transaction: its records are newer
    whatever their offsets, since the offsets of a re-created topic start at 0 again (U3)."""
    numbers = attempt.transactions or (0,) * len(attempt.files)
    return tuple(zip(attempt.files, numbers, strict=True))


class SupportsDelivery(SinkTable, Protocol):
    """A table that can be a quarantine, of a format with ``Capability.SECONDARY_TABLES``.

    Another table's commit decides its rows; a later commit of its own adds them, perhaps by another
    process. That is all it needs: headgate keeps track of what is decided and not yet delivered.
    """

    def refuse_files(self, files: Sequence[WrittenFile]) -> None:
        """Raise ``StopSink`` for files that the table in its current state could not take.

        Called before their rows are decided, because afterwards nobody writes them again.
        """


class TableFormat(Protocol):
    """One format of tables. It keeps no state of theirs: every process creates its own instance.

    A class that inherits from it need not define what has a body here.
    """

    @property
    def guarantee(self) -> Guarantee: ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    def refuse(self, spec: TableSpec) -> None:
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

    def names(self, like: TableSpec) -> Collection[str]:
        """Return the last part of the name of each possible table beside this one.

        They are in its namespace, at locations that differ in the last part; not all of them need
        to be tables. Raises ``Unreachable``. Asked only of a format with
        ``Capability.MANY_TABLES``.
        """
        raise NotImplementedError(f"tables beside {like.name} are not listed")

    def open(self, spec: TableSpec, sink: SinkName) -> SinkTable:
        """Open the table for the coordinator: one thread uses it.

        A table whose files are marked with their commit is a ``stamps.StampingTable``.
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
    """A format whose commits need an external lock; ``headgate check`` tests whether it answers."""

    def reach_lock(self, spec: TableSpec) -> str:
        """Reach the lock without taking it; return where it is. Raises ``Unreachable``."""


@runtime_checkable
class SupportsSparkSession(Protocol):
    """A format that commits through Spark, in this process's only JVM.

    If Spark jobs write the files as well, one session does both.
    """

    def spark_conf(self, spec: TableSpec) -> Mapping[str, str]:
        """Return the configuration that the session has to be started with, whatever its master."""
