"""Ranges of a real topic into files, through every layer of the data plane."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from integration.data_plane.filling import produce, topic_id
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType
from support.local_catalog import LocalCatalog

from headgate.control_protocol.errors import PoisonRecord, TableChanged, TopicRecreated, WriteFailed
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchFailed, BatchWritten, PartitionResult
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.data_plane.batch.failure_classification import BatchAbandoned
from headgate.data_plane.batch.writer_task_plan import (
    Handling,
    SourcePlan,
    WriterPlan,
    load_table_and_plan,
)
from headgate.data_plane.write.in_process_writer import InProcessWriter
from headgate.data_plane.write.write_batch import write_ranges
from headgate.tables.iceberg.data_file import FileDetail

pytestmark = pytest.mark.integration

TopicFactory = Callable[..., str]

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "at", TimestamptzType()),
    NestedField(3, "zone", StringType()),
)
PLACES = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "from_topic", StringType()),
    NestedField(3, "from_partition", IntegerType()),
    NestedField(4, "from_offset", LongType()),
    NestedField(5, "stamped", TimestamptzType()),
)
PLACE_COLUMNS = {
    "topic": "from_topic",
    "partition": "from_partition",
    "offset": "from_offset",
    "timestamp": "stamped",
}


@dataclass
class Desk:
    """A table, a topic, and batches between them."""

    local: LocalCatalog
    table: Table
    source: SourcePlan
    topic: str

    @property
    def start(self) -> TableStart:
        return TableStart(
            table=".".join(self.table.name()),
            uuid=str(self.table.metadata.table_uuid),
            schema_id=self.table.schema().schema_id,
            spec_id=self.table.spec().spec_id,
            file_prefix=f"{self.table.location()}/data/nonce",
        )

    def plan(self) -> WriterPlan:
        return load_table_and_plan(self.local.catalog, self.start, self.source)

    def batch(self, ends: Mapping[int, int], number: int = 1) -> Batch:
        ranges = {TopicPartition(self.topic, at): OffsetRange(0, end) for at, end in ends.items()}
        transaction = TransactionId(Epoch(1), TransactionNumber(1))
        return Batch(number, transaction, self.start, ranges, 1 << 27)

    def write(self, ends: Mapping[int, int]) -> BatchWritten:
        return write_ranges(self.plan(), self.batch(ends))

    def files(self) -> list[Path]:
        return list(self.local.warehouse.rglob("*.parquet"))


@pytest.fixture
def desk(
    sqlite_catalog: LocalCatalog, bootstrap: str, topic_factory: TopicFactory
) -> Callable[..., Desk]:
    def made(schema: Schema = SCHEMA, partitions: int = 1, **source: Any) -> Desk:
        table = sqlite_catalog.catalog.create_table("db.t", schema)
        plan = SourcePlan({"bootstrap.servers": bootstrap}, **source)
        return Desk(sqlite_catalog, table, plan, topic_factory(partitions))

    return made


def event(number: int, **more: Any) -> bytes:
    at = f"2026-08-{1 + number % 3:02d}T00:00:00Z"
    return json.dumps({"id": number, "at": at, "zone": f"z{number % 7}", **more}).encode()


def rows_of(written: BatchWritten) -> list[dict[str, Any]]:
    tables = [pq.ParquetFile(file.path.removeprefix("file://")).read() for file in written.files]
    return list(pa.concat_tables(tables).to_pylist()) if tables else []


def test_every_record_of_the_ranges_is_in_the_files_once(
    desk: Callable[..., Desk], bootstrap: str
) -> None:
    here = desk(schema=PLACES, partitions=3, record_columns=PLACE_COLUMNS)
    for partition in range(3):
        values = [event(number) for number in range(20_000)]
        produce(bootstrap, here.topic, values, partition, timestamp=1_785_585_600_000 + partition)
    ends = {0: 20_000, 1: 12_345, 2: 0}
    written = here.write(ends)
    rows = rows_of(written)
    places = {(row["from_topic"], row["from_partition"], row["from_offset"]) for row in rows}
    assert places == {(here.topic, p, offset) for p, end in ends.items() for offset in range(end)}
    assert len(rows) == len(places) == sum(file.records for file in written.files)
    assert all(row["id"] == row["from_offset"] for row in rows)
    assert {row["stamped"].timestamp() for row in rows} == {1_785_585_600.0, 1_785_585_600.001}
    sizes = [sum(len(event(number)) for number in range(end)) for end in ends.values()]
    assert written.partitions == {
        TopicPartition(here.topic, 0): PartitionResult(
            OffsetRange(0, 20_000), 20_000, sizes[0], 1_785_585_600_000
        ),
        TopicPartition(here.topic, 1): PartitionResult(
            OffsetRange(0, 12_345), 12_345, sizes[1], 1_785_585_600_001
        ),
        TopicPartition(here.topic, 2): PartitionResult(OffsetRange(0, 0), 0, 0, None),
    }


def test_partitions_of_the_table_get_files_of_their_own(
    desk: Callable[..., Desk], bootstrap: str
) -> None:
    here = desk()
    with here.table.update_spec() as update:
        update.add_field("at", DayTransform(), "at_day")
    produce(bootstrap, here.topic, [event(number) for number in range(3000)])
    written = here.write({0: 3000})
    folders = [
        file.path.removeprefix(f"{here.start.file_prefix}/").split("/")[0] for file in written.files
    ]
    assert sorted(folders) == [f"at_day=2026-08-0{day}" for day in (1, 2, 3)]
    assert [file.records for file in written.files] == [1000] * 3
    specs = {FileDetail.decode(file.detail).spec_id for file in written.files}
    assert specs == {here.table.spec().spec_id}


def test_a_poison_record_is_named_and_leaves_no_file(
    desk: Callable[..., Desk], bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With the smallest buffer, files are being written when the bad record comes.
    monkeypatch.setattr("headgate.data_plane.write.table_outlets.BUFFER_BYTES", 1)
    here = desk()
    values = [event(number) for number in range(20_000)]
    values[15_000] = event(15_000, zone=5)
    produce(bootstrap, here.topic, values)
    with pytest.raises(PoisonRecord) as caught:
        here.write({0: 20_000})
    assert f"{here.topic} partition 0 offset 15000: zone: 5 is not text" in caught.value.message
    assert '"id": 15000' in caught.value.message
    assert here.files() == []
    assert len(rows_of(here.write({0: 15_000}))) == 15_000


def test_tombstones_stop_the_sink_unless_told_otherwise(
    desk: Callable[..., Desk], bootstrap: str
) -> None:
    here = desk()
    produce(bootstrap, here.topic, [event(0), None, event(2)], key="k")
    with pytest.raises(PoisonRecord, match="offset 1: has no value"):
        here.write({0: 3})
    here.source = SourcePlan(here.source.kafka, handling=Handling(tombstones=Disposal.SKIP))
    written = here.write({0: 3})
    assert [row["id"] for row in rows_of(written)] == [0, 2]
    found = written.partitions[TopicPartition(here.topic, 0)]
    assert (found.records, found.skipped, found.bad) == (2, 1, 0)


def test_ranges_without_records_make_no_file(desk: Callable[..., Desk]) -> None:
    here = desk()
    assert here.write({0: 0}).files == ()


def test_another_topic_of_the_same_name_leaves_no_file(
    desk: Callable[..., Desk], bootstrap: str
) -> None:
    here = desk()
    here.source = SourcePlan(here.source.kafka, {here.topic: TopicId("old")})
    produce(bootstrap, here.topic, [event(0)])
    with pytest.raises(TopicRecreated):
        here.write({0: 1})
    assert here.files() == []


def test_a_folder_that_cannot_be_written_is_a_failed_write(
    desk: Callable[..., Desk], bootstrap: str
) -> None:
    here = desk()
    produce(bootstrap, here.topic, [event(0)])
    folder = here.local.warehouse / "db" / "t"
    (folder / "data").write_text("not a folder")
    with pytest.raises(WriteFailed, match=r"db\.t"):
        here.write({0: 1})


def test_an_abandoned_batch_stops_and_leaves_no_file(
    desk: Callable[..., Desk], bootstrap: str
) -> None:
    here = desk()
    produce(bootstrap, here.topic, [event(0)])
    with pytest.raises(BatchAbandoned):
        write_ranges(here.plan(), here.batch({0: 1}), abandoned=lambda: True)
    assert here.files() == []


@pytest.fixture
def writer_of() -> Iterator[Callable[[Desk], InProcessWriter]]:
    writers: list[InProcessWriter] = []

    def made(desk: Desk) -> InProcessWriter:
        writers.append(
            InProcessWriter(
                lambda batch, abandoned: write_ranges(desk.plan(), batch, abandoned=abandoned)
            )
        )
        return writers[-1]

    yield made
    for writer in writers:
        writer.close()


def test_the_in_process_writer_gives_each_outcome_once(
    desk: Callable[..., Desk], bootstrap: str, writer_of: Callable[[Desk], InProcessWriter]
) -> None:
    here = desk()
    produce(bootstrap, here.topic, [event(0), b"poison"])
    writer = writer_of(here)
    writer.submit(here.batch({0: 1}, number=7))
    outcome = writer.wait_for_outcome(60_000)
    assert isinstance(outcome, BatchWritten)
    assert outcome.number == 7
    assert writer.wait_for_outcome(0) is None
    writer.submit(here.batch({0: 2}, number=8))
    failed = writer.wait_for_outcome(60_000)
    assert isinstance(failed, BatchFailed)
    assert failed.number == 8
    assert isinstance(failed.fatal, PoisonRecord)
    assert f"{here.topic} partition 0 offset 1" in failed.reason


def test_an_abandoned_batchs_outcome_is_dropped(
    desk: Callable[..., Desk], bootstrap: str, writer_of: Callable[[Desk], InProcessWriter]
) -> None:
    here = desk()
    produce(bootstrap, here.topic, [event(0)])
    writer = writer_of(here)
    writer.submit(here.batch({0: 1}, number=1))
    writer.submit(here.batch({0: 1}, number=2))
    outcome = writer.wait_for_outcome(60_000)
    assert isinstance(outcome, BatchWritten)
    assert outcome.number == 2
    assert writer.wait_for_outcome(0) is None


def test_a_table_that_is_gone_fails_the_batch_for_good(
    desk: Callable[..., Desk], writer_of: Callable[[Desk], InProcessWriter]
) -> None:
    here = desk()
    batch = here.batch({0: 0})
    here.local.catalog.drop_table("db.t")
    writer = writer_of(here)
    writer.submit(batch)
    failed = writer.wait_for_outcome(60_000)
    assert isinstance(failed, BatchFailed)
    assert isinstance(failed.fatal, TableChanged)


def test_a_plan_travels_to_other_processes(desk: Callable[..., Desk]) -> None:
    plan = desk().plan()
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_a_matching_topic_id_is_fine(desk: Callable[..., Desk], bootstrap: str, admin: Any) -> None:
    here = desk()
    here.source = SourcePlan(here.source.kafka, {here.topic: topic_id(admin, here.topic)})
    produce(bootstrap, here.topic, [event(0)])
    assert len(rows_of(here.write({0: 1}))) == 1
