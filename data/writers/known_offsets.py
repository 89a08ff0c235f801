"""Bad records that the quarantine holds already, where a range is read again (rule Q5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from headgate.data.writers.plan import SourcePlan


def known_offsets(
    batch: Batch, source: SourcePlan, load: Callable[[TableStart], Table]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Of the batch's ranges, what the quarantine holds already: only where it is ahead (Q5).

    Read from the table, not computed anew: with another schema or setting since, other records
    may be bad now, and each must stay in the one table that it is in. Other sinks' rows in the
    same quarantine say nothing. Raises ``TagMissing`` besides what loading a table may raise.
    """
    start = batch.quarantine
    ahead = start.offsets if start else {}
    again = {at: span for at, span in batch.ranges.items() if span.begin < ahead.get(at, 0)}
    if start is None or not again:
        return {}
    table = load(start)
    ref = table.metadata.refs.get(source.handling.tag)
    if ref is None:
        raise TagMissing(
            f"{start.table} has no tag {source.handling.tag}, but holds bad records beyond the "
            "table's offsets: they cannot be told from new ones",
            "restore the tag on the sink's newest snapshot, or set coordinator.on_tag_missing to "
            "follow-table and start again",
        )
    fields = ("topic", "topic_id", "partition", "offset")
    places = [within(at, span) for at, span in again.items()]
    anywhere = places[0] if len(places) == 1 else Or(*places)
    wanted = And(EqualTo(term="sink", value=source.sink), anywhere)
    rows = table.scan(wanted, fields, snapshot_id=ref.snapshot_id).to_arrow().to_pylist()
    found: dict[TopicPartition, list[int]] = {}
    for row in rows:
        if row["topic_id"] == batch.topic_ids.get(row["topic"], row["topic_id"]):
            at = TopicPartition(row["topic"], row["partition"])
            found.setdefault(at, []).append(row["offset"])
    return {at: tuple(sorted(offsets)) for at, offsets in found.items()}


def within(at: TopicPartition, span: OffsetRange) -> BooleanExpression:
    """Return what the quarantine's rows of a partition's range are found by."""
    return And(
        EqualTo(term="topic", value=at.topic),
        EqualTo(term="partition", value=at.partition),
        GreaterThanOrEqual(term="offset", value=span.begin),
        LessThan(term="offset", value=span.end),
    )
