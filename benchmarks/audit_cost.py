"""Measures how long an audit of many commits takes on an object store, and how much memory.

    python benchmarks/audit_cost.py [--commits 1000] [--delay-ms 50]

S3 is moto's server; a proxy before it adds the delay to each request of the audit, and counts them.
The catalog is SQLite. Each commit has brought one file of ten rows; the audit reads every commit,
file and record, and asks no broker. It runs in a process of its own, which has read nothing yet.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import pyarrow as pa
from integration.sink_file import default_sections, toml
from support.counting_proxy import CountingProxy, kinds
from support.iceberg_files import write_files
from support.object_store import ObjectStore

from headgate.config.load import load
from headgate.config.table_declaration import declaration_of
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, Landed
from headgate.control_protocol.testing.contract.world import record
from headgate.operations.audit.audit import audit
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import create_table_if_missing

ROWS = 10


def sink_file(home: Path, properties: Mapping[str, str]) -> Path:
    """Write the file of a sink whose files are on S3."""
    sections = dict(default_sections(home, "127.0.0.1:9", ["topic"], "group"))
    catalog = sections["catalog.properties"]
    assert isinstance(catalog, Mapping)
    sections["catalog.properties"] = {**catalog, **properties}
    written = home / "sink.toml"
    written.write_text(toml(sections))
    return written


def fill(path: Path, commits: int) -> None:
    settings = load(path)
    with load_catalog(settings.catalog.name, settings.catalog.properties) as catalog:
        name = settings.table.identifier
        create_table_if_missing(catalog, name, declaration_of(settings.table))
        table = IcebergTable(catalog, name, SinkName(settings.name))
        landed = table.commit(CommitAttempt(table.read(), record(1, 0), ()))
        loaded = catalog.load_table(name)
        for number in range(1, commits + 1):
            assert isinstance(landed, Landed), landed
            rows = pa.table(
                {
                    "id": range(ROWS),
                    "kafka_topic": ["topic"] * ROWS,
                    "kafka_partition": pa.array([0] * ROWS, pa.int32()),
                    "kafka_offset": range((number - 1) * ROWS, number * ROWS),
                }
            )
            files = write_files(
                loaded, rows.cast(loaded.schema().select(*rows.column_names).as_arrow())
            )
            state = record(1, number, ROWS)
            landed = table.commit(CommitAttempt(landed.view, state, files))


def timed(path: str) -> None:
    begun_s = time.perf_counter()
    report = audit(load(Path(path)), with_source=False)
    taken_s = time.perf_counter() - begun_s
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s, peak_mb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    print(
        f"{report.commits} commits, {report.live_rows} rows: {taken_s:.1f} s, {cpu_s:.1f} s of CPU "
        f"with the start, peak {peak_mb:.0f} MB, load {os.getloadavg()[0]:.1f}"
    )
    print("findings:", ", ".join(map(str, report.findings[:3])) or "none")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--commits", type=int, default=1000)
    asked.add_argument("--delay-ms", type=float, default=50)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder, ObjectStore() as store:
        home = Path(folder)
        begun_s = time.perf_counter()
        fill(sink_file(home, store.s3()), given.commits)
        print(f"filled in {time.perf_counter() - begun_s:.0f} s", flush=True)
        with CountingProxy(store.port) as proxy:
            path = sink_file(home, store.s3(proxy.uri))
            proxy.delay_s = given.delay_ms / 1000
            subprocess.run([sys.executable, __file__, "--of", str(path)], check=True)
            print(dict(sorted(kinds(proxy.exchanges).items())))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--of"]:
        timed(sys.argv[2])
    else:
        main()
