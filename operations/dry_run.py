"""Dry-runs a sink: real records through its real writer, into tables that are thrown away.

The tables are created in a separate catalog in a temporary folder, like the real ones or as those
would be created (``dry_run_tables``). No group is joined, and nothing is created, committed or
written elsewhere. Spark starts only for a transform, and on this machine, wherever the sink's own
would run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import EMPTY_DICT

from headgate.config.catalog_settings import Backend
from headgate.config.sections import WriterKind
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import declaration_if_created, quarantine_declaration
from headgate.control_protocol.commit_record_codec import filled_tables
from headgate.control_protocol.errors import TableMissing, WriteFailed
from headgate.control_protocol.events import FileKind, TableStart, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import (
    Batch,
    BatchFailed,
    BatchNeeds,
    BatchWritten,
    PartitionResult,
)
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.control_protocol.table_format import Use
from headgate.data_plane.quarantine.rejected_records import ROUTE, TABLE, TOMBSTONE
from headgate.operations.access.kafka_connection import open_source_topics
from headgate.operations.access.open_secondary_tables import with_schema_changes
from headgate.runtime.assembly import batch_writer
from headgate.runtime.sink_tables import SinkTables, open_tables_read_only
from headgate.runtime.start_checks import require_fillable_table
from headgate.runtime.table_creation import TableMaker
from headgate.tables.iceberg.catalog import with_version_3_writes
from headgate.tables.iceberg.table_creation import ensure_namespaces, ensure_table
from headgate.tables.iceberg.unfilled_table import complete_table, completed_schema

# Provides a dry run's catalog: empty copies of the real tables, in a temporary folder.
#
# A table is copied when it is first loaded. What the sink would create is created here instead.


_NOT_HERE = (
    *("write.data.path", "write.metadata.path", "write.object-storage.", "write.location-"),
    "write.format.default",
)
"""Properties that would place files outside the temporary folder, or make them unreadable here."""


class DryRunCatalog(NoopCatalog, MetastoreCatalog):
    """Holds tables in a folder, and their names in memory; what a dry run never asks is refused.

    ``copied``: the names of tables that the real catalog has. ``real`` is only read.
    """

    def __init__(self, folder: Path, real: Catalog | None) -> None:
        super().__init__("dry-run")
        with_version_3_writes(self)
        self._folder = folder
        self._namespaces: set[tuple[str, ...]] = set()
        self._locations: dict[tuple[str, ...], str] = {}
        """Of each table's newest metadata."""
        self._real = real
        self.copied: set[str] = set()

    def create_namespace(self, namespace: Any, properties: Any = EMPTY_DICT) -> None:
        del properties
        self._namespaces.add(self.identifier_to_tuple(namespace))

    def namespace_exists(self, namespace: Any) -> bool:
        return self.identifier_to_tuple(namespace) in self._namespaces

    def list_tables(self, namespace: Any) -> list[Any]:
        levels = self.identifier_to_tuple(namespace)
        found = {name for name in self._locations if name[:-1] == levels}
        known = levels in self._namespaces
        if self._real is not None:
            with suppress(NoSuchNamespaceError):
                found |= {tuple(each) for each in self._real.list_tables(namespace)}
                known = True
        if not known:
            raise NoSuchNamespaceError(f"there is no namespace {namespace}")
        return sorted(found)

    def load_table(self, identifier: Any) -> Table:
        name = self.identifier_to_tuple(identifier)
        if name not in self._locations:
            if self._real is None:
                raise NoSuchTableError(f"there is no table {identifier}")
            self.copy_empty_table(self._real.load_table(identifier), identifier)
        at = self._locations[name]
        metadata = FromInputFile.table_metadata(self._load_file_io(location=at).new_input(at))
        return Table(name, metadata, at, self._load_file_io(metadata.properties, at), self)

    def table_exists(self, identifier: Any) -> bool:
        real = self._real
        here = self.identifier_to_tuple(identifier) in self._locations
        return here or (real is not None and real.table_exists(identifier))

    def create_table(
        self, identifier: Any, schema: Any, location: str | None = None, *more: Any, **named: Any
    ) -> Table:
        """Create the table here, whatever ``location`` says."""
        del location
        given = (
            dict(zip(("partition_spec", "sort_order", "properties"), more, strict=False)) | named
        )
        name = self.identifier_to_tuple(identifier)
        wanted = given.get("properties", {})
        metadata = new_table_metadata(
            location=f"file://{self._folder.joinpath('tables', *name)}",
            schema=schema,
            partition_spec=given.get("partition_spec", UNPARTITIONED_PARTITION_SPEC),
            sort_order=given.get("sort_order", UNSORTED_SORT_ORDER),
            properties={k: text for k, text in wanted.items() if not k.startswith(_NOT_HERE)},
        )
        self._write(name, metadata, 0)
        return self.load_table(identifier)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Apply the updates to the newest metadata. Nobody else commits here."""
        name = table.name()
        staged = self._update_and_stage_table(self.load_table(name), name, requirements, updates)
        at = self._write(name, staged.metadata, self._parse_metadata_version(self._locations[name]))
        return CommitTableResponse(metadata=staged.metadata, metadata_location=at)

    def _write(self, name: tuple[str, ...], metadata: TableMetadata, version: int) -> str:
        provider = load_location_provider(metadata.location, metadata.properties)
        at = provider.new_table_metadata_file_location(version + 1)
        self._write_metadata(metadata, self._load_file_io(location=at), at)
        self._locations[name] = at
        return at

    def copy_empty_table(self, table: Table, identifier: Any) -> None:
        """Create an empty table like this one."""
        name = identifier if isinstance(identifier, str) else ".".join(identifier)
        ensure_namespaces(self, name)
        properties = {**table.properties, "format-version": str(table.format_version)}
        self.create_table(name, table.schema(), None, table.spec(), table.sort_order(), properties)
        self.copied.add(name)


ROWS_SHOWN = 10
BAD_SHOWN = 20
_TURN_MS = 200
_QUARANTINE = "dry_run.quarantine"


@dataclass(frozen=True, slots=True)
class Misfit:
    """A record that would not become a row, and why."""

    at: TopicPartition
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class DryRunTable:
    """What one table would get. ``rows``: the first few of the ``records``; ``deletes``: of rows.

    ``exists``: whether the table exists; otherwise its declaration was used.
    """

    table: str
    exists: bool
    records: int = 0
    files: int = 0
    file_bytes: int = 0
    rows: tuple[Mapping[str, Any], ...] = ()
    deletes: int = 0


@dataclass(frozen=True, slots=True)
class DryRun:
    """What the records would become. ``misfits`` are the first few that would not become rows.

    For a sink with ``many`` tables: ``unmatched``, how many would go to none; ``stops``, whether it
    would stop at the first; ``diverted``, how many would go to tables that were filled and are gone
    (LEDGER-2).
    """

    tables: tuple[DryRunTable, ...]
    partitions: Mapping[TopicPartition, PartitionResult]
    misfits: tuple[Misfit, ...]
    many: bool = False
    unmatched: int = 0
    stops: bool = False
    diverted: int = 0
    tombstones: int = 0

    @property
    def bad_record_count(self) -> int:
        return sum(found.bad for found in self.partitions.values())

    @property
    def filtered_record_count(self) -> int:
        return sum(found.filtered for found in self.partitions.values())

    @property
    def needs_attention(self) -> bool:
        """Return whether something must be done before the sink starts."""
        return bool(self.bad_record_count or self.diverted) or (self.stops and bool(self.unmatched))


def try_records(settings: SinkSettings, records: int) -> DryRun:
    """Take the newest ``records`` of every partition through the sink.

    Raises what a start would raise, and the batch's error if it fails for a reason other than its
    records.
    """
    with (
        tempfile.TemporaryDirectory(prefix="headgate-dry-run-") as folder,
        _catalog(settings, Path(folder)) as catalog,
    ):
        batch = _batch(settings, catalog, records)
        written = BatchWritten(batch.number, {}, ())
        if batch.ranges:
            written = _write(_with_all_rejected_kept(settings), catalog, batch)
        primary = settings.table.identifier
        tables = [
            _table(at.table, files, catalog) for at, files in sorted(written.followed.items())
        ]
        return DryRun(
            tables=tuple(tables) if settings.tables else (_table(primary, written.files, catalog),),
            partitions=written.partitions,
            misfits=tuple(map(_misfit_of, _first_rows(written.quarantined, BAD_SHOWN))),
            many=bool(settings.tables),
            unmatched=_count_error_class(written.quarantined, ROUTE),
            diverted=_count_error_class(written.quarantined, TABLE),
            tombstones=_count_error_class(written.quarantined, TOMBSTONE),
            stops=bool(settings.tables) and settings.tables.unmatched is Disposal.FAIL,
        )


def _table(name: str, written: Sequence[WrittenFile], catalog: DryRunCatalog) -> DryRunTable:
    files = [file for file in written if file.kind is FileKind.ROWS]
    return DryRunTable(
        name,
        name in catalog.copied,
        sum(file.records for file in files),
        len(files),
        sum(file.size_bytes for file in files),
        tuple(_first_rows(files, ROWS_SHOWN)),
        sum(file.records for file in written if file.kind is FileKind.KEYS),
    )


def _count_error_class(quarantined: Iterable[WrittenFile], error_class: str) -> int:
    columns = (
        pq.read_table(_local_path(file), columns=["error_class"])["error_class"]
        for file in quarantined
    )
    return sum(column.to_pylist().count(error_class) for column in columns)


def _with_all_rejected_kept(settings: SinkSettings) -> SinkSettings:
    """Keep and show every bad record, whatever the sink would do with it."""
    keyed = bool(settings.table.key)  # there, tombstones are changes
    quarantine = replace(
        settings.quarantine,
        policy=Disposal.QUARANTINE,
        tombstones=settings.quarantine.tombstones if keyed else Disposal.QUARANTINE,
        per_thousand_max=1_000,
        records_max=0,
        table=_QUARANTINE,
        dead_letter_topic="",
    )
    # A catalog in Java needs the JVM that Spark has.
    needs_spark = settings.transform or settings.catalog.backend is Backend.JAVA
    writer = settings.spark.writer if needs_spark else WriterKind.IN_PROCESS
    spark = replace(settings.spark, writer=writer, master="local[*]", remote="")
    tables = replace(settings.tables, unmatched=Disposal.QUARANTINE, atomic=False)
    return replace(settings, quarantine=quarantine, spark=spark, tables=tables)


@contextmanager
def _catalog(settings: SinkSettings, folder: Path) -> Iterator[DryRunCatalog]:
    """Yield a catalog with the primary table and the quarantine. Raises as a start does."""
    with ExitStack() as stack:
        real: Catalog | None = None
        with suppress(TableMissing):  # the catalog has no database yet
            real = stack.enter_context(open_tables_read_only(settings)).supports_catalog().catalog
        catalog = DryRunCatalog(folder, real)
        stack.callback(catalog.close)
        if real is not None and real.table_exists(settings.table.identifier):
            found = real.load_table(settings.table.identifier)
            schema = completed_schema(found, declaration_if_created(settings.table))
            require_fillable_table(found, settings, schema)
        ensure_table(catalog, settings.table.identifier, declaration_if_created(settings.table))
        complete_table(catalog, settings.table.identifier, declaration_if_created(settings.table))
        ensure_table(catalog, _QUARANTINE, quarantine_declaration())
        yield catalog


def _batch(settings: SinkSettings, catalog: Catalog, records: int) -> Batch:
    with open_source_topics(settings) as topics:
        described = topics.describe()
    if settings.tables:
        _build_table_maker(settings, catalog).create_named_tables(described)
    ranges = {
        TopicPartition(topic, number): OffsetRange(max(log.begin, log.end - records), log.end)
        for topic, state in sorted(described.items())
        for number, log in sorted(state.partitions.items())
        if not log.is_empty
    }
    return Batch(
        number=1,
        transaction=TransactionId(Epoch(1), TransactionNumber(1)),
        table=_build_table_start(catalog, settings.table.identifier),
        ranges=ranges,
        target_file_bytes=settings.coordinator.target_file_bytes,
        topic_ids={topic: state.topic_id for topic, state in described.items()},
        quarantine=_build_table_start(catalog, _QUARANTINE),
        folder="dry-run" if settings.tables else "",
    )


def _build_table_maker(settings: SinkSettings, catalog: Catalog) -> TableMaker:
    """Return a coordinator's maker, which does not replace what the ledger has filled
    (LEDGER-2)."""
    ledger = catalog.load_table(settings.tables.ledger)
    tables = replace(settings.tables, new_per_minute_max=settings.tables.max)  # nobody waits here
    settings = replace(settings, tables=tables)
    made = SinkTables.in_catalog(settings, catalog)
    return TableMaker(
        settings, made, filled=lambda: filled_tables(settings.name, ledger.properties)
    )


def _build_table_start(catalog: Catalog, identifier: str) -> TableStart:
    table = catalog.load_table(identifier)
    return TableStart(
        table=identifier,
        uuid=str(table.metadata.table_uuid),
        schema_id=table.schema().schema_id,
        spec_id=table.spec().spec_id,
        file_prefix=f"{table.location()}/data/dry-run",
    )


def _write(settings: SinkSettings, catalog: Catalog, batch: Batch) -> BatchWritten:
    with batch_writer(settings, SinkTables.in_catalog(settings, catalog).planning()) as writer:
        writer.submit(batch)
        outcome = None
        while outcome is None:
            outcome = writer.outcome(_TURN_MS)
    if isinstance(outcome, BatchFailed):
        raise outcome.fatal or WriteFailed(outcome.reason)
    if isinstance(outcome, BatchNeeds) and settings.tables:
        maker = _build_table_maker(settings, catalog)
        changed = with_schema_changes(settings, catalog, batch, outcome, maker=maker)
        return _write(settings, catalog, changed)
    if isinstance(outcome, BatchNeeds):
        copied = SinkTables.in_catalog(settings, catalog).open_primary(Use.SECONDARY)
        copied.evolve(copied.read(), outcome.columns)
        table = _build_table_start(catalog, settings.table.identifier)
        return _write(settings, catalog, replace(batch, table=table))
    return outcome


def _first_rows(files: Iterable[WrittenFile], count: int) -> Iterator[Mapping[str, Any]]:
    for file in files:
        with pq.ParquetFile(_local_path(file)) as parquet:
            for rows in parquet.iter_batches(batch_size=count):
                for row in rows.slice(0, count).to_pylist():
                    yield row
                    count -= 1
                if count <= 0:
                    return


def _local_path(file: WrittenFile) -> str:
    return file.path.removeprefix("file://")


def _misfit_of(row: Mapping[str, Any]) -> Misfit:
    at = TopicPartition(row["topic"], row["partition"])
    return Misfit(at, row["offset"], f"{row['error_class']}: {row['message']}")
