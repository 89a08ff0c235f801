"""Rehearse a sink: real records through its real writer, into tables that nobody keeps.

The tables are made in a catalog of their own in a temporary folder, as the real ones are or would
be. No group is joined, nothing is created, committed or written elsewhere. Spark is started only
for a transform, and on this machine, wherever the sink's own would run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from headgate.control_protocol.bad_records import Disposal
from headgate.control_protocol.errors import TableMissing, TablesUnfit, WriteFailed
from headgate.control_protocol.events import DataFile, TableStart
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
from headgate.operations.kafka_access import source_topics
from headgate.operations.table_access import opened_table
from headgate.sink.assembly import batch_writer
from headgate.sink.declaration import declared, quarantine_declaration
from headgate.sink.followers import iceberg_table
from headgate.sink.preconditions import refuse_table
from headgate.sink.settings import SinkSettings, WriterKind
from headgate.tables.iceberg.creation import ensure_namespaces, ensure_table

ROWS_SHOWN = 10
BAD_SHOWN = 20
_TURN_MS = 200
_QUARANTINE = "rehearsal.quarantine"
_NOT_HERE = (
    *("write.data.path", "write.metadata.path", "write.object-storage.", "write.location-"),
    "write.format.default",
)
"""Properties that would lead files out of the temporary folder, or make them unlike what is read
here."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """A record that would become no row, and why."""

    at: TopicPartition
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What the records would become. ``rows`` and ``misfits`` are the first few of them.

    ``exists``: whether the table is there already; otherwise its declaration was followed.
    """

    table: str
    exists: bool
    partitions: Mapping[TopicPartition, PartitionResult]
    files: int
    file_bytes: int
    rows: tuple[Mapping[str, Any], ...]
    misfits: tuple[Misfit, ...]

    @property
    def bad(self) -> int:
        return sum(found.bad for found in self.partitions.values())


def rehearse(settings: SinkSettings, records: int) -> Rehearsal:
    """Take the newest ``records`` of every partition through the sink.

    Raises what a start would raise, and the batch's error when it fails for another reason than its
    records. Raises ``TablesUnfit`` for a sink of many tables.
    """
    if settings.tables:
        raise TablesUnfit(
            "a dry run shows the rows of one table, and [tables] is for many",
            "headgate check shows the routes and which topics they take",
        )
    with (
        tempfile.TemporaryDirectory(prefix="headgate-rehearsal-") as folder,
        _tables(settings, Path(folder)) as (catalog, exists),
    ):
        batch = _batch(settings, catalog, records)
        if not batch.ranges:
            return Rehearsal(settings.table.identifier, exists, {}, 0, 0, (), ())
        written = _written(_tolerant(settings), catalog, batch)
        return Rehearsal(
            table=settings.table.identifier,
            exists=exists,
            partitions=written.partitions,
            files=len(written.files),
            file_bytes=sum(file.file_size_bytes for file in written.files),
            rows=tuple(_first_rows(written.files, ROWS_SHOWN)),
            misfits=tuple(map(_misfit, _first_rows(written.quarantined, BAD_SHOWN))),
        )


def _tolerant(settings: SinkSettings) -> SinkSettings:
    """Every bad record is kept and shown, whatever the sink would do with it."""
    aside = replace(
        settings.quarantine,
        policy=Disposal.QUARANTINE,
        tombstones=Disposal.QUARANTINE,
        per_thousand_max=1_000,
        records_max=0,
        table=_QUARANTINE,
    )
    writer = settings.spark.writer if settings.transform else WriterKind.IN_PROCESS
    spark = replace(settings.spark, writer=writer, master="local[*]", remote="")
    return replace(settings, quarantine=aside, spark=spark)


@contextmanager
def _tables(settings: SinkSettings, folder: Path) -> Iterator[tuple[Catalog, bool]]:
    properties = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/tables"}
    catalog = SqlCatalog("rehearsal", **properties)
    try:
        exists = True
        try:
            with opened_table(settings) as table:
                refuse_table(table, settings)
                _copy(catalog, settings.table.identifier, table)
        except TableMissing:
            if not settings.table.create:
                raise
            exists = False
            wanted = declared(settings.table)
            wanted = replace(wanted, location=None, properties=_here(wanted.properties))
            ensure_table(catalog, settings.table.identifier, wanted)
        ensure_table(catalog, _QUARANTINE, quarantine_declaration())
        yield catalog, exists
    finally:
        catalog.close()


def _copy(catalog: Catalog, identifier: str, table: Table) -> None:
    ensure_namespaces(catalog, identifier)
    catalog.create_table(
        identifier,
        table.schema(),
        partition_spec=table.spec(),
        sort_order=table.sort_order(),
        properties={**_here(table.properties), "format-version": str(table.format_version)},
    )


def _here(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in properties.items() if not key.startswith(_NOT_HERE)}


def _batch(settings: SinkSettings, catalog: Catalog, records: int) -> Batch:
    with source_topics(settings) as topics:
        described = topics.describe()
    ranges = {
        TopicPartition(topic, number): OffsetRange(max(log.begin, log.end - records), log.end)
        for topic, state in sorted(described.items())
        for number, log in sorted(state.partitions.items())
        if not log.empty
    }
    return Batch(
        number=1,
        transaction=TransactionId(Epoch(1), TransactionNumber(1)),
        table=_start(catalog, settings.table.identifier),
        ranges=ranges,
        target_file_bytes=settings.coordinator.target_file_bytes,
        topic_ids={topic: state.topic_id for topic, state in described.items()},
        quarantine=_start(catalog, _QUARANTINE),
    )


def _start(catalog: Catalog, identifier: str) -> TableStart:
    table = catalog.load_table(identifier)
    return TableStart(
        table=identifier,
        uuid=str(table.metadata.table_uuid),
        schema_id=table.schema().schema_id,
        spec_id=table.spec().spec_id,
        file_prefix=f"{table.location()}/data/rehearsal",
    )


def _written(settings: SinkSettings, catalog: Catalog, batch: Batch) -> BatchWritten:
    with batch_writer(settings, catalog) as writer:
        writer.submit(batch)
        outcome = None
        while outcome is None:
            outcome = writer.outcome(_TURN_MS)
    if isinstance(outcome, BatchFailed):
        raise outcome.fatal or WriteFailed(outcome.reason)
    if isinstance(outcome, BatchNeeds):
        copied = iceberg_table(settings, catalog, settings.table.identifier)
        copied.evolve(copied.read(), outcome.columns)
        table = _start(catalog, settings.table.identifier)
        return _written(settings, catalog, replace(batch, table=table))
    return outcome


def _first_rows(files: Iterable[DataFile], count: int) -> Iterator[Mapping[str, Any]]:
    for file in files:
        with pq.ParquetFile(file.path.removeprefix("file://")) as parquet:
            for rows in parquet.iter_batches(batch_size=count):
                for row in rows.slice(0, count).to_pylist():
                    yield row
                    count -= 1
                if count <= 0:
                    return


def _misfit(row: Mapping[str, Any]) -> Misfit:
    at = TopicPartition(row["topic"], row["partition"])
    return Misfit(at, row["offset"], f"{row['error_class']}: {row['message']}")
