"""Records that become no rows: refused, skipped or kept, each once, and with all that they were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from support.local_catalog import LocalCatalog, local_catalog

from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import (
    ConfigurationError,
    PoisonRecord,
    TagMissing,
    TooManyBadRecords,
)
from headgate.control_protocol.events import TableStart, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
    tag_name,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import (
    Batch,
    BatchWritten,
    CommitAttempt,
    Landed,
    PartitionResult,
)
from headgate.control_protocol.quarantine_policy import BadRecordLimits, Disposal
from headgate.data_plane.batch.writer_task_plan import Handling, Plans, SourcePlan
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.write_batch import write_chunks
from headgate.kafka.push_source import Record
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import create_table_if_missing

SINK, TOPIC, TOPIC_ID = SinkName("sink"), "trips", TopicId("id-of-trips")
P0, P1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
KEPT = Handling(Disposal.QUARANTINE, Disposal.QUARANTINE, tag=tag_name(SINK))
SENDER, NONE = Sender("m", "1"), Offsets()
STAMP_MS = 1_785_585_600_123


@dataclass
class Desk:
    """A table with its quarantine, and batches of records that were put."""

    local: LocalCatalog
    handling: Handling = KEPT
    record_columns: Mapping[str, str] = field(default_factory=dict)
    key_format: str = ""

    @property
    def source(self) -> SourcePlan:
        return SourcePlan(
            {},
            {TOPIC: TOPIC_ID},
            record_columns=self.record_columns,
            key_format_name=self.key_format,
            handling=self.handling,
            sink=SINK,
        )

    def start(self, name: str, ahead: Offsets | None = None) -> TableStart:
        table = self.local.catalog.load_table(name)
        return TableStart(
            table=name,
            uuid=str(table.metadata.table_uuid),
            schema_id=table.schema().schema_id,
            spec_id=table.spec().spec_id,
            file_prefix=f"{table.location()}/data/7",
            offsets=ahead or Offsets(),
        )

    def write(
        self,
        *partitions: list[bytes | None],
        ahead: Offsets | None = None,
        records: list[list[Record]] | None = None,
        named: bool = True,
    ) -> BatchWritten:
        """The values of partitions 0, 1, ... from offset 0 on."""
        found = records or [
            [
                Record(
                    TOPIC, number, offset, STAMP_MS, value, b"key", [("h", b"\xff"), ("n", None)]
                )
                for offset, value in enumerate(values)
            ]
            for number, values in enumerate(partitions)
        ]
        batch = Batch(
            number=1,
            transaction=TransactionId(Epoch(3), TransactionNumber(7)),
            table=self.start("db.t"),
            ranges={
                TopicPartition(TOPIC, number): OffsetRange(0, len(some))
                for number, some in enumerate(found)
            },
            target_file_bytes=1 << 27,
            topic_ids={TOPIC: TOPIC_ID},
            quarantine=self.start("db.q", ahead) if named else None,
        )
        plan = Plans(self.local.catalog).load_plan(batch, self.source)
        return write_chunks(plan, batch, [chunk_of(found)])

    def commit(self, files: tuple[WrittenFile, ...]) -> None:
        """Into the quarantine, under the sink's tag."""
        aside = IcebergTable(self.local.catalog, "db.q", SINK)
        record = CommitRecord(
            SINK, "g", TransactionId(Epoch(1), TransactionNumber(0)), SENDER, NONE
        )
        claimed = aside.commit(CommitAttempt(aside.read(), record))
        assert isinstance(claimed, Landed)
        again = replace(record, transaction=TransactionId(Epoch(1), TransactionNumber(1)))
        assert isinstance(aside.commit(CommitAttempt(claimed.view, again, files)), Landed)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    local = local_catalog(tmp_path)
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "k", LongType()),
    )
    local.catalog.create_table("db.t", schema)
    create_table_if_missing(local.catalog, "db.q", quarantine_declaration())
    yield Desk(local)
    local.catalog.close()


def rows_of(files: tuple[WrittenFile, ...]) -> list[dict[str, Any]]:
    tables = [pq.ParquetFile(file.path.removeprefix("file://")).read() for file in files]
    return list(pa.concat_tables(tables).to_pylist()) if tables else []


def good(number: int) -> bytes:
    return b'{"id": %d}' % number


def test_a_bad_record_is_kept_with_all_that_it_was(desk: Desk) -> None:
    written = desk.write([good(0), b"{broken", good(2)], [None, good(1)])

    assert [row["id"] for row in rows_of(written.files)] == [0, 2, 1]
    broken, tombstone = sorted(rows_of(written.quarantined), key=lambda row: row["partition"])
    assert "not a JSON object" in broken.pop("message")
    stamp = datetime(2026, 8, 1, 12, 0, 0, 123_000, UTC)
    assert broken == {
        "topic": TOPIC,
        "topic_id": TOPIC_ID,
        "partition": 0,
        "offset": 1,
        "timestamp": stamp,
        "key": b"key",
        "value": b"{broken",
        "headers": [{"key": "h", "value": b"\xff"}, {"key": "n", "value": None}],
        "error_class": "value",
        "table_name": None,
        "sink": SINK,
        "epoch": 3,
        "transaction": 7,
    }
    assert (tombstone["value"], tombstone["error_class"]) == (None, "tombstone")


def test_every_record_counts_once(desk: Desk) -> None:
    written = desk.write([good(0), b"{broken", None], [b"[]", good(1)])

    results = {
        at: (r.records, r.quarantined, r.skipped, r.bad) for at, r in written.partitions.items()
    }
    assert results == {P0: (1, 2, 0, 1), P1: (1, 1, 0, 1)}
    assert sum(file.records for file in written.quarantined) == 3


def test_a_bad_key_takes_its_row_with_it(desk: Desk) -> None:
    desk.record_columns = {"key": "k"}
    keys = [b"1", b"no number", b"3", b"4"]
    values = [good(0), good(1), b"{broken", good(3)]
    records = [
        Record(TOPIC, 0, offset, -1, value, key)
        for offset, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    desk.key_format = "string"
    written = desk.write(records=[records])

    assert [(row["id"], row["k"]) for row in rows_of(written.files)] == [(0, 1), (3, 4)]
    aside = sorted(rows_of(written.quarantined), key=lambda row: row["offset"])
    assert [(row["offset"], row["error_class"]) for row in aside] == [
        (1, "key or headers"),
        (2, "value"),
    ]


def test_skipped_ones_are_counted_and_nowhere(desk: Desk) -> None:
    desk.handling = Handling(Disposal.SKIP, Disposal.SKIP)
    written = desk.write([good(0), b"{broken", None])

    assert written.partitions[P0] == PartitionResult(
        OffsetRange(0, 3), 1, 16, STAMP_MS, skipped=2, bad=1
    )
    assert written.quarantined == ()


@pytest.mark.parametrize("value", [b"{broken", None])
def test_by_default_the_sink_stops_before_them(desk: Desk, value: bytes | None) -> None:
    desk.handling = Handling()
    with pytest.raises(PoisonRecord, match="trips partition 0 offset 1: "):
        desk.write([good(0), value])
    assert not list(desk.local.warehouse.rglob("*.parquet"))


def test_what_the_quarantine_holds_already_goes_into_neither_table(desk: Desk) -> None:
    """Whether a record is bad may have changed since: where it is, it stays."""
    first = desk.write([b"{broken", good(1), b"{broken", good(3)])
    desk.commit(first.quarantined)
    again = desk.write([good(100), b"[]", good(102), good(3)], ahead=Offsets({P0: 3}))

    assert [row["id"] for row in rows_of(again.files)] == [3]
    assert [row["offset"] for row in rows_of(again.quarantined)] == [1]
    result = again.partitions[P0]
    assert (result.records, result.quarantined, result.bad) == (1, 3, 3)


def overwrite_column(desk: Desk, column: str, value: str) -> None:
    """Give all rows of the quarantine this value, under the sink's tag."""
    table = desk.local.catalog.load_table("db.q")
    rows = table.scan().to_arrow()
    other = rows.set_column(rows.column_names.index(column), column, pa.array([value] * len(rows)))
    table.overwrite(other.cast(table.schema().as_arrow()))
    tagged = table.refresh().current_snapshot()
    assert tagged
    table.manage_snapshots().remove_tag(tag_name(SINK)).commit()
    table.manage_snapshots().create_tag(tagged.snapshot_id, tag_name(SINK)).commit()


@pytest.mark.parametrize("error_class", ["table", "route", "value"])
def test_quarantine_5_what_the_quarantine_holds_without_being_bad_counts_for_no_limit(
    desk: Desk, error_class: str
) -> None:
    """A suspended table's records, read again after a rollback, are no reason to stop (HG-211)."""
    first = desk.write([b"{", b"{", b"{"])
    desk.commit(first.quarantined)
    overwrite_column(desk, "error_class", error_class)
    desk.handling = replace(KEPT, limits=BadRecordLimits(records_max=1))
    records: list[bytes | None] = [b"{", b"{", b"{", b"{", good(4)]
    if error_class == "value":
        with pytest.raises(TooManyBadRecords):
            desk.write(records, ahead=Offsets({P0: 3}))
        return
    result = desk.write(records, ahead=Offsets({P0: 3})).partitions[P0]
    assert (result.records, result.quarantined, result.bad) == (1, 4, 1)


def test_quarantine_3_one_that_lacks_the_class_says_what_it_holds(desk: Desk) -> None:
    desk.commit(desk.write([b"{", good(1)]).quarantined)
    table = desk.local.catalog.load_table("db.q")
    with table.update_schema() as schema:
        schema.delete_column("error_class")
    result = desk.write([b"{", good(1)], ahead=Offsets({P0: 2})).partitions[P0]
    assert (result.records, result.quarantined, result.bad) == (1, 1, 1)


@pytest.mark.parametrize("column", ["topic_id", "sink"])
def test_records_of_another_topic_or_sink_do_not_count(desk: Desk, column: str) -> None:
    first = desk.write([b"{broken", good(1)])
    desk.commit(first.quarantined)
    overwrite_column(desk, column, "another")
    again = desk.write([b"{broken", good(1)], ahead=Offsets({P0: 2}))
    assert [row["offset"] for row in rows_of(again.quarantined)] == [0]


def test_without_its_tag_nobody_knows_what_the_quarantine_holds(desk: Desk) -> None:
    desk.write([good(0)], ahead=Offsets())
    with pytest.raises(TagMissing, match=r"db\.q has no tag headgate-sink"):
        desk.write([good(0)], ahead=Offsets({P0: 1}))


@pytest.mark.parametrize("policy", [Disposal.SKIP, Disposal.QUARANTINE])
def test_too_many_stop_the_sink_and_leave_no_file(desk: Desk, policy: Disposal) -> None:
    limits = BadRecordLimits(per_thousand_max=500, sample_records_min=4)
    desk.handling = Handling(policy, Disposal.SKIP, limits, tag_name(SINK))
    half: list[bytes | None] = [b"{", good(1), b"{", good(3)]
    assert desk.write(half).partitions[P0].bad == 2
    with pytest.raises(TooManyBadRecords, match=r"3 of 5 records could not .*offset 0"):
        desk.write([*half, b"{"])


def test_a_number_of_them_is_enough_without_a_sample(desk: Desk) -> None:
    desk.handling = replace(KEPT, limits=BadRecordLimits(records_max=1))
    assert desk.write([b"{"]).partitions[P0].bad == 1
    with pytest.raises(TooManyBadRecords, match="2 records could not be converted, the limit is 1"):
        desk.write([b"{", b"{"])


@pytest.mark.parametrize("excerpts", [True, False])
def test_too_many_show_nothing_of_a_record_when_told_so(desk: Desk, excerpts: bool) -> None:
    limits = BadRecordLimits(records_max=1)
    desk.handling = replace(KEPT, limits=limits, excerpts=excerpts)
    with pytest.raises(TooManyBadRecords, match="trips partition 0 offset 0: ") as stopped:
        desk.write([b"{sesame", b"{open"])
    assert ("sesame" in str(stopped.value)) is excerpts


def test_tombstones_are_not_bad(desk: Desk) -> None:
    desk.handling = replace(KEPT, limits=BadRecordLimits(records_max=1))
    assert desk.write([None, None, None]).partitions[P0].quarantined == 3


def test_a_tombstone_that_stops_the_sink_names_its_own_policy(desk: Desk) -> None:
    desk.handling = Handling(Disposal.SKIP, Disposal.FAIL)
    with pytest.raises(PoisonRecord, match=r"offset 1: has no value \(a tombstone\) \(") as stopped:
        desk.write([good(0), None])
    assert "choose another quarantine.tombstones" in stopped.value.hint


def test_a_coordinator_that_knows_no_quarantine_is_named(desk: Desk) -> None:
    with pytest.raises(ConfigurationError, match="names no quarantine"):
        desk.write([b"{"], named=False)
    assert desk.write([good(1)], named=False).quarantined == ()


def test_a_quarantine_of_others_may_have_more_columns_and_partitions(desk: Desk) -> None:
    table = desk.local.catalog.load_table("db.q")
    with table.update_schema() as schema:
        schema.add_column("seen_by", LongType())
    with table.update_spec() as spec:
        spec.add_identity("partition")
    written = desk.write([b"{"], [b"{"])
    assert len(written.quarantined) == 2
    assert {row["seen_by"] for row in rows_of(written.quarantined)} == {None}


def test_one_that_lacks_a_column_gets_the_others(desk: Desk) -> None:
    table = desk.local.catalog.load_table("db.q")
    with table.update_schema() as schema:
        schema.delete_column("headers")
    (row,) = rows_of(desk.write([b"{"]).quarantined)
    assert "headers" not in row
    assert row["value"] == b"{"


@pytest.mark.parametrize("policy", [Disposal.QUARANTINE, Disposal.SKIP])
def test_the_log_names_the_first_bad_record_of_a_batch(
    desk: Desk, policy: Disposal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    desk.handling = replace(desk.handling, policy=policy)
    desk.write([good(0), b"{broken", good(2)], [good(1), b"[]"])
    (said,) = [r for r in caplog.records if getattr(r, "headgate_event", "") == "records.bad"]
    assert said.getMessage().startswith("2 bad records in a batch, the first: trips partition 0 ")
    assert "offset 1: " in said.getMessage()
    desk.write([good(0)])
    assert sum(getattr(r, "headgate_event", "") == "records.bad" for r in caplog.records) == 1


def test_a_batch_is_read_to_its_end_for_the_first_record_of_each_partition_that_stops_the_sink(
    desk: Desk,
) -> None:
    """BATCH-2: or the batch would be written again for each partition of a topic that went bad."""
    desk.handling = Handling()
    with pytest.raises(PoisonRecord, match="trips partition 0 offset 1: ") as stopped:
        desk.write([good(0), b"{", None], [good(0), good(1)], [good(0), None, b"{"])
    assert stopped.value.first == Offsets({P0: 1, TopicPartition(TOPIC, 2): 1})
    assert not list(desk.local.warehouse.rglob("*.parquet"))


def test_an_earlier_record_is_named_whichever_is_met_first(desk: Desk) -> None:
    """Tombstones are sifted before values are read."""
    desk.handling = Handling()
    with pytest.raises(PoisonRecord, match="offset 1: ") as stopped:
        desk.write([good(0), b"{", good(2), None])
    assert stopped.value.first == Offsets({P0: 1})
