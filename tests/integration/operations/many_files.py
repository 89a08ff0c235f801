"""A process that audits a table of many files and says how much memory that took; run by a test.

``python -m integration.operations.many_files FOLDER FILES``. Manifests are generated, with the
statistics of ten columns; the files themselves are one and the same, which is read once.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from support.iceberg_files import write_files
from support.local_catalog import local_catalog

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, Landed
from headgate.control_protocol.testing.contract.world import record
from headgate.operations.audit.files import check_files_of_commits, check_live_files
from headgate.operations.audit.table_records import scan_records
from headgate.tables.iceberg import reader as reading
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

FILES_PER_COMMIT = 1_000
COORDINATES = ("topic", "partition", "offset")
COLUMNS = {"topic": "string", "partition": "int", "offset": "long"} | {
    f"column_{number}": "long" for number in range(10)
}


def _filled(catalog: Any, files: int) -> Any:
    create_table_if_missing(catalog, "db.many", TableDeclaration(COLUMNS))
    table = IcebergTable(catalog, "db.many", SinkName("sink"))
    loaded = catalog.load_table("db.many")
    columns: dict[str, Any] = {name: [7] for name in COLUMNS} | {"topic": ["rows"]}
    (one,) = write_files(loaded, pa.table(columns).cast(loaded.schema().as_arrow()))
    landed = table.commit(CommitAttempt(table.read(), record(1, 0), ()))
    for number in range(1, files // FILES_PER_COMMIT + 1):
        assert isinstance(landed, Landed), landed
        folder = f"{landed.view.location}/data/headgate/sink/1-0123456789abcdef/{number}"
        many = tuple(replace(one, path=f"{folder}-{n}.parquet") for n in range(FILES_PER_COMMIT))
        state = record(1, number, FILES_PER_COMMIT)
        landed = table.commit(CommitAttempt(landed.view, state, many))
    return catalog.load_table("db.many")


def peak_mb() -> int:
    """What this process has had in memory at most."""
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    ]
    return int(line.split()[1]) // 1024


def main() -> None:
    folder, files = Path(sys.argv[1]), int(sys.argv[2])
    local = local_catalog(folder)
    table = _filled(local.catalog, files)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of having made the table
    before_mb = peak_mb()
    batch = pa.record_batch({"topic": ["rows"], "partition": [0], "offset": [7]})
    IcebergReader.stored_size_and_rows = lambda _self, file: (file.size_bytes, file.records)
    reading.live_batches_of_file = lambda *_: iter([batch])
    reader = IcebergReader(table, SinkName("sink"), "main")
    history, live = reader.history(), reader.live_files()
    findings = check_files_of_commits(reader, history, lambda *_: None)
    more, damaged = check_live_files(reader, live, lambda *_: None)
    assert history.head is not None
    seen = scan_records(reader, COORDINATES, damaged, on_progress=lambda *_: None)
    (partition,) = seen.partitions.values()
    found = {"files": len(live), "findings": len(findings) + len(more), "again": partition.twice}
    print(json.dumps({**found, "before_mb": before_mb, "peak_mb": peak_mb()}))
    local.catalog.close()


if __name__ == "__main__":
    main()
