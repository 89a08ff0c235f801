"""What is promised above the fields of a commit record."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.control_protocol.commit_record import CommitRecord


def broken_promises(record: CommitRecord) -> Iterator[str]:
    """Return what does not hold in this record, in words."""
    brought = (record.records, record.quarantined, record.skipped)
    if record.is_claim and record.primary is None and (any(brought) or record.keys):
        yield "a claim brings something"
    if record.actor is not None and record.command is None:
        yield "an actor without a command"
    if (record.stopped or record.going_back is not None) and not record.is_operator_claim:
        yield "stopped, and not by a person's claim"
    decides = (record.secondaries, record.pending_commits, record.expired, record.suspended)
    if record.primary is not None and any(decides):
        yield "a secondary table's record decides for others"
    if record.replayed is not None and record.primary is None:
        yield "the primary table was given back what it missed"
    order = [each.transaction for each in record.pending_commits]
    if order != sorted(order):
        yield "pending commits are not in the order of their decisions"
    if any(transaction > record.transaction for transaction in order):
        yield "a pending commit of a later transaction"
    if set(record.pending_commits) & set(record.expired):
        yield "a commit is pending and expired"
    if len({each.table for each in record.suspended}) < len(record.suspended):
        yield "a table is suspended twice"
    if any(at.topic not in record.topic_ids for at in record.offsets):
        yield "offsets of a topic without an id"
