"""Measures what `[shape]` and a function cost: records in memory into data files, as they are and
otherwise.

    python benchmarks/shaping.py [--records 400000] [--only plain]

Records of eleven columns as JSON, one of them a text that no two share, are decoded and written in
one process; no broker. Printed are records per CPU-second (of all threads), the mean of the rounds,
which go round the kinds in turn so that a busy machine disturbs all alike.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from bad_records import chunk_of
from pyiceberg.catalog import Catalog

from comparison.workloads import WORKLOADS
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.transform_and_distribution import Shaping, TransformPlan
from headgate.data_plane.batch.writer_task_plan import Plans, SourcePlan
from headgate.data_plane.write.write_batch import write_chunks
from headgate.kafka.record_fetch import Chunk
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

SEED, ROUNDS, CHUNK = 7, 6, 20_000


HASHED = {f"hashed to {kind}": kind for kind in ("string", "fixed(32)", "binary")}
"""The type of the column, by what is measured."""


def shapes() -> Mapping[str, Shaping]:
    from headgate.data_plane.batch.row_rules import Expectation, Mask, RowRules

    hashed = RowRules(hashed=("email",), key=b"k" * 32)
    made = {
        **dict.fromkeys(HASHED, hashed),
        "one column masked": RowRules(masks=(Mask("email", 2, 4, "***"),)),
        "half of them left out": RowRules(where="number < 0"),
        "all of them stay": RowRules(where="number >= -1"),
        "an expectation": RowRules(expectations=(Expectation("fare", "fare >= 0"),)),
    }
    functions = {
        what: Shaping(TransformPlan(function=f"shaping:{name}", in_process=True))
        for what, name in (("a function, all stay", "same"), ("a function, half stay", "half"))
    }
    return {**{what: Shaping(rules=rules) for what, rules in made.items()}, **functions}


def same(records: pa.RecordBatch) -> pa.RecordBatch:
    return records


def half(records: pa.RecordBatch) -> pa.RecordBatch:
    return records.filter(pc.less(records["number"], 0))


def chunks_of(count: int) -> list[Chunk]:
    values = [
        b'{"email":"user-%d@example.org","number":%d,%s'
        % (number, -1 if number % 2 else 0, value[1:])
        for number, value in enumerate(WORKLOADS["taxi"].records(count, SEED))
    ]
    found = (chunk_of(values[at : at + CHUNK], at) for at in range(0, count, CHUNK))
    return [replace(chunk, keys=None, headers=None) for chunk in found]


def write(
    catalog: Catalog, name: str, chunks: list[Chunk], shaping: Shaping
) -> tuple[float, int, int]:
    """Return the CPU-seconds, the rows, and the bytes of their files."""
    table = catalog.load_table(name)
    prefix = f"{table.location()}/data/{uuid.uuid4()}"
    start = TableStart(name, str(table.metadata.table_uuid), 0, 0, prefix)
    count = sum(len(chunk.offsets) for chunk in chunks)
    ranges = {TopicPartition("t", 0): OffsetRange(0, count)}
    batch = Batch(1, TransactionId(Epoch(1), TransactionNumber(1)), start, ranges, 1 << 27)
    plan = Plans(catalog, shaping).load_plan(batch, SourcePlan({}))
    before_s = time.process_time()
    written = write_chunks(plan, batch, chunks)
    taken_s = time.process_time() - before_s
    for file in written.files:
        Path(file.path.removeprefix("file://")).unlink()
    rows, size = (
        sum(getattr(f, what) for f in written.files) for what in ("records", "size_bytes")
    )
    return taken_s, rows, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--only", choices=["plain"])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "warehouse").mkdir()
        catalog = load_catalog(
            "bench",
            {
                "type": "sql",
                "uri": f"sqlite:///{folder}/catalog.sqlite",
                "warehouse": (Path(folder) / "warehouse").as_uri(),
            },
        )
        columns = {"email": "string", "number": "int", **WORKLOADS["taxi"].columns}
        tables = {"string": "db.rows", "fixed(32)": "db.fixed_rows", "binary": "db.binary_rows"}
        for kind, name in tables.items():
            create_table_if_missing(catalog, name, TableDeclaration({**columns, "email": kind}))
        runs = {"plain": Shaping(), **({} if chosen.only else shapes())}
        chunks = chunks_of(chosen.records)
        taken: dict[str, float] = dict.fromkeys(runs, 0.0)
        rows: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for _ in range(ROUNDS):
            for what, shaping in runs.items():
                name = tables[HASHED.get(what, "string")]
                taken_s, rows[what], sizes[what] = write(catalog, name, chunks, shaping)
                taken[what] += taken_s / ROUNDS
        catalog.close()
    print(f"{'rows':<24}{'written':>10}{'records/CPU-s':>16}{'of plain':>10}{'bytes/row':>11}")
    for what, taken_s in taken.items():
        share = taken["plain"] / taken_s
        each = sizes[what] / rows[what]
        speed = chosen.records / taken_s
        print(f"{what:<24}{rows[what]:>10}{speed:>16,.0f}{share:>10.1%}{each:>11.1f}")


if __name__ == "__main__":
    main()
