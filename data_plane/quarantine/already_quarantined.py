"""Finds records that the quarantine holds already, where a range is read again (rule
QUARANTINE-3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    LessThan,
    Or,
)
from pyiceberg.table import Table

from headgate.control_protocol.errors import TagMissing
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.table_history import TableReader

if TYPE_CHECKING:
    from headgate.data_plane.batch.writer_task_plan import SourcePlan

_FIELDS = ("topic", "topic_id", "partition", "offset", "error_class")

RangesReadAgain = Mapping[TopicPartition, OffsetRange]
OffsetsByClass = Mapping[str | None, tuple[int, ...]]
"""Of one partition, by ``error_class``; ``None`` where the quarantine has no such column."""
Rows = Callable[[TableStart, "SourcePlan", RangesReadAgain], Iterable[Mapping[str, Any]]]
"""Reads ``_FIELDS`` of the sink's rows in a quarantine that are within the ranges."""


def read_quarantined_offsets(
    batch: Batch, source: SourcePlan, read: Rows
) -> dict[TopicPartition, OffsetsByClass]:
    """Return what the quarantine already holds of the batch's ranges, if it is ahead
    (QUARANTINE-3).

    Read from the table, not computed again: under another schema or setting other records may be
    bad now, and each must stay in the one table that it is in. Other sinks' rows in the same
    quarantine do not count. Raises ``TagMissing`` besides what loading a table may raise.
    """
    start = batch.quarantine
    ahead = start.offsets if start else {}
    again = {at: span for at, span in batch.ranges.items() if span.begin < ahead.get(at, 0)}
    if start is None or not again:
        return {}
    result: dict[TopicPartition, dict[str | None, list[int]]] = {}
    for row in read(start, source, again):
        if row["topic_id"] == batch.topic_ids.get(row["topic"], row["topic_id"]):
            at = TopicPartition(row["topic"], row["partition"])
            classes = result.setdefault(at, {})
            classes.setdefault(row.get("error_class"), []).append(row["offset"])
    return {
        at: {name: tuple(sorted(offsets)) for name, offsets in classes.items()}
        for at, classes in result.items()
    }


def read_quarantined_from_iceberg(
    table: Table, source: SourcePlan, ranges: RangesReadAgain
) -> list[dict[str, Any]]:
    """Return them as of the sink's tag. Raises ``TagMissing``."""
    ref = table.metadata.refs.get(source.handling.tag)
    if ref is None:
        raise TagMissing(
            f"{'.'.join(table.name())} has no tag {source.handling.tag}, but holds bad records "
            "beyond the table's offsets: they cannot be told from new ones",
            "restore the tag on the sink's newest snapshot, or set coordinator.on_tag_missing to "
            "follow-table and start again",
        )
    places = [range_filter(at, span) for at, span in ranges.items()]
    anywhere = places[0] if len(places) == 1 else Or(*places)
    wanted = And(EqualTo(term="sink", value=source.sink), anywhere)
    scan = table.scan(wanted, snapshot_id=ref.snapshot_id)
    present = scan.projection().column_names
    scan = scan.select(*(name for name in _FIELDS if name in present))
    result: list[dict[str, Any]] = scan.to_arrow().to_pylist()
    return result


def read_quarantined_from_reader(
    reader: TableReader, source: SourcePlan, ranges: RangesReadAgain
) -> Iterable[dict[str, Any]]:
    """Yield the current ones: nobody adds others of this sink before the ranges are read."""
    present = reader.columns()
    _, files = reader.scan([name for name in (*_FIELDS, "sink") if name in present])
    ours = pc.field("sink") == source.sink
    wanted = ours & reduce(or_, [_arrow_range_filter(at, span) for at, span in ranges.items()])
    for file in files:
        for batch in file.batches():
            yield from pa.Table.from_batches([batch]).filter(wanted).to_pylist()


def _arrow_range_filter(at: TopicPartition, span: OffsetRange) -> pc.Expression:
    place = (pc.field("topic") == at.topic) & (pc.field("partition") == at.partition)
    return place & (pc.field("offset") >= span.begin) & (pc.field("offset") < span.end)


def range_filter(at: TopicPartition, span: OffsetRange) -> BooleanExpression:
    """Return the filter for the quarantine's rows of a partition's range."""
    return And(
        EqualTo(term="topic", value=at.topic),
        EqualTo(term="partition", value=at.partition),
        GreaterThanOrEqual(term="offset", value=span.begin),
        LessThan(term="offset", value=span.end),
    )
