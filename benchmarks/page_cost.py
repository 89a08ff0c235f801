"""Measures a look at a sink as snapshots pile up: ``headgate status``, and the page.

    python benchmarks/page_cost.py [--snapshots 10000] [--repeat 5]

SQLite catalog in a temporary folder, brokers answered for. The table's metadata file is written as
so many commits of one sink would have left it. Printed are the least and the median CPU seconds
(the clock depends on neighbours) of loading the table, which pyiceberg parses, of the whole report,
that included, and of drawing the page.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import encode_record
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import TopicState
from headgate.operations.http.sink_status_cache import COURSE
from headgate.operations.http.status_page import sink_page
from headgate.operations.status import status as looking
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

SINK = SinkName("trips")
PARTITIONS = 6
FILE = """
name = "trips"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[catalog]
name = "lake"
[catalog.properties]
type = "sql"
uri = "sqlite:///{home}/catalog.db"
warehouse = "file://{home}/warehouse"
[table]
identifier = "city.trips"
create = true
columns = [{{ name = "id", type = "long" }}]
"""


class Topics:
    """Brokers that answer at once."""

    def describe(self) -> dict[str, TopicState]:
        logs = {number: OffsetRange(0, 10**9) for number in range(PARTITIONS)}
        return {"trips": TopicState(TopicId("id"), logs)}

    def offsets_at(self, _: int) -> Offsets:
        return Offsets()


@contextmanager
def answering(_: SinkSettings) -> Iterator[Topics]:
    yield Topics()


def grown(catalog: Catalog, settings: SinkSettings, number: int) -> None:
    """Give the table so many commits, by writing the metadata file that they would have left."""
    create_table_if_missing(catalog, settings.table.identifier, TableDeclaration({"id": "long"}))
    table = catalog.load_table(settings.table.identifier)
    document: dict[str, Any] = json.loads(table.metadata.model_dump_json())
    now_ms = time.time_ns() // 1_000_000
    snapshots = [_snapshot(n, now_ms - (number - n) * 60_000) for n in range(1, number + 1)]
    head = {"snapshot-id": number, "type": "branch"}
    document |= {
        "snapshots": snapshots,
        "current-snapshot-id": number,
        "last-sequence-number": number,
        "last-updated-ms": now_ms,
        "refs": {"main": head, f"headgate.{SINK}": {**head, "type": "tag"}},
    }
    before = Path(table.metadata_location.removeprefix("file://"))
    after = before.with_name(f"00001-{uuid.uuid4()}.metadata.json")
    after.write_text(json.dumps(document))
    before.write_text(json.dumps(document))


def _snapshot(number: int, committed_ms: int) -> dict[str, Any]:
    offsets = {TopicPartition("trips", p): number * 1_000 for p in range(PARTITIONS)}
    record = CommitRecord(
        SINK,
        f"headgate-{SINK}",
        TransactionId(Epoch(1), TransactionNumber(number - 1)),
        Sender("host-1", "life"),
        Offsets(offsets),
        topic_ids={"trips": TopicId("id")},
        records=6_000,
        valid_through_ms=committed_ms,
    )
    parent = {"parent-snapshot-id": number - 1} if number > 1 else {}
    return {
        "snapshot-id": number,
        **parent,
        "sequence-number": number,
        "timestamp-ms": committed_ms,
        "manifest-list": f"file:///none/snap-{number}.avro",
        "summary": {"operation": "append", "added-records": "6000", **encode_record(record)},
        "schema-id": 0,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--snapshots", type=int, default=10_000)
    arguments.add_argument("--repeat", type=int, default=5)
    given = arguments.parse_args()
    looking.open_reachable_source_topics = answering  # type: ignore[assignment]
    looking.read_control_tail = lambda *_: []  # type: ignore[assignment]
    taken: dict[str, list[float]] = {"load the table": [], "status, whole": [], "page": []}
    with tempfile.TemporaryDirectory() as home:
        settings = parse(FILE.format(home=home))
        catalog = load_catalog("lake", settings.catalog.properties)
        grown(catalog, settings, given.snapshots)
        for _ in range(given.repeat):
            begun_s = time.process_time()
            catalog.load_table(settings.table.identifier)
            taken["load the table"].append(time.process_time() - begun_s)
            begun_s = time.process_time()
            report = looking.read_status(settings, COURSE)
            taken["status, whole"].append(time.process_time() - begun_s)
            assert len(report.transactions) == min(COURSE, given.snapshots)
            begun_s = time.process_time()
            sink_page(report, time.time_ns() // 1_000_000)
            taken["page"].append(time.process_time() - begun_s)
        catalog.close()
    print(f"{given.snapshots} snapshots")
    for what, seconds in taken.items():
        print(f"{what:<16} least {min(seconds):.3f} CPU-s, median {statistics.median(seconds):.3f}")


if __name__ == "__main__":
    main()
