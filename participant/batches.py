"""Unannounced work: which ranges a batch reads, what it adds to the claims, and how it is dropped.

A data file mixes partitions, so unannounced work is kept or dropped only as a whole (rule P7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.control_protocol.columns import Struct, changes
from headgate.control_protocol.events import (
    Claim,
    Destination,
    Proposal,
    TableStatus,
    WriteStatus,
    WrittenFile,
)
from headgate.control_protocol.identifiers import TopicPartition, TransactionId
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchWritten, PartitionResult
from headgate.participant.state import OpenTransaction, Ownership, State

# What a participant waits for, as text and as partitions (S4).


_NAMED_MAX = 5


def describe_proposal(proposal: Proposal) -> str:
    """Return text like ``waits for lake.orders: +pax, +tip``."""
    return f"waits for {_describe_columns(proposal)}"


def describe_needs(state: State) -> str | None:
    """Return text on everything that proposals wait for; ``None`` where there are none."""
    if not state.needs:
        return None
    asked = [_describe_columns(need.proposal) for need in state.needs]
    more = f" and {len(asked) - _NAMED_MAX} more tables" if len(asked) > _NAMED_MAX else ""
    return f"waits for {'; '.join(asked[:_NAMED_MAX])}{more}"


def _describe_columns(proposal: Proposal) -> str:
    wanted = list(changes(Struct(), proposal.columns))
    more = f" and {len(wanted) - _NAMED_MAX} more" if len(wanted) > _NAMED_MAX else ""
    named = f"{', '.join(wanted[:_NAMED_MAX])}{more}"
    if not proposal.uuid:
        return f"table {proposal.table}" + (f" ({named})" if named else "")
    return f"{proposal.table}: {named}"


def waiting_partitions(state: State) -> frozenset[TopicPartition]:
    """S4: return the partitions for which a status says that there is more."""
    first = (need.proposal.first for need in state.needs)
    return frozenset(at for offsets in first for at in offsets) & state.owned.keys()


def empty_claim(offset: int) -> Claim:
    """Return a claim of nothing, at position ``offset``."""
    return Claim(OffsetRange(offset, offset))


def readable_positions(state: State) -> Mapping[TopicPartition, int]:
    """P2: return positions of the owned partitions in the open transaction's fixed set."""
    if state.writing is None or state.paused:
        return {}
    fixed = state.writing.fixed
    return {p: offset for p, offset in state.positions.items() if p in fixed}


def backlog(state: State) -> Mapping[TopicPartition, OffsetRange]:
    """Return what the source holds behind each readable position; empty ranges are left out.

    Nothing at or after a record that stops the sink (P14).
    """
    ends, stop = state.ends, state.stop
    if stop is not None:
        ends = {at: min(end, stop.upto.get(at, 0)) for at, end in ends.items()}
    return {
        partition: OffsetRange(offset, ends[partition])
        for partition, offset in readable_positions(state).items()
        if ends.get(partition, 0) > offset
    }


def cap_ranges(
    ranges: Mapping[TopicPartition, OffsetRange], records_max: int
) -> Mapping[TopicPartition, OffsetRange]:
    """Limit the ranges to ``records_max`` offsets; what small ones leave goes to larger ones."""
    left, chosen = records_max, {}
    by_size = sorted(ranges.items(), key=lambda item: (len(item[1]), item[0]))
    for done, (partition, whole) in enumerate(by_size):
        share = min(len(whole), left // (len(by_size) - done))
        if share > 0:
            chosen[partition] = OffsetRange(whole.begin, whole.begin + share)
            left -= share
    return chosen


def plan_batch(state: State, ranges: Mapping[TopicPartition, OffsetRange]) -> tuple[State, Batch]:
    """Return the next batch, and the state in which it runs."""
    writing = state.writing
    assert writing is not None, "a batch needs an open transaction (P2)"
    batch = Batch(
        number=state.batches + 1,
        transaction=TransactionId(state.epoch, writing.number),
        table=writing.table,
        ranges=ranges,
        target_file_bytes=writing.limits.target_file_bytes,
        topic_ids=writing.topic_ids,
        quarantine=writing.quarantine,
        secondaries=writing.secondaries,
        folder=writing.folder,
        suspended=writing.suspended,
        told=tuple(said.start for said in state.told.values()),
    )
    return replace(state, batch=batch, batches=batch.number), batch


def absorb_batch(state: State, written: BatchWritten) -> State:
    """Extend the claims by the batch's ranges and files (P2: exactly these ranges)."""
    assert state.batch is not None
    assert {p: r.range for p, r in written.partitions.items()} == state.batch.ranges, (
        f"batch {written.number} covers other ranges than it was given"
    )
    failed = state.failed - written.partitions.keys()
    owned = dict(state.owned)
    for partition, result in written.partitions.items():
        own = owned[partition]
        assert own.work is not None
        owned[partition] = replace(own, work=_extend_claim(own.work, result))
    return replace(
        state,
        owned=owned,
        files=(*state.files, *written.files),
        quarantined=(*state.quarantined, *written.quarantined),
        followed=_join_secondary_files(state, written),
        troubles={**state.troubles, **written.troubles},
        batch=None,
        record_bytes=_mean_record_bytes(written, state.record_bytes),
        failed=failed,
        failure=state.failure if failed else None,
    )


def _mean_record_bytes(written: BatchWritten, before: float) -> float:
    offsets = sum(len(part.range) for part in written.partitions.values())
    octets = sum(part.bytes_read for part in written.partitions.values())
    return octets / offsets if offsets else before


def _join_secondary_files(
    state: State, written: BatchWritten
) -> Mapping[Destination, tuple[WrittenFile, ...]]:
    """Join the files of each table, whatever its schema was; the newest schema is named."""
    known = {(at.table, at.uuid): (at, files) for at, files in state.followed.items()}
    for at, more in written.followed.items():
        before = known.get((at.table, at.uuid), (at, ()))[1]
        known[at.table, at.uuid] = (at, (*before, *more))
    return dict(known.values())


def _extend_claim(claim: Claim, result: PartitionResult) -> Claim:
    times = [t for t in (claim.max_timestamp_ms, result.max_timestamp_ms) if t is not None]
    return Claim(
        range=claim.range.then(result.range),
        records=claim.records + result.records,
        quarantined=claim.quarantined + result.quarantined,
        skipped=claim.skipped + result.skipped,
        bad=claim.bad + result.bad,
        bytes_read=claim.bytes_read + result.bytes_read,
        max_timestamp_ms=max(times, default=None),
        deleted=claim.deleted + result.deleted,
    )


def drop_work(state: State) -> State:
    """Drop all unannounced work; every position goes back to where it began."""
    owned = {
        partition: replace(own, work=empty_claim(own.work.range.begin)) if own.work else own
        for partition, own in state.owned.items()
    }
    return replace(
        state,
        owned=owned,
        files=(),
        quarantined=(),
        followed={},
        troubles={},
        batch=None,
        steps=0,
    )


def with_suspended(state: State, suspended: Mapping[str, str]) -> State:
    """I2: apply a settlement's suspended tables to the next batch, whatever its transaction."""
    writing, following = state.writing, state.following
    return replace(
        state,
        writing=replace(writing, suspended=suspended) if writing else None,
        following=replace(following, suspended=suspended) if following else None,
        told={name: said for name, said in state.told.items() if name not in suspended},
    )


def announce_work(state: State, number: int) -> tuple[State, WriteStatus]:
    """Announce everything unannounced in one status, which names every owned partition (P3)."""
    writing = state.writing
    claims = {p: own.work for p, own in state.owned.items() if own.work and writing}
    failed = (state.failed | _partitions_before_stop(state)) & state.owned.keys()
    doubtful = frozenset(p for p, claim in claims.items() if _may_hold_more(state, p, claim))
    status = WriteStatus(
        status_number=number,
        claims=claims,
        tables=_table_statuses(writing, state) if writing else (),
        unknown=frozenset(state.owned.keys() - claims.keys())
        | failed
        | doubtful
        | waiting_partitions(state),
        failure=state.failure or (str(state.stop.error) if state.stop else describe_needs(state)),
        troubles=state.troubles,
    )
    owned = {p: _with_empty_claim(own) for p, own in state.owned.items()}
    return replace(
        state,
        owned=owned,
        files=(),
        quarantined=(),
        followed={},
        troubles={},
        statuses=number,
        steps=0,
    ), status


def _partitions_before_stop(state: State) -> frozenset[TopicPartition]:
    """P14: return the partitions with a record that stops the sink: there is more than is named."""
    return frozenset(state.stop.error.first) if state.stop else frozenset()


def _may_hold_more(state: State, partition: TopicPartition, claim: Claim) -> bool:
    """P3: return whether the partition may hold more, so that an empty claim does not mean idle.

    A partition that cannot be asked now, or waits for room, is not idle; nor is one whose end was
    seen before an earlier END. A paused sink asks nothing: nobody knows what waits.
    """
    if not claim.range.empty or state.writing is None or partition not in state.writing.fixed:
        return False
    answers = state.ended <= state.writing.number
    seen = partition in state.looked and answers and not state.paused
    return not seen or state.ends.get(partition, 0) > claim.range.end


def _table_statuses(writing: OpenTransaction, state: State) -> tuple[TableStatus, ...]:
    """Q4: return the files of all tables, announced with the claims that they belong to."""
    tables = [TableStatus(writing.table.table, state.files)] if state.files else []
    if writing.quarantine is not None and state.quarantined:
        tables.append(TableStatus(writing.quarantine.table, state.quarantined))
    tables += [
        TableStatus(at.table, files, at.uuid, at.schema_id) for at, files in state.followed.items()
    ]
    return tuple(tables)


def _with_empty_claim(own: Ownership) -> Ownership:
    return replace(own, work=empty_claim(own.work.range.end)) if own.work else own


def open_transaction(state: State, started: OpenTransaction | None) -> State:
    """Open a START at once, or behind the answer that is still pending (C4)."""
    if state.ended > state.answered:
        return replace(state, following=started)
    return replace(state, writing=started, following=None, last_read_done=False, looked=frozenset())
