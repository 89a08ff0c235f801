"""Records that a table of another kind does not hold, though their values have its types."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.events import FileKind, TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchWritten
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.control_protocol.table_format import FileSchema
from headgate.data_plane.batch.file_schema_plans import plan_of_file_schema
from headgate.data_plane.batch.routed_table import RoutedTable
from headgate.data_plane.batch.writer_task_plan import Handling, SourcePlan, quarantine_source_of
from headgate.data_plane.cdc.policy import Changes
from headgate.data_plane.quarantine.rejected_records import RejectedRecords
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.table_outlets import Decoded
from headgate.data_plane.write.write_batch import new_decoder, write_chunks
from headgate.kafka.push_source import Record
from headgate.tables.neutral_schema import parse_declared_columns

COLUMNS = Struct(
    (
        Column("id", "long"),
        Column("name", "string", required=False),
        Column("at_partition", "int", required=False),
        Column("at_offset", "long", required=False),
    )
)
PLACES = {"partition": "at_partition", "offset": "at_offset"}
P0 = TopicPartition("trips", 0)


class NoSevens:
    def find_unsupported_rows(self, rows: pa.RecordBatch) -> Mapping[int, str]:
        sevens = pc.indices_nonzero(pc.fill_null(pc.equal(rows.column("id"), 7), False))
        return dict.fromkeys(sevens.to_pylist(), "id: no seven here")


def written(folder: Path, values: list[bytes | None], changes: Changes | None) -> BatchWritten:
    layout = FileSchema("u1", 5, COLUMNS, folder.as_uri(), values=NoSevens())
    handling = Handling(policy=Disposal.SKIP)
    source = SourcePlan({}, record_columns=PLACES, handling=handling, changes=changes)
    batch = batch_of(TableStart("db.t", "u1", 5, 0, f"{folder.as_uri()}/data/7"), len(values))
    records = [Record("trips", 0, n, 0, value, b"7", []) for n, value in enumerate(values)]
    outcome = write_chunks(
        plan_of_file_schema(layout, "db.t", source), batch, [chunk_of([records])]
    )
    assert isinstance(outcome, BatchWritten)
    return outcome


class Rows:
    """``TableOutlet`` that keeps what it takes."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def add_rows(self, decoded: Decoded) -> None:
        self.taken += decoded.rows.column("id").to_pylist()


def loud(rows: pa.RecordBatch) -> pa.RecordBatch:
    place = rows.schema.get_field_index("message")
    return rows.set_column(place, rows.schema.field(place), pc.utf8_upper(rows.column(place)))


def rows_of(outcome: BatchWritten) -> list[tuple[int, int]]:
    tables = (
        pq.read_table(file.path.removeprefix("file://"))
        for file in outcome.files
        if file.kind is FileKind.ROWS
    )
    rows = (row for table in tables for row in table.to_pylist())
    return [(row["id"], row["at_offset"]) for row in rows]


VALUES: list[bytes | None] = [
    b'{"id": 7, "name": "a"}',
    b'{"id": 1}',
    b"{broken",
    b'{"id": 7}',
    b'{"id": 2}',
]


def test_records_that_the_table_does_not_hold_are_bad_ones(tmp_path: Path) -> None:
    outcome = written(tmp_path, VALUES, None)
    assert rows_of(outcome) == [(1, 1), (2, 4)]
    result = outcome.partitions[P0]
    assert (result.records, result.skipped, result.bad) == (2, 3, 3)


def test_so_they_are_in_keyed_tables(tmp_path: Path) -> None:
    outcome = written(tmp_path, [*VALUES, None], Changes(key=("id",)))
    assert rows_of(outcome) == [(1, 1), (2, 4)]
    result = outcome.partitions[P0]
    assert (result.records, result.skipped, result.bad, result.deleted) == (2, 3, 3, 1)


def batch_of(table: TableStart, count: int, quarantine: TableStart | None = None) -> Batch:
    return Batch(
        number=1,
        transaction=TransactionId(Epoch(3), TransactionNumber(7)),
        table=table,
        ranges={P0: OffsetRange(0, count)},
        target_file_bytes=1 << 20,
        quarantine=quarantine,
    )


def test_so_they_are_in_each_of_many_tables(tmp_path: Path) -> None:
    layout = FileSchema("u1", 5, COLUMNS, tmp_path.as_uri(), values=NoSevens())
    source = SourcePlan({}, record_columns=PLACES, handling=Handling(policy=Disposal.SKIP))
    plan = plan_of_file_schema(layout, "db.t", source)
    batch = batch_of(TableStart("db.t", "u1", 5, 0, f"{tmp_path.as_uri()}/data/7"), len(VALUES))
    aside, outlet = RejectedRecords(plan, batch), Rows()
    known = RoutedTable("db.t", plan, "", "u1", 5)
    reading = new_decoder(known, plan, batch, rejected=aside, outlet=outlet)
    records = [Record("trips", 0, n, 0, value, b"7", []) for n, value in enumerate(VALUES)]
    reading.add_chunk(chunk_of([records]), only_note_needs=False)
    assert outlet.taken == [1, 2]
    assert aside.bad.tolist() == [3]


def test_a_quarantine_takes_what_its_table_does_not_hold_as_something_legible(
    tmp_path: Path,
) -> None:
    layout = FileSchema("u1", 5, COLUMNS, f"{tmp_path.as_uri()}/t", values=NoSevens())
    columns = parse_declared_columns(quarantine_declaration().columns)
    aside = FileSchema("u2", 6, columns, f"{tmp_path.as_uri()}/q", replace_unsupported=loud)
    handling = Handling(policy=Disposal.QUARANTINE, tombstones=Disposal.QUARANTINE)
    source = SourcePlan({}, record_columns=PLACES, handling=handling)
    kept = plan_of_file_schema(aside, "db.q", quarantine_source_of(source))
    plan = replace(plan_of_file_schema(layout, "db.t", source), quarantine=kept)
    batch = batch_of(
        TableStart("db.t", "u1", 5, 0, f"{layout.location}/data/7"),
        2,
        TableStart("db.q", "u2", 6, 0, f"{aside.location}/data/7"),
    )
    values = [b'{"id": 7}', b'{"id": 1}']
    records = [Record("trips", 0, n, 0, value, b"7", []) for n, value in enumerate(values)]
    outcome = write_chunks(pickle.loads(pickle.dumps(plan)), batch, [chunk_of([records])])
    assert isinstance(outcome, BatchWritten)
    (file,) = outcome.quarantined
    (row,) = pq.read_table(file.path.removeprefix("file://")).to_pylist()
    assert (row["message"], row["value"]) == ("ID: NO SEVEN HERE", values[0])
