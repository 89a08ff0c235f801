"""A distributed batch that meets fields which its table lacks: asked for, then written (SCHEMA-1,
SCHEMA-2)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.local_catalog import LocalCatalog, local_catalog

from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    SinkName,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch, BatchNeeds, BatchOutcome, BatchWritten
from headgate.control_protocol.schema_evolution import Refusal
from headgate.data_plane.batch.transform_and_distribution import Shaping
from headgate.data_plane.batch.writer_task_plan import Plans, SourcePlan
from headgate.data_plane.spark import stages
from headgate.data_plane.spark.job import JobDone
from headgate.data_plane.spark.stages import reconcile_reads_and_writes
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.kafka.push_source import Record
from headgate.participant.settings import Distribution, SchemaPolicy, UnknownFields
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

ZERO, ONE = TopicPartition("trips", 0), TopicPartition("trips", 1)
EVOLVE = SourcePlan({}, schema_policy=SchemaPolicy(UnknownFields.EVOLVE))


@dataclass
class Job:
    """A job of two shares, one for each partition."""

    local: LocalCatalog
    monkeypatch: pytest.MonkeyPatch
    refused: tuple[Refusal, ...] = ()

    def outcome(self, first: list[Any], second: list[Any]) -> tuple[BatchOutcome, JobDone]:
        values = {ZERO: first, ONE: second}
        batch = self._batch({at: OffsetRange(0, len(some)) for at, some in values.items()})
        plans = Plans(self.local.catalog, Shaping(None, Distribution.HASH))
        plan = pickle.loads(pickle.dumps(plans.load_plan(batch, EVOLVE)))
        shares = [replace(batch, ranges={at: span}) for at, span in batch.ranges.items()]
        self.monkeypatch.setattr(
            stages,
            "read_source_in_chunks",
            lambda _, share: (chunk for chunk in [chunk_of([_records(share, values)])]),
        )
        numbers = (pa.RecordBatch.from_pydict({"id": [share]}) for share in (0, 1))
        read = list(stages.share_packing_stage(plan, batch, shares)(numbers))
        told = [t for some in read for t in some.column(stages.TALLY).to_pylist() if t]
        packets = [some.slice(0, 1) for some in read if some.column(stages.TALLY).null_count]
        (row,) = stages.packet_writing_stage(plan, batch)(iter(packets))
        done = JobDone(list(map(pickle.loads, told)), [pickle.loads(row.column(0)[0].as_py())])
        return reconcile_reads_and_writes(batch, done.reads, done.parts, ""), done

    def _batch(self, ranges: dict[TopicPartition, OffsetRange]) -> Batch:
        table = self.local.catalog.load_table("db.t")
        uuid, schema = str(table.metadata.table_uuid), table.schema().schema_id
        prefix = f"{table.location()}/data/7"
        start = TableStart("db.t", uuid, schema, table.spec().spec_id, prefix, refused=self.refused)
        return Batch(1, TransactionId(Epoch(3), TransactionNumber(7)), start, ranges, 1 << 27)


def _records(share: Batch, values: dict[TopicPartition, list[Any]]) -> list[Record]:
    ((at, _),) = share.ranges.items()
    texts = [json.dumps(value).encode() for value in values[at]]
    return [Record(at.topic, at.partition, n, 1, text, None, []) for n, text in enumerate(texts)]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    local = local_catalog(tmp_path)
    declared = TableDeclaration({"id": "long", "zone": "string"}, partition_by=("zone",))
    create_table_if_missing(local.catalog, "db.t", declared)
    yield Job(local, monkeypatch)
    local.catalog.close()


def test_a_distributed_batch_asks_for_what_all_its_shares_need(job: Job) -> None:
    first = [{"id": 1, "zone": "a"}, {"id": 2, "zone": "b", "tip": 1}]
    second = [{"id": 3, "zone": "a"}, {"id": 4}, {"id": 5, "tip": 0.5, "who": "x"}]
    needs, done = job.outcome(first, second)
    assert isinstance(needs, BatchNeeds)
    assert {c.name: c.type for c in needs.columns.fields} == {"tip": "double", "who": "string"}
    assert (needs.first, needs.records) == (Offsets({ZERO: 1, ONE: 2}), 2)
    assert all(file.records for file in done.all_files), "of records before: removed with it"
    table = IcebergTable(job.local.catalog, "db.t", SinkName("s"))
    assert set(table.evolve(table.read(), needs.columns).changes) == {"+tip", "+who"}
    written, done = job.outcome(first, second)
    assert isinstance(written, BatchWritten)
    rows = [
        row for file in done.all_files for row in pq.ParquetFile(file.path[7:]).read().to_pylist()
    ]
    assert sorted((row["id"], row["tip"], row["who"]) for row in rows) == [
        (1, None, None),
        (2, 1.0, None),
        (3, None, None),
        (4, None, None),
        (5, 0.5, "x"),
    ]


def test_what_becomes_no_column_is_told_by_a_distributed_batch_too(job: Job) -> None:
    job.refused = (Refusal(("tip",), "no"),)
    written, _ = job.outcome([{"id": 1, "tip": 1}], [{"id": 2, "tip": 2}, {"id": 3}])
    assert isinstance(written, BatchWritten)
    assert written.ignored == {"tip": 2}
