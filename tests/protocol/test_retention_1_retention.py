"""RETENTION-1: snapshots expire as the owner asked; what a ref or a sink's lineage rests on
stays."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import RemoveSnapshotsUpdate, update_table_metadata

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import Lineage
from headgate.tables.iceberg.maintenance.snapshot_selection import (
    GC_ENABLED,
    KEEP_MIN,
    MAX_AGE_MS,
    select_expirable_snapshots,
)
from headgate.tables.iceberg.tag_lineage import compare_branch_with_tag

SECOND = 1000
NOW = 10 * SECOND
ONE_LINE = {number: number - 1 or None for number in range(1, 11)}  # 1 to 10, one per second

Ref = dict[str, Any]


def branch(head: int, **own: int) -> Ref:
    return {"snapshot-id": head, "type": "branch", **own}


def tag(at: int) -> Ref:
    return {"snapshot-id": at, "type": "tag"}


def table(
    parents: Mapping[int, int | None], refs: Mapping[str, Ref], **asked: object
) -> TableMetadata:
    names = {"age": MAX_AGE_MS, "count": KEEP_MIN, "gc": GC_ENABLED}
    snapshots = [
        Snapshot(
            snapshot_id=number,
            parent_snapshot_id=parent,
            sequence_number=number,
            timestamp_ms=number * SECOND,
            manifest_list=f"list-{number}",
            summary=Summary(Operation.APPEND),
        )
        for number, parent in parents.items()
    ]
    return TableMetadataV2(
        location="file:///table",
        table_uuid=uuid.UUID(int=1),
        last_updated_ms=NOW,
        last_column_id=0,
        last_sequence_number=len(parents),
        schemas=[Schema()],
        current_schema_id=0,
        partition_specs=[UNPARTITIONED_PARTITION_SPEC],
        properties={names[name]: str(value) for name, value in asked.items()},
        snapshots=snapshots,
        current_snapshot_id=refs["main"]["snapshot-id"],
        refs={name: SnapshotRef(**ref) for name, ref in refs.items()},
    )


def gone(metadata: TableMetadata, now_ms: int = NOW) -> list[int]:
    return [snapshot.snapshot_id for snapshot in select_expirable_snapshots(metadata, now_ms)]


@pytest.mark.parametrize("asked", [{}, {"age": 0, "count": 1, "gc": "false"}])
def test_nothing_expires_unless_the_owner_asks(asked: dict[str, object]) -> None:
    assert gone(table(ONE_LINE, {"main": branch(10)}, **asked), NOW * 10**9) == []


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"age": 3 * SECOND}, [1, 2, 3, 4, 5, 6]),
        ({"age": 3 * SECOND, "count": 8}, [1, 2]),
        ({"age": 9 * SECOND, "count": 2}, []),
        ({"age": 0, "count": 0}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"count": 3}, []),  # for then Iceberg's own age counts: five days
    ],
)
def test_young_or_few_snapshots_stay(asked: dict[str, object], expected: list[int]) -> None:
    assert gone(table(ONE_LINE, {"main": branch(10)}, **asked)) == expected


def test_a_count_alone_goes_with_icebergs_age() -> None:
    five_days = 5 * 24 * 3600 * SECOND
    metadata = table(ONE_LINE, {"main": branch(10)}, count=3)

    assert gone(metadata, five_days + 5 * SECOND) == [1, 2, 3, 4]
    assert gone(metadata, five_days * 2) == [1, 2, 3, 4, 5, 6, 7]


def test_a_property_that_is_no_number_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="a day"):
        gone(table(ONE_LINE, {"main": branch(10)}, age="a day"))


def test_a_branch_asks_for_itself() -> None:
    forked = {**ONE_LINE, 9: 4, 10: 9}  # main: 1 to 8; audit: 1 to 4, 9, 10
    own = {"max-snapshot-age-ms": 1, "min-snapshots-to-keep": 3}

    refs = {"main": branch(8), "audit": branch(10, **own)}
    assert gone(table(forked, refs)) == []  # main has not asked, and holds 1 to 4
    refs = {"main": branch(8, **own), "audit": branch(10, **own)}
    assert gone(table(forked, refs)) == [1, 2, 3, 5]
    assert gone(table(forked, refs, age=10**9)) == [1, 2, 3, 5]


def test_what_a_tag_holds_stays() -> None:
    refs = {"main": branch(10), "release": tag(2), "headgate-sink": tag(10)}
    assert gone(table(ONE_LINE, refs, age=0)) == [1, 3, 4, 5, 6, 7, 8, 9]


def test_a_tag_holds_nothing_of_the_way_to_it() -> None:
    """It is no branch, whose newest snapshots stay by their count."""
    rolled_back = {1: None, 2: 1, 3: 2, 4: 3, 5: 2}
    refs = {"main": branch(5), "somebody's": tag(4)}
    assert gone(table(rolled_back, refs, age=SECOND, count=10)) == [3]


def test_the_way_to_an_idle_sinks_tag_stays() -> None:
    refs = {"main": branch(10), "headgate-sink": tag(10), "headgate-idle": tag(6)}
    metadata = table(ONE_LINE, refs, age=0)
    removed = gone(metadata)

    assert removed == [1, 2, 3, 4, 5]
    after = update_table_metadata(metadata, (RemoveSnapshotsUpdate(snapshot_ids=removed),))
    for each in (metadata, after):
        assert compare_branch_with_tag(each, "main", SinkName("idle")) is Lineage.CONTAINS_TAG


def test_a_sinks_tag_holds_the_way_on_its_own_branch() -> None:
    forked = {**ONE_LINE, 9: 2, 10: 9}  # main: 1 to 8; audit: 1, 2, 9, 10
    refs = {"main": branch(8), "audit": branch(10), "headgate-idle@audit": tag(2)}
    assert gone(table(forked, refs, age=0)) == [1, 3, 4, 5, 6, 7]


def test_nothing_of_a_branch_expires_while_a_sink_stands_rolled_back_on_it() -> None:
    rolled_back = {**ONE_LINE, 10: 7}  # main: 1 to 7, 10; the sink committed 8 and 9
    refs = {"main": branch(10), "headgate-sink": tag(9), "headgate-other": tag(10)}
    assert gone(table(rolled_back, refs, age=0)) == [8]


def test_a_branch_that_is_gone_or_went_back_is_told_from_metadata_alone() -> None:
    refs = {"main": branch(10), "headgate-idle@audit": tag(6)}
    assert (
        compare_branch_with_tag(table(ONE_LINE, refs), "audit", SinkName("idle"))
        is Lineage.ROLLED_BACK
    )
    rolled_back = {**ONE_LINE, 10: 7}
    refs = {"main": branch(10), "headgate-sink": tag(9)}
    assert (
        compare_branch_with_tag(table(rolled_back, refs), "main", SinkName("sink"))
        is Lineage.ROLLED_BACK
    )
    refs = {"main": branch(10), "headgate-sink": tag(7)}
    assert (
        compare_branch_with_tag(table(rolled_back, refs), "main", SinkName("sink"))
        is Lineage.CONTAINS_TAG
    )
    expired = {number: parent for number, parent in ONE_LINE.items() if number not in (8, 9)}
    metadata = table(expired, {"main": branch(10), "headgate-sink": tag(7)})
    assert compare_branch_with_tag(metadata, "main", SinkName("sink")) is Lineage.UNDECIDABLE


def test_what_is_on_no_branch_goes_by_its_age_alone() -> None:
    staged = {**ONE_LINE, 5: 1, 6: 4, 8: 1}  # main: 1 to 4, 6, 7, 9 has parent 8
    staged[9] = 7
    refs = {"main": branch(10)}
    assert gone(table(staged, refs, age=4 * SECOND, count=100)) == [5]
    assert gone(table(staged, refs, count=100)) == []
    own = {"main": branch(10, **{"max-snapshot-age-ms": 1, "min-snapshots-to-keep": 1})}
    assert not {5, 8} & set(gone(table(staged, own))), "the branch asked for its own only"


def test_a_clock_that_is_ahead_takes_snapshots_early_and_nothing_that_is_needed() -> None:
    """Neither a ref, nor what lies between a branch's head and a sink's tag."""
    refs = {
        "main": branch(10),
        "release": tag(2),
        "headgate-sink": tag(10),
        "headgate-idle": tag(7),
    }
    metadata = table(ONE_LINE, refs, age=60 * SECOND)
    assert gone(metadata) == []
    assert gone(metadata, NOW + 10**12) == [1, 3, 4, 5, 6]


def test_a_clock_that_is_behind_takes_none() -> None:
    assert gone(table(ONE_LINE, {"main": branch(10)}, age=1), now_ms=0) == []
