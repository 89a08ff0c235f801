"""Decides what a batch of a Spark query is to its table, and forms the record that stores it.

Spark's checkpoint only proposes a batch (QUERY-1). Nothing here reads a checkpoint or a table.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import BatchConflict, BatchGap, QuerySuperseded
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

QUERY_TOPIC = "spark-query"
"""Stands for a query: its topic id is the query's id, its next offset the next batch (QUERY-2)."""
NEXT_BATCH = TopicPartition(QUERY_TOPIC, 0)
FIRST = TransactionId(Epoch(1), TransactionNumber(1))
_HARMLESS_CLAIMS = ("pause", "resume")


@dataclass(frozen=True, slots=True)
class ProposedBatch:
    """Describes a batch as the checkpoint has it.

    ``by_number``: its sources have no Kafka offsets that could place it (QUERY-10).
    """

    query: str
    number: int
    begin: Offsets = field(default_factory=Offsets)
    end: Offsets = field(default_factory=Offsets)
    by_number: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """Says that the table has the batch: nothing is written."""


@dataclass(frozen=True, slots=True)
class Take:
    """Says that the batch is the table's next. ``trim``: rows below these offsets are there."""

    trim: Offsets = field(default_factory=Offsets)


def is_record_of_query(record: CommitRecord | None) -> bool:
    """Return whether a query works on the sink: it was the last one that did (QUERY-14)."""
    return record is not None and QUERY_TOPIC in record.topic_ids and record.control_topic is None


def without_query_offset(offsets: Offsets) -> Offsets:
    """Return the offsets without that of the query itself."""
    return offsets.restricted_to(at for at in offsets if at.topic != QUERY_TOPIC)


def decide_batch(
    record: CommitRecord | None, batch: ProposedBatch, *, stateful: bool = False
) -> Done | Take:
    """Say what the batch is to a table with this record. Raises ``BatchGap``, ``BatchConflict``."""
    if record is None:
        if batch.number == 0:
            return Take()
        raise BatchGap(  # QUERY-2
            f"batch {batch.number} of query {batch.query} is proposed, but the table holds none "
            "before it",
            "start the query with an empty checkpoint folder",
        )
    if batch.by_number or stateful:
        return _decide_by_number(record, batch)
    return _decide_by_offsets(without_query_offset(record.offsets), batch)


def _decide_by_offsets(stored: Offsets, batch: ProposedBatch) -> Done | Take:
    """QUERY-3: place the batch by its offsets alone."""
    late = {at: begin for at, begin in batch.begin.items() if begin > stored.get(at, begin)}
    if late:  # QUERY-7
        raise BatchGap(
            f"batch {batch.number} begins at {Offsets(late)}, but the table ends at {stored}: "
            "records between would be lost",
            "start with an empty checkpoint folder, and the Kafka source at startingOffsets = "
            "headgate.spark.starting_offsets(SINK)",
        )
    if all(end <= stored.get(at, 0) for at, end in batch.end.items()):  # QUERY-4
        return Done()
    # QUERY-5 where nothing is below stored, else QUERY-6
    return Take(Offsets({at: stored[at] for at, n in batch.begin.items() if n < stored.get(at, n)}))


def _decide_by_number(record: CommitRecord, batch: ProposedBatch) -> Done | Take:
    """QUERY-9, QUERY-10: place the batch of a query that offsets cannot place."""
    query, following = record.topic_ids.get(QUERY_TOPIC), record.offsets.get(NEXT_BATCH, 0)
    if query != batch.query:
        raise BatchGap(
            f"the table was filled by {f'query {query}' if query else 'no query'}, this is query "
            f"{batch.query}: what a query remembers is in its checkpoint",
            "restore that query's checkpoint, or fill a new table",
        )
    if batch.number > following:
        raise BatchGap(
            f"the checkpoint is at batch {batch.number}, the table at {following}: the table was "
            "rolled back",
            "restore a checkpoint of that time, or fill a new table",
        )
    if batch.by_number:
        return Take() if batch.number == following else Done()
    stored = without_query_offset(record.offsets)
    if batch.number == following:
        if all(stored.get(at, begin) == begin for at, begin in batch.begin.items()):
            return Take()
    elif batch.number + 1 < following or stored.restricted_to(batch.end) == batch.end:
        return Done()
    raise BatchConflict(
        f"batch {batch.number} of query {batch.query} goes from {batch.begin} to {batch.end}, but "
        f"the table holds {stored}",
        "somebody else filled the table, or two copies of one checkpoint are in use: let one run",
    )


@dataclass(frozen=True, slots=True)
class QueryRun:
    """Identifies one start of a query. ``epoch``: of its commits, ``None`` before the first one."""

    sink: SinkName
    group_id: str
    sender: Sender
    epoch: Epoch | None = None


def require_not_superseded(record: CommitRecord | None, run: QueryRun) -> None:
    """QUERY-13: raise ``QuerySuperseded`` where somebody else has claimed the table since."""
    if record is None or run.epoch is None or record.coordinator == run.sender:
        return
    if record.is_operator_claim and record.command in _HARMLESS_CLAIMS:
        return
    if record.transaction.epoch > run.epoch:
        raise QuerySuperseded(
            f"{record.coordinator.member} has claimed the table with epoch "
            f"{record.transaction.epoch}, this run of the query has {run.epoch}",
            "another run of this query, headgate run, or a person took over: let only one work, "
            "and start the query again if it is this one",
        )


def next_transaction(
    before: CommitRecord | None, newest: TransactionId | None, sender: Sender
) -> TransactionId:
    """QUERY-13: return the run's next transaction.

    ``newest``: of the sink in this table, which after a rollback is not that of ``before``.
    """
    if before and before.coordinator == sender and before.transaction == newest:
        return TransactionId(newest.epoch, TransactionNumber(newest.number + 1))
    return TransactionId(Epoch(newest.epoch + 1 if newest else 1), TransactionNumber(1))


def first_claim_of_query(
    batch: ProposedBatch,
    run: QueryRun,
    topic_ids: dict[str, TopicId],
    transaction: TransactionId = FIRST,
) -> CommitRecord:
    """QUERY-2: return the claim of a table without a record, which says where its first batch
    begins."""
    return CommitRecord(
        run.sink,
        run.group_id,
        replace(transaction, number=TransactionNumber(0)),
        run.sender,
        batch.begin.with_offsets({NEXT_BATCH: batch.number}),
        {**topic_ids, QUERY_TOPIC: TopicId(batch.query)},
        recreated_topics="",
    )


def record_of_batch(
    before: CommitRecord,
    batch: ProposedBatch,
    run: QueryRun,
    *,
    transaction: TransactionId,
    topic_ids: dict[str, TopicId],
    rows: int,
    deletes: int = 0,
    stateful: bool = False,
) -> CommitRecord:
    """Return the record of the batch's commit, which follows ``before``.

    What the table is to receive by others' decisions stays pending. ``deletes``: records that
    delete the row of a key.
    """
    stored = before.offsets
    # QUERY-8: a batch that straddles may end below stored in some partition.
    ends = {at: max(end, stored.get(at, 0)) for at, end in batch.end.items()}
    span = sum(end - max(batch.begin[at], stored.get(at, 0)) for at, end in ends.items())
    counted = not (stateful or batch.by_number)
    return before.next_with_query_batch(
        transaction=transaction,
        coordinator=run.sender,
        offsets=stored.with_offsets({**ends, NEXT_BATCH: batch.number + 1}),
        topic_ids={**before.topic_ids, **topic_ids, QUERY_TOPIC: TopicId(batch.query)},
        records=rows,
        skipped=max(0, span - rows - deletes) if counted else 0,  # QUERY-15
    )
