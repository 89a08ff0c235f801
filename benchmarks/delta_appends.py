"""Measures appends to a Delta table, to an Iceberg table, and in a loop with delta-rs.

    python benchmarks/delta_appends.py [--rows 200000] [--commits 5] [--pairs 5]

The same JSON values in memory (ten columns, two of them timestamps) are decoded, written and
committed: by headgate's writer into a table of either kind, and by pyarrow's JSON reader with
``write_deltalake``, as a loop by hand does it. They take turns, each time on tables of their own;
printed are rows per CPU-second, the best and the median of the rounds, and the median of the ratios
of neighbours. No broker takes part.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import decoding
import numpy as np
import pyarrow as pa
import pyarrow.json
from deltalake import write_deltalake

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import (
    Batch,
    BatchWritten,
    CommitAttempt,
    Landed,
    SinkTable,
)
from headgate.control_protocol.table_format import TableSpec
from headgate.data_plane.batch.file_schema_plans import FileSchemaPlans
from headgate.data_plane.batch.transform_and_distribution import Shaping
from headgate.data_plane.batch.writer_task_plan import Plans, SourcePlan, WriterPlan
from headgate.data_plane.write.write_batch import write_chunks
from headgate.kafka.record_fetch import Chunk
from headgate.native.byte_arrays import Packed
from headgate.tables.delta.table_format import DeltaFormat
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

SINK, PARTITION = SinkName("benchmark"), TopicPartition("trips", 0)
CHUNK = 20_000
TYPES = {
    name: "timestamptz" if kind == "moment" else kind
    for name, (_, kind, _) in decoding.KINDS.items()
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _, _) in decoding.KINDS.items()])

Plan = Callable[[Batch, SourcePlan], WriterPlan]
Timed = Callable[[Path, Sequence[bytes], int], float]


def values(count: int) -> list[bytes]:
    begin = datetime(1970, 1, 1, tzinfo=UTC)
    moments = [name for name, kind in TYPES.items() if kind == "timestamptz"]

    def text(row: dict[str, Any]) -> bytes:
        told = {at: (begin + timedelta(microseconds=row[at])).isoformat() for at in moments}
        return json.dumps(row | told).encode()

    return [text(row) for row in decoding.rows(count)]


def iceberg(folder: Path, rows: Sequence[bytes], commits: int) -> float:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": (folder / "warehouse").as_uri(),
    }
    with load_catalog("benchmark", properties) as catalog:
        create_table_if_missing(catalog, "db.t", TableDeclaration(TYPES))
        table = IcebergTable(catalog, "db.t", SINK)
        return appended(table, Plans(catalog).load_plan, rows, commits)


def delta(folder: Path, rows: Sequence[bytes], commits: int) -> float:
    columns = Struct(tuple(Column(name, kind, required=False) for name, kind in TYPES.items()))
    wanted = TableSpec("db.t", str(folder / "t"), create=True, columns=columns)
    kind = DeltaFormat()
    kind.create(wanted)
    plans = FileSchemaPlans(lambda: kind.file_schema(wanted), Shaping())
    return appended(kind.open(wanted, SINK), plans.load_plan, rows, commits)


def appended(table: SinkTable, plan: Plan, rows: Sequence[bytes], commits: int) -> float:
    """Return the CPU-seconds of writing and committing all rows, ``commits`` times."""
    parts = [Packed.from_values(rows[at : at + CHUNK]) for at in range(0, len(rows), CHUNK)]
    view, source = table.read(), SourcePlan({})
    begun_s = time.process_time()
    for number in range(1, commits + 1):
        folder = f"{view.location}/data/headgate/{number}"
        start = TableStart("db.t", view.uuid, view.schema_id, view.spec_id, folder)
        batch = Batch(
            number=number,
            transaction=TransactionId(Epoch(1), TransactionNumber(number)),
            table=start,
            ranges={PARTITION: OffsetRange(0, len(rows))},
            target_file_bytes=128 << 20,
        )
        written = write_chunks(plan(batch, source), batch, chunks(parts))
        assert isinstance(written, BatchWritten)
        record = CommitRecord(
            sink=SINK,
            group_id="benchmark",
            transaction=batch.transaction,
            coordinator=Sender("benchmark", "1"),
            offsets=Offsets({PARTITION: number}),
        )
        landed = table.commit(CommitAttempt(view, record, written.files))
        assert isinstance(landed, Landed), landed
        view = landed.view
    return time.process_time() - begun_s


def chunks(parts: Sequence[Packed]) -> Iterator[Chunk]:
    begin = 0
    for part in parts:
        count = len(part)
        places = np.zeros(count, np.int64)
        offsets = np.arange(begin, begin + count, dtype=np.int64)
        yield Chunk(part, np.full(count, 200, np.int64), places, offsets, places)
        begin += count


def by_hand(folder: Path, rows: Sequence[bytes], commits: int) -> float:
    """Run the loop that people write: records to JSON lines, and an append per batch."""
    begun_s = time.process_time()
    for _ in range(commits):
        lines = io.BytesIO(b"\n".join(rows))
        options = pyarrow.json.ParseOptions(explicit_schema=SCHEMA)
        write_deltalake(
            folder / "t", pyarrow.json.read_json(lines, parse_options=options), mode="append"
        )
    return time.process_time() - begun_s


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000, help="of a commit")
    parser.add_argument("--commits", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    rows = values(given.rows)
    systems: dict[str, Timed] = {"iceberg": iceberg, "delta": delta, "delta-rs by hand": by_hand}
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for round_ in range(given.pairs + 1):
        order = list(systems) if round_ % 2 else list(reversed(systems))
        for name in order:
            with tempfile.TemporaryDirectory() as folder:
                taken_s = systems[name](Path(folder), rows, given.commits)
            if round_:  # the first warms up
                rates[name].append(given.rows * given.commits / taken_s)
    for name, found in rates.items():
        ratios = [mine / theirs for mine, theirs in zip(found, rates["iceberg"], strict=True)]
        best, median = max(found), statistics.median(found)
        print(
            f"{name:18} best {best:10,.0f}  median {median:10,.0f} rows/CPU-s"
            f"  by Iceberg's {statistics.median(ratios):.2f}"
        )


if __name__ == "__main__":
    main()
