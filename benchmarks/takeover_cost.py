"""Measures a takeover from Iceberg's Kafka Connect sink that has announced a great deal.

    python benchmarks/takeover_cost.py [--announcements 100000] [--commits 200]

The events are those of release 1.12.0 (as the tests keep them) with other files and offsets, on an
embedded broker; the table has a snapshot for each of the connector's commits, and names a file for
each announcement but the last twenty, which are outstanding. No file is there: a takeover that
reads again opens none. Printed: how long ``headgate takeover`` takes, with and without ``--yes``.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import fastavro
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from headgate.kafka.group_offsets import commit_offset_with_metadata
from headgate.operations.demo.producer import ensure_topic
from headgate.operations.kafka_connect.events import _parse_schema
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.connector_fence import connector_position_property

KEPT = Path(__file__).parents[1] / "tests/unit/operations/kafka_connect"
GROUP, CONTROL = "connect-trips", "control-iceberg"
PARTITIONS, CONTROL_PARTITIONS, OUTSTANDING = 4, 2, 20
_WRITTEN, _COMPLETE = 1, 2


class Events:
    """Encodes what the connector says of a file, from an event that it once wrote."""

    def __init__(self, table: Table) -> None:
        self._kept: dict[int, tuple[bytes, Any, dict[str, Any]]] = {}
        for each in json.loads((KEPT / "control-topic-1.12.0.json").read_text()):
            value = base64.b64decode(each["value"])
            size = int.from_bytes(value[2:4])
            schema = _parse_schema(value[4 : 4 + size])
            event: Any = fastavro.schemaless_reader(io.BytesIO(value[4 + size :]), schema, None)
            self._kept.setdefault(event["type"], (value[: 4 + size], schema, event))
        self._uuid = table.metadata.table_uuid.bytes

    def _encode(self, kind: int, **payload: Any) -> bytes:
        head, schema, event = self._kept[kind]
        told = {**event, "group_id": GROUP, "payload": {**event["payload"], **payload}}
        if "timestamp" in payload:
            told["timestamp"] = payload["timestamp"]
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, told)
        return head + stream.getvalue()

    def of(self, number: int, path: str) -> Iterator[bytes]:
        commit = uuid.UUID(int=number).bytes
        kept = self._kept[_WRITTEN][2]["payload"]
        file = {**kept["data_files"][0], "file_path": path, "record_count": 1}
        table = {**kept["table_reference"], "table_uuid": self._uuid}
        told = {"commit_id": commit, "table_reference": table, "data_files": [file]}
        yield self._encode(_WRITTEN, **told)
        (first, *_) = self._kept[_COMPLETE][2]["payload"]["assignments"]
        partition, end = number % PARTITIONS, number // PARTITIONS + 1
        read = {**first, "topic": "trips", "partition": partition, "offset": end}
        at = datetime.fromtimestamp(1_700_000_000 + number, UTC)
        yield self._encode(_COMPLETE, commit_id=commit, assignments=[read], timestamp=at)


def path_of(number: int) -> str:
    return f"file:///nowhere/lake/trips/data/zone=a/{number:08}.parquet"


def make_table(catalog: Catalog) -> Table:
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "zone", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "zone"))
    catalog.create_namespace("lake")
    properties = {
        "commit.manifest-merge.enabled": "true",  # as Java does
        "write.metadata.previous-versions-max": "5",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    return catalog.create_table("lake.trips", schema, partition_spec=spec, properties=properties)


def commit(table: Table, numbers: range, mark: dict[int, int]) -> None:
    told = {connector_position_property(CONTROL, GROUP): json.dumps(mark)}
    with table.transaction() as change, change.update_snapshot(told).merge_append() as append:
        for number in numbers:
            append.append_data_file(
                DataFile.from_args(
                    _table_format_version=2,
                    content=DataFileContent.DATA,
                    file_path=path_of(number),
                    file_format=FileFormat.PARQUET,
                    partition=Record("a"),
                    record_count=1,
                    file_size_in_bytes=1_000,
                )
            )


def fill(bootstrap: str, catalog: Catalog, announcements: int, commits: int) -> None:
    table = make_table(catalog)
    events, producer = Events(table), kafka.Producer({"bootstrap.servers": bootstrap})
    ends = dict.fromkeys(range(CONTROL_PARTITIONS), 0)
    held = announcements - OUTSTANDING
    each = -(-held // commits)
    for begin in range(0, announcements, each):
        numbers = range(begin, min(begin + each, announcements))
        for number in numbers:
            producer.produce("trips", b"{}", partition=number % PARTITIONS)
            control = number % CONTROL_PARTITIONS
            for value in events.of(number, path_of(number)):
                producer.produce(CONTROL, value, f"worker-{control}", partition=control)
            if number < held:
                ends[control] += 2
        producer.flush()
        if committed := range(begin, min(numbers.stop, held)):
            commit(table, committed, ends)
    for partition in range(PARTITIONS):
        end = len(range(partition, announcements, PARTITIONS))
        at = kafka.TopicPartition("trips", partition, end)
        commit_offset_with_metadata({"bootstrap.servers": bootstrap}, GROUP, at)


def files(home: Path, bootstrap: str, properties: dict[str, str]) -> tuple[Path, Path]:
    connector, sink = home / "connector.json", home / "sink.toml"
    kind = "org.apache.iceberg.connect.IcebergSinkConnector"
    keys = {"connector.class": kind, "topics": "trips", "iceberg.tables": "lake.trips"}
    connector.write_text(json.dumps({"name": "trips", "config": keys}))
    sections: dict[str, dict[str, object]] = {
        "source": {"topics": ["trips"]},
        "kafka": {"bootstrap.servers": bootstrap},
        "catalog": {"name": "lake"},
        "catalog.properties": properties,
        "table": {"identifier": "lake.trips"},
        "spark": {"writer": "in-process"},
    }
    lines = ['name = "trips"']
    for name, section in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in section.items()]
    sink.write_text("\n".join(lines) + "\n")
    return connector, sink


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--announcements", type=int, default=100_000)
    parser.add_argument("--commits", type=int, default=200)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{home}/catalog.db",
            "warehouse": (home / "warehouse").as_uri(),
        }
        with EmbeddedKafka(home / "kafka", ensure_broker_jars()) as broker:
            ensure_topic(broker.bootstrap, "trips", partitions=PARTITIONS)
            ensure_topic(broker.bootstrap, CONTROL, partitions=CONTROL_PARTITIONS)
            with closing(load_catalog("lake", properties)) as catalog:
                fill(broker.bootstrap, catalog, asked.announcements, asked.commits)
            connector, sink = files(home, broker.bootstrap, properties)
            for more in ((), ("--yes",)):
                began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
                command = Path(sys.executable).with_name("headgate")
                told = subprocess.run(
                    [command, "takeover", sink, "--from", connector, *more],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                wall_s = time.monotonic() - began
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                print(
                    f"takeover {' '.join(more)}: {wall_s:.1f} s, {cpu_s:.1f} CPU-s, "
                    f"{after.ru_maxrss / 1024:.0f} MB, exit {told.returncode}, load "
                    f"{os.getloadavg()[0]:.1f}\n{told.stdout}{told.stderr}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
