"""Dry-runs a sink: real records through its real writer, into tables that are thrown away.

The tables are created in a separate catalog in a temporary folder, like the real ones or as those
would be created (``SinkTables.for_dry_run``). No group is joined, and nothing is created, committed
or written elsewhere. Spark starts only for a transform of its own, and on this machine, wherever
the sink's own would run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headgate.config.catalog_settings import Backend
from headgate.config.sink_sections import WriterKind
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record_codec import filled_table_uuids
from headgate.control_protocol.errors import WriteFailed
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
from headgate.operations.access.kafka_connection import open_reachable_source_topics
from headgate.operations.access.open_secondary_tables import create_and_change_tables
from headgate.runtime.assembly import open_batch_writer
from headgate.runtime.routed_table_creation import TableMaker
from headgate.runtime.sink_tables import SinkTables

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

    ``tombstones``: how many have no value; ``stops_at_tombstone``: whether the sink would stop at
    the first. For a sink with ``many`` tables: ``unmatched``, how many would go to none;
    ``stops_at_unmatched``, whether it would stop at the first; ``diverted``, how many would go to
    tables that were filled and are gone (LEDGER-2).
    """

    tables: tuple[DryRunTable, ...]
    partitions: Mapping[TopicPartition, PartitionResult]
    misfits: tuple[Misfit, ...]
    many: bool = False
    unmatched: int = 0
    stops_at_unmatched: bool = False
    diverted: int = 0
    tombstones: int = 0
    stops_at_tombstone: bool = False

    @property
    def bad_record_count(self) -> int:
        return sum(result.bad for result in self.partitions.values())

    @property
    def filtered_record_count(self) -> int:
        return sum(found.filtered for found in self.partitions.values())

    @property
    def needs_attention(self) -> bool:
        """Return whether something must be done before the sink starts."""
        return bool(
            self.bad_record_count
            or self.diverted
            or (self.stops_at_unmatched and self.unmatched)
            or (self.stops_at_tombstone and self.tombstones)
        )


def dry_run_newest_records(settings: SinkSettings, newest_per_partition: int) -> DryRun:
    """Take the newest records of every partition through the sink, and write nothing of it.

    Raises what a start would raise, and the batch's error if it fails for a reason other than its
    records.
    """
    with (
        tempfile.TemporaryDirectory(prefix="headgate-dry-run-") as folder,
        ExitStack() as opening,
    ):
        tables, copied = SinkTables.for_dry_run(settings, Path(folder), _QUARANTINE, opening)
        batch = _prepare_batch_of_newest(tables, newest_per_partition)
        written = BatchWritten(batch.number, {}, ())
        if batch.ranges:
            written = _write_batch_evolving_copies(
                tables.with_settings(_settings_for_dry_run(settings)), batch
            )
        filled = [(at.table, files) for at, files in sorted(written.secondary_files.items())]
        if not settings.tables:
            filled = [(tables.name, written.files)]
        return DryRun(
            tables=tuple(
                _build_dry_run_table(name, files, exists=name in copied) for name, files in filled
            ),
            partitions=written.partitions,
            misfits=tuple(map(_misfit_of, _first_rows(written.quarantined, BAD_SHOWN))),
            many=bool(settings.tables),
            unmatched=_count_rows_of_error_class(written.quarantined, ROUTE),
            diverted=_count_rows_of_error_class(written.quarantined, TABLE),
            tombstones=_count_rows_of_error_class(written.quarantined, TOMBSTONE),
            stops_at_unmatched=bool(settings.tables) and settings.tables.unmatched is Disposal.FAIL,
            stops_at_tombstone=not settings.has_keyed_table
            and settings.quarantine.tombstones is Disposal.FAIL,
        )


def _build_dry_run_table(name: str, written: Sequence[WrittenFile], *, exists: bool) -> DryRunTable:
    files = [file for file in written if file.kind is FileKind.ROWS]
    return DryRunTable(
        name,
        exists,
        sum(file.records for file in files),
        len(files),
        sum(file.size_bytes for file in files),
        tuple(_first_rows(files, ROWS_SHOWN)),
        sum(file.records for file in written if file.kind is FileKind.KEYS),
    )


def _count_rows_of_error_class(quarantined: Iterable[WrittenFile], error_class: str) -> int:
    columns = (
        pq.read_table(_local_path(file), columns=["error_class"])["error_class"]
        for file in quarantined
    )
    return sum(column.to_pylist().count(error_class) for column in columns)


def _settings_for_dry_run(settings: SinkSettings) -> SinkSettings:
    """Return the settings of a dry run: every bad record is shown, whatever the sink would do."""
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


def _prepare_batch_of_newest(tables: SinkTables, newest_per_partition: int) -> Batch:
    """Return a batch of the newest records of each partition, once the named tables are there."""
    settings = tables.settings
    with open_reachable_source_topics(settings) as topics:
        described = topics.describe()
    if settings.tables:
        _build_unthrottled_table_maker(tables).try_create_declared_tables(described)
    ranges = {
        TopicPartition(topic, number): OffsetRange(
            max(log.begin, log.end - newest_per_partition), log.end
        )
        for topic, state in sorted(described.items())
        for number, log in sorted(state.partitions.items())
        if not log.is_empty
    }
    return Batch(
        number=1,
        transaction=TransactionId(Epoch(1), TransactionNumber(1)),
        table=_table_start_of_current_schema(tables, tables.name),
        ranges=ranges,
        target_file_bytes=settings.coordinator.target_file_bytes,
        topic_ids={topic: state.topic_id for topic, state in described.items()},
        quarantine=_table_start_of_current_schema(tables, _QUARANTINE),
        folder="dry-run" if settings.tables else "",
    )


def _build_unthrottled_table_maker(tables: SinkTables) -> TableMaker:
    """Return a coordinator's maker, which does not replace what the ledger has filled
    (LEDGER-2)."""
    settings, ledger = tables.settings, tables.require_catalog_format().load_table(tables.name)
    at_once = replace(settings.tables, new_per_minute_max=settings.tables.max)  # nobody waits here
    settings = replace(settings, tables=at_once)
    return TableMaker(
        settings,
        tables.with_settings(settings),
        filled=lambda: filled_table_uuids(settings.name, ledger.properties),
    )


def _table_start_of_current_schema(tables: SinkTables, identifier: str) -> TableStart:
    table = tables.require_catalog_format().load_table(identifier)
    return TableStart(
        table=identifier,
        uuid=str(table.metadata.table_uuid),
        schema_id=table.schema().schema_id,
        spec_id=table.spec().spec_id,
        file_prefix=f"{table.location()}/data/dry-run",
    )


def _write_batch_evolving_copies(tables: SinkTables, batch: Batch) -> BatchWritten:
    """Write the batch, changing the copied tables as it asks. Raises why it failed."""
    with open_batch_writer(tables.settings, tables.build_planning()) as writer:
        writer.submit(batch)
        outcome = None
        while outcome is None:
            outcome = writer.wait_for_outcome(_TURN_MS)
    if isinstance(outcome, BatchFailed):
        raise outcome.fatal or WriteFailed(outcome.reason)
    if isinstance(outcome, BatchNeeds) and tables.settings.tables:
        changed = create_and_change_tables(
            tables, batch, outcome, maker=_build_unthrottled_table_maker(tables)
        )
        return _write_batch_evolving_copies(tables, changed)
    if isinstance(outcome, BatchNeeds):
        copied = tables.open_primary(Use.SECONDARY)
        copied.evolve(copied.read(), outcome.columns)
        return _write_batch_evolving_copies(
            tables, replace(batch, table=_table_start_of_current_schema(tables, tables.name))
        )
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
