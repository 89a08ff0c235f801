"""Hudi tables that follow: a quarantine whose rows were decided by another Hudi table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_tables.world import ARCHIVED_SOON, HudiWorld

from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.errors import TableChanged
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Staging, Unknown
from headgate.control_protocol.testing.contract import SecondaryContract
from headgate.control_protocol.testing.contract.world import record, require_landed
from headgate.tables.hudi.append_table import STAGED_MS_MAX
from headgate.tables.hudi.secondary_table import HudiSecondary
from headgate.tables.hudi.write_configuration import KEY
from headgate.tables.neutral_schema import parse_declared_columns
from headgate.tables.staged_file_lists import StagedFileLists
from headgate.tables.unstaged_secondary_table import FileListSecondaryTable, FixedColumns

hudi = pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

pytestmark = pytest.mark.timeout(600)

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
ROW = {
    "topic": "trips",
    "topic_id": None,
    "partition": 3,
    "offset": 7,
    "timestamp": NOON,
    "key": b"k",
    "value": None,
    "headers": [{"key": "a", "value": b"\x00"}, {"key": "a", "value": None}],
    "error_class": "value",
    "table_name": None,
    "message": "no JSON",
    "sink": "sink",
    "epoch": 1,
    "transaction": 2,
}


class TestHudiSecondary(SecondaryContract):
    @pytest.fixture
    def world(self, tmp_path: Path, spark: Any, lock: dict[str, str]) -> HudiWorld:
        return HudiWorld(tmp_path, spark, lock, follows=True)


@pytest.fixture
def world(tmp_path: Path, spark: Any, lock: dict[str, str]) -> HudiWorld:
    return HudiWorld(tmp_path, spark, lock, follows=True, properties=ARCHIVED_SOON)


@pytest.fixture
def aside(tmp_path: Path, spark: Any, lock: dict[str, str]) -> Iterator[HudiWorld]:
    columns = parse_declared_columns(quarantine_declaration().columns)
    yield HudiWorld(tmp_path, spark, lock, follows=True, columns=columns)


def opened(world: HudiWorld) -> FileListSecondaryTable:
    table = world.open()
    assert isinstance(table, HudiSecondary)
    drafts = StagedFileLists(world.wanted.storage, world.wanted.location, SinkName("sink"))
    return FileListSecondaryTable(table, FixedColumns(table), drafts)


def drafted(
    world: HudiWorld, table: FileListSecondaryTable, number: int, *, epoch: int = 1
) -> PendingCommit:
    """What transaction ``number`` would owe: a file of that number."""
    draft = Staging(
        table.read(),
        TransactionId(Epoch(epoch), TransactionNumber(number)),
        Sender("member", f"incarnation-{epoch}"),
        (world.write_file(number),),
        since_ms=77,
    )
    (pending_commit,) = table.stage(draft)
    return pending_commit


def delivered(pending_commit: PendingCommit) -> CommitRecord:
    said = record(pending_commit.transaction.epoch, pending_commit.transaction.number)
    return replace(said, records=pending_commit.rows, primary="uuid-lead")


def delivers(table: FileListSecondaryTable, *pending_commits: PendingCommit) -> CommitOutcome:
    return table.commit(
        CommitAttempt(table.read(), delivered(pending_commits[-1]), pending_commits=pending_commits)
    )


def staged(world: HudiWorld) -> set[str]:
    return {path.name for path in world.staged.rglob("*.parquet")}


def test_what_is_pending_is_delivered_after_foreign_writes_clustering_and_archival(
    world: HudiWorld,
) -> None:
    pending = drafted(world, opened(world), 1)
    table = opened(world)
    for number in range(2, 9):
        require_landed(delivers(table, drafted(world, table, number)))
    world.append_foreign(20)
    world.compact()
    require_landed(delivers(opened(world), pending))
    assert world.visible_file_numbers() == [*range(1, 9), 20]
    found = hudi.HudiTableBuilder.from_base_uri(str(world.folder)).build().read()
    counted = Counter(n for batch in found for n in batch.column("number").to_pylist())
    assert counted == dict.fromkeys([*range(1, 9), 20], 3)


def test_who_delivers_rolls_back_first_what_another_delivery_left_pending(
    world: HudiWorld,
) -> None:
    """It could land behind this one's look at the table otherwise."""
    pending_commit = drafted(world, opened(world), 1)
    world.lose_next_answer(landed=False)
    assert isinstance(delivers(opened(world), pending_commit), Unknown)
    (pending,) = world.timeline("*.inflight")
    require_landed(delivers(opened(world), pending_commit))
    assert not pending.exists()
    (rollback,), (delivered_by,) = world.timeline("*.rollback"), world.timeline("*.commit")
    assert pending.name[:17] < rollback.name[:17] < delivered_by.name[:17]
    assert world.visible_file_numbers() == [1]


def test_staged_files_go_with_the_delivery_behind_theirs(world: HudiWorld) -> None:
    table = opened(world)
    pending_commits = [drafted(world, table, number) for number in (1, 2, 3)]
    assert len(staged(world)) == 3
    require_landed(delivers(table, pending_commits[0]))
    assert len(staged(world)) == 3
    require_landed(delivers(table, pending_commits[1]))
    assert len(staged(world)) == 2
    require_landed(delivers(table, pending_commits[2]))
    assert world.visible_file_numbers() == [1, 2, 3]


def test_what_a_draft_names_is_never_swept(world: HudiWorld) -> None:
    first = opened(world)
    pending, nobodys = drafted(world, first, 1), world.write_file(2)
    old = STAGED_MS_MAX / 1000 + 60
    for path in world.staged.rglob("*.parquet"):
        os.utime(path, (path.stat().st_mtime - old,) * 2)
    require_landed(delivers(opened(world), drafted(world, first, 3)))
    assert nobodys.path.rpartition("/")[2] not in staged(world)
    require_landed(delivers(opened(world), pending))
    assert world.visible_file_numbers() == [1, 3]


def test_files_that_are_gone_are_not_decided_and_not_delivered(world: HudiWorld) -> None:
    table = opened(world)
    pending = drafted(world, table, 1)
    for path in world.staged.rglob("*.parquet"):
        path.unlink()
    outcome = delivers(table, pending)
    assert isinstance(outcome, Unknown)
    assert "is gone" in outcome.reason
    lost = world.write_file(2)
    Path(lost.path.removeprefix("file://")).unlink()
    secondary = world.open()
    assert isinstance(secondary, HudiSecondary)
    with pytest.raises(TableChanged, match="is gone"):
        secondary.require_files_fit_and_exist((lost,))


def test_rows_of_a_quarantine_keep_their_headers_through_clustering(
    aside: HudiWorld,
) -> None:
    told = [{**ROW, "offset": number} for number in range(3)]
    schema = pa.schema(
        [
            *(pa.field(name, pa.string()) for name in ("topic", "topic_id")),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("timestamp", pa.timestamp("us", "UTC")),
            *(pa.field(name, pa.binary()) for name in ("key", "value")),
            pa.field("headers", pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))),
            *(pa.field(n, pa.string()) for n in ("error_class", "table_name", "message", "sink")),
            *(pa.field(name, pa.int64()) for name in ("epoch", "transaction")),
        ]
    )
    for number, row in enumerate(told, 1):
        files = aside.write(
            pa.Table.from_pylist([row], schema), f"{aside.place.participant_files_address}/data"
        )
        table = aside.open()
        require_landed(table.commit(CommitAttempt(table.read(), record(1, number), files)))
    for happens in (lambda: None, lambda: aside.compact(by="offset")):
        happens()
        for found in (by_spark(aside), by_rust(aside)):
            assert sorted(found, key=lambda row: row["offset"]) == told
    assert len(aside.timeline("*.replacecommit")) == 1


def test_a_secondary_s_rows_lie_in_their_partitions_under_its_record_key(
    tmp_path: Path, spark: Any, lock: dict[str, str]
) -> None:
    columns = Struct((Column("number", "long"), Column("row", "long")))
    world = HudiWorld(
        tmp_path,
        spark,
        lock,
        follows=True,
        columns=columns,
        partition_by=("number",),
        properties={KEY: "row"},
    )
    table = opened(world)
    for number in (1, 2):
        require_landed(delivers(table, drafted(world, table, number)))
    assert world.visible_file_numbers() == [1, 2]
    for number in (1, 2):
        (path,) = (world.folder / f"number={number}").glob("*.parquet")
        keys = pq.ParquetFile(path).read(["_hoodie_record_key"]).column(0).to_pylist()
        assert keys == ["0", "1", "2"]


def by_spark(world: HudiWorld) -> list[dict[str, Any]]:
    found = world.read().select(*ROW).collect()
    rows = [row.asDict(recursive=True) for row in found]
    return [plain(row) for row in rows]


def by_rust(world: HudiWorld) -> list[dict[str, Any]]:
    found = hudi.HudiTableBuilder.from_base_uri(str(world.folder)).build().read()
    return [plain(row) for batch in found for row in batch.select(list(ROW)).to_pylist()]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Values as they were told: Spark's octets are byte arrays, its times local."""
    at = row["timestamp"]
    octets = {name: row[name] and bytes(row[name]) for name in ("key", "value")}
    headers = [
        {"key": each["key"], "value": each["value"] and bytes(each["value"])}
        for each in row["headers"]
    ]
    return {**row, **octets, "headers": headers, "timestamp": at.astimezone(UTC)}
