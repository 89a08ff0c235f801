"""Reads which of the source's records a quarantine holds for a table, from a real one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyroaring import BitMap64

from headgate.control_protocol.commit_record import CommitRecord, Replayed
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.data_plane.quarantine.read_diverted_records import DivertedRecords

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
RECORD = CommitRecord(
    sink=SinkName("shop"),
    group_id="headgate-shop",
    transaction=TransactionId(Epoch(3), TransactionNumber(4)),
    coordinator=Sender("worker", "1"),
    offsets=Offsets({A0: 100, A1: 10**12, B0: 50}),
    topic_ids={"a": TopicId("id-of-a"), "b": TopicId("id-of-b")},
)
COLUMNS = pa.schema(
    [
        ("sink", pa.string()),
        ("error_class", pa.string()),
        ("table_name", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)


@pytest.fixture
def quarantine(tmp_path: Path) -> DivertedRecords:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("lake")
    table = catalog.create_table("lake.aside", COLUMNS)
    ours = ("shop", "table", "lake.clicks")
    files = (
        [(*ours, "a", "id-of-a", 1, offset) for offset in (10**12 - 1, 10**12, 3)],
        [(*ours, "a", "id-of-a", number, 7) for number in (0, 1)],
        [(*ours, "b", "id-of-b", 0, 5), (*ours, "a", "id-of-a", 0, 7)],
        [(*ours, "b", "id-before", 0, 6), (*ours, "gone", "id", 0, 1), (*ours, "b", None, 0, 8)],
        [("other", *ours[1:], "b", "id-of-b", 0, 9), ("shop", "value", ours[2], "b", "b", 0, 10)],
        [("shop", "table", "lake.orders", "b", "id-of-b", 0, 11)],
    )
    for rows in files:
        names = COLUMNS.names
        table.append(
            pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], COLUMNS)
        )
    table.refresh()
    return DivertedRecords(table, SinkName("shop"), "main", RECORD)


def test_each_offset_of_an_unchanged_topic_below_the_records_is_there_once(
    quarantine: DivertedRecords,
) -> None:
    assert quarantine.destination_tables() == ("lake.clicks", "lake.orders")
    found = quarantine.offsets_for_table("lake.clicks")
    assert found == {A0: BitMap64([7]), A1: BitMap64([3, 7, 10**12 - 1]), B0: BitMap64([5])}
    assert list(found) == [A0, A1, B0]
    assert quarantine.offsets_for_table("lake.none") == {}


def test_what_was_given_back_is_not_left(quarantine: DivertedRecords) -> None:
    held = {A0: BitMap64([7]), A1: BitMap64([3, 7]), B0: BitMap64([5])}
    assert quarantine.offsets_not_given_back(held, None) == held
    ids = {"a": TopicId("id-of-a"), "b": TopicId("id-before")}
    replayed = Replayed(Offsets({A0: 8, A1: 7, B0: 50}), ids)
    left = quarantine.offsets_not_given_back(held, replayed)
    assert left == {A1: BitMap64([7]), B0: BitMap64([5])}, "b was made again since"
    assert held[A1] == BitMap64([3, 7])
