"""Decides of batches and the work they leave: what is read next, what is announced, and what is
dropped.

Owner of ``Work``, ``BatchRun`` and ``SourceEnds``. A data file mixes partitions, so that work which
is not announced is kept, announced or dropped only as a whole (POSITION-3).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import ceil

from headgate.control_protocol.columns import Struct, describe_schema_growth
from headgate.control_protocol.errors import BatchHopeless, BatchStuck, StopBefore, StopSink
from headgate.control_protocol.events import (
    BufferedAmounts,
    Destination,
    PartitionPresence,
    Presence,
    PresenceKind,
    Proposal,
    TableStatus,
    WriteStatus,
    WrittenFile,
    WrittenRange,
)
from headgate.control_protocol.identifiers import ControlOffset, TopicPartition, TransactionId
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import LogLine, Stop, backoff_ms
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch, BatchFailed, BatchWritten, PartitionResult
from headgate.participant.inputs_and_actions import Action
from headgate.participant.state import (
    BatchRun,
    OpenTransaction,
    Ownership,
    PendingStop,
    SourceEnds,
    State,
    Timer,
    Work,
)

Step = tuple[State, tuple[Action, ...]]
Ranges = Mapping[TopicPartition, OffsetRange]

_NAMED_MAX = 10
_COLUMNS_NAMED_MAX = 5

# ------------------------------------------------------------------------------ what may be read


def readable_positions(state: State) -> Mapping[TopicPartition, int]:
    """RANGE-1: return positions of the owned partitions in the open transaction's fixed set."""
    if state.term.writing is None or state.term.paused:
        return {}
    fixed = state.term.writing.fixed
    return {p: offset for p, offset in state.positions.items() if p in fixed}


def with_source_ends(state: State, ends: Mapping[TopicPartition, int]) -> State:
    """Take over where the readable partitions end, of those that could be asked.

    An end that was not confirmed now is forgotten: reading up to it would fail the batch for all
    other partitions.
    """
    asked = readable_positions(state)
    kept = {p: end for p, end in state.source.ends.items() if p not in asked}
    source = replace(state.source, ends=kept | dict(ends), looked=frozenset(ends))
    return replace(state, source=source)


def with_last_source_look_done(state: State) -> State:
    """ANSWER-1: after END the source was looked at; what comes later belongs to the next
    transaction."""
    return replace(state, source=replace(state.source, last_read_done=True))


def with_source_looks_reset(state: State) -> State:
    """Begin a transaction: no end was looked for in it yet, so that nobody is idle in it
    (ANSWER-1)."""
    source = SourceEnds(state.source.ends)
    return replace(state, source=source)


def find_backlog(state: State) -> Ranges:
    """Return what the source holds behind each readable position; empty ranges are left out.

    Nothing at or after a record that stops the sink (BATCH-2).
    """
    ends, stop = state.source.ends, state.run.stop
    if stop is not None:
        ends = {at: min(end, stop.upto.get(at, 0)) for at, end in ends.items()}
    return {
        partition: OffsetRange(offset, ends[partition])
        for partition, offset in readable_positions(state).items()
        if ends.get(partition, 0) > offset
    }


def next_source_look_due_ms(state: State) -> int:
    """Return when the source may be asked again where it ends.

    END asks it in any case, and what comes meanwhile waits for END unless it is a whole batch.
    """
    due_ms = state.deadlines.get(Timer.LOOK)
    if due_ms is None:
        return 0
    more = state.idle_intervals - 1 if _is_caught_up(state) else 0
    return due_ms + more * state.settings.end_offset_interval_ms


def _is_caught_up(state: State) -> bool:
    """Return whether all was read that the last look saw, and nobody waits for steps (COMMIT-5)."""
    writing, positions = state.term.writing, readable_positions(state)
    if writing is None or writing.limits.commit_records or writing.limits.commit_bytes:
        return False
    return positions.keys() <= state.source.looked and not find_backlog(state)


def cap_ranges(ranges: Ranges, records_max: int) -> Ranges:
    """Limit the ranges to ``records_max`` offsets; what small ones leave goes to larger ones."""
    left, chosen = records_max, {}
    by_size = sorted(ranges.items(), key=lambda item: (len(item[1]), item[0]))
    for done, (partition, whole) in enumerate(by_size):
        share = min(len(whole), left // (len(by_size) - done))
        if share > 0:
            chosen[partition] = OffsetRange(whole.begin, whole.begin + share)
            left -= share
    return chosen


_PACED_S = 10
"""How many seconds' worth of what may be read a batch takes (BATCH-3)."""
_UNKNOWN_RECORDS_MAX = 10_000
"""A batch has no more records while their size is not known, but bounded."""


def batch_records_max(state: State) -> int:
    """BATCH-3: return how many offsets a batch may take."""
    settings, size = state.settings, state.run.record_bytes
    allowed = settings.batch_records_max
    if settings.records_per_second_max:
        allowed = min(allowed, settings.records_per_second_max * _PACED_S)
    if settings.bytes_per_second_max:
        of_bytes = settings.bytes_per_second_max * _PACED_S / size if size else _UNKNOWN_RECORDS_MAX
        allowed = min(allowed, int(of_bytes))
    return max(allowed, 1)


def _with_pace_deadline(state: State, batch: Batch, now_ms: int) -> State:
    """BATCH-3: hold the next batch back until the time that this one may take has passed."""
    settings, offsets = state.settings, sum(map(len, batch.ranges.values()))
    taken_ms = 0.0
    if settings.records_per_second_max:
        taken_ms = offsets * 1000 / settings.records_per_second_max
    if settings.bytes_per_second_max:
        octets = offsets * state.run.record_bytes
        taken_ms = max(taken_ms, octets * 1000 / settings.bytes_per_second_max)
    return state.with_deadline(Timer.PACE, now_ms + ceil(taken_ms) if taken_ms else None)


# ----------------------------------------------------------------------------------- one batch


def plan_batch(state: State, ranges: Ranges, now_ms: int) -> tuple[State, Batch]:
    """Return the next batch, and the state in which it runs."""
    writing = state.term.writing
    assert writing is not None, "a batch needs an open transaction (RANGE-1)"
    batch = Batch(
        number=state.run.number + 1,
        transaction=TransactionId(state.term.epoch, writing.number),
        table=writing.table,
        ranges=ranges,
        target_file_bytes=writing.limits.target_file_bytes,
        topic_ids=writing.topic_ids,
        quarantine=writing.quarantine,
        secondaries=writing.secondaries,
        folder=writing.folder,
        suspended=writing.suspended,
        changed_tables=tuple(answer.start for answer in state.needs.answers.values()),
    )
    run = replace(state.run, batch=batch, number=batch.number)
    due_ms = now_ms + state.settings.batch_timeout_ms
    state = _with_pace_deadline(replace(state, run=run), batch, now_ms)
    return state.with_deadline(Timer.BATCH, due_ms), batch


def with_batch_written(state: State, written: BatchWritten) -> State:
    """Extend the written ranges by the batch's ranges and files (RANGE-1: exactly these ranges)."""
    batch = state.run.batch
    assert batch is not None
    assert {p: r.range for p, r in written.partitions.items()} == batch.ranges, (
        f"batch {written.number} covers other ranges than it was given"
    )
    work = state.work
    owned = dict(work.owned)
    for partition, result in written.partitions.items():
        own = owned[partition]
        assert own.work is not None
        owned[partition] = replace(own, work=_extend_range(own.work, result))
    work = replace(
        _without_failure_of(work, written.partitions.keys()),
        owned=owned,
        files=(*work.files, *written.files),
        quarantine_files=(*work.quarantine_files, *written.quarantined),
        secondary_files=_merge_files(work.secondary_files, written.secondary_files),
        troubles={**work.troubles, **written.troubles},
    )
    run = replace(state.run, record_bytes=_mean_record_bytes(written, state.run.record_bytes))
    return _with_batch_cleared(replace(state, work=work), run)


def with_batch_ended_and_retries_reset(state: State, *, last_read_done: bool) -> State:
    """Forget the failures in front of a batch that ended well, and look at the source at once."""
    run = replace(state.run, unforeseen=0, outages=0)
    source = replace(state.source, last_read_done=last_read_done)
    done = _with_batch_cleared(replace(state, source=source), run)
    return done.with_deadline(Timer.LOOK, None).with_deadline(Timer.RETRY, None)


def _with_batch_cleared(state: State, run: BatchRun) -> State:
    """Return the state with this run and without its batch; the outcome will be ignored."""
    return replace(state, run=replace(run, batch=None)).with_deadline(Timer.BATCH, None)


def _without_failure_of(work: Work, partitions: Collection[TopicPartition]) -> Work:
    """Forget that a batch of these failed: what it was to read is read, or is somebody else's."""
    failed = work.failed.difference(partitions)
    return replace(work, failed=failed, failure=work.failure if failed else None)


def _mean_record_bytes(written: BatchWritten, fallback: float) -> float:
    offsets = sum(len(part.range) for part in written.partitions.values())
    octets = sum(part.bytes_read for part in written.partitions.values())
    return octets / offsets if offsets else fallback


_FilesByTable = Mapping[Destination, tuple[WrittenFile, ...]]


def _merge_files(waiting: _FilesByTable, more: _FilesByTable) -> _FilesByTable:
    """Join the files of each table, whatever its schema was; the newest schema is named."""
    joined = {(at.table, at.uuid): (at, files) for at, files in waiting.items()}
    for at, files in more.items():
        before = joined.get((at.table, at.uuid), (at, ()))[1]
        joined[at.table, at.uuid] = (at, (*before, *files))
    return dict(joined.values())


def _extend_range(written: WrittenRange, result: PartitionResult) -> WrittenRange:
    times = [t for t in (written.max_timestamp_ms, result.max_timestamp_ms) if t is not None]
    return WrittenRange(
        range=written.range.extended_by(result.range),
        records=written.records + result.records,
        quarantined=written.quarantined + result.quarantined,
        skipped=written.skipped + result.skipped,
        bad=written.bad + result.bad,
        bytes_read=written.bytes_read + result.bytes_read,
        max_timestamp_ms=max(times, default=None),
        deleted=written.deleted + result.deleted,
    )


# ------------------------------------------------------------------- batches that fail, or hang
#
# Where another system is to blame (a broker, a catalog, a storage, Spark), they are repeated for
# ever, after pauses that double. Where none is, and where a batch hangs, they are repeated
# ``batch_attempts_max`` times in a row (BATCH-1).

CUTS_MAX = 16
"""How often a batch is written again because of another record that stops the sink."""


def on_batch_failed(state: State, batch: Batch, outcome: BatchFailed, now_ms: int) -> Step:
    """Repeat the batch's ranges, or stop."""
    if isinstance(outcome.fatal, StopBefore):
        first = _offsets_within(outcome.fatal.first, batch)
        if first:
            return _retry_before_stopping_record(state, batch, outcome.fatal, first)
    if outcome.fatal is not None:
        return _with_batch_cleared(state, state.run), (Stop(outcome.fatal),)
    if not outcome.unforeseen:
        state = replace(state, run=replace(state.run, outages=state.run.outages + 1))
        return _retry_batch_later(state, batch, outcome.reason, now_ms)
    failures = state.run.unforeseen + 1
    error = BatchHopeless(
        f"{_describe_ranges(batch.ranges)}: {failures} batches in a row failed: {outcome.reason}",
        "nothing of them was committed; look at these records, and report the reason if they are "
        "good",
    )
    return _retry_batch_or_stop(state, batch, error, now_ms, reason=outcome.reason)


def retry_overdue_batch_or_stop(state: State, now_ms: int) -> Step:
    """Give up the batch, which ran for longer than any may: it is read again, or the sink stops."""
    batch = state.run.batch
    assert batch is not None, "the deadline is set only while a batch runs"
    failures, limit_ms = state.run.unforeseen + 1, state.settings.batch_timeout_ms
    named = _describe_ranges(batch.ranges)
    error = BatchStuck(
        f"{named}: a batch did not end in {limit_ms} ms, {failures} in a row",
        "nothing of it was committed; find out what Spark or the storage is waiting for, or raise "
        "participant.batch_timeout_ms",
    )
    return _retry_batch_or_stop(state, batch, error, now_ms, reason=str(error))


def _retry_batch_or_stop(
    state: State, batch: Batch, error: StopSink, now_ms: int, *, reason: str
) -> Step:
    run = replace(state.run, unforeseen=state.run.unforeseen + 1)
    if run.unforeseen >= state.settings.batch_attempts_max:
        return _with_batch_cleared(state, run), (Stop(error),)
    return _retry_batch_later(replace(state, run=run), batch, reason, now_ms)


def _retry_batch_later(state: State, batch: Batch, reason: str, now_ms: int) -> Step:
    settings, run = state.settings, state.run
    before = max(run.outages - 1, 0)
    wait_ms = backoff_ms(before, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
    failed = state.work.failed | batch.ranges.keys()
    state = replace(state, work=replace(state.work, failure=reason, failed=failed))
    state = _with_batch_cleared(state, run).with_deadline(Timer.RETRY, now_ms + wait_ms)
    text = f"batch {batch.number} failed: {reason}"
    return state, (LogLine(text, trouble=True, event=LogEvent.BATCH_FAILED),)


def _offsets_within(first: Offsets, batch: Batch) -> Offsets:
    there = batch.ranges
    return Offsets(
        {at: o for at, o in first.items() if at in there and there[at].begin <= o < there[at].end}
    )


def _retry_before_stopping_record(
    state: State, batch: Batch, error: StopBefore, first: Offsets
) -> Step:
    """BATCH-2: write the batch again without what lies at or after such a record; then stop.

    Behind a transform each attempt may meet but one more of them: after so many, nothing more of
    the batch is written.
    """
    known = state.run.stop
    cuts = known.cuts + 1 if known else 1
    ends = Offsets({at: span.end for at, span in batch.ranges.items()})
    upto = (known.upto if known else ends).minimum_per_partition(first)
    if cuts > CUTS_MAX:
        upto = upto.with_offsets({at: span.begin for at, span in batch.ranges.items()})
    text = f"writes what lies before a record, then stops before it: {error}"
    run = replace(state.run, stop=PendingStop(error, upto, cuts))
    again = with_batch_ended_and_retries_reset(replace(state, run=run), last_read_done=False)
    return again, (LogLine(text, trouble=True, event=LogEvent.BATCH_FAILED),)


def stop_once_earlier_records_committed(state: State) -> Step:
    """BATCH-2: stop once all that lies before the record is committed.

    Whoever owns its partition meets it; so does this participant again, if it is not committed up
    to there when somebody else's commit or a new epoch moves it.
    """
    stop = state.run.stop
    if stop is None:
        return state, ()
    positions = state.positions
    if not any(positions.get(at, at_ + 1) <= at_ for at, at_ in stop.error.first.items()):
        if any(at in state.work.owned and at not in positions for at in stop.error.first):
            return state, ()  # its position is not known yet
        return without_pending_stop(state), ()
    writing = state.term.writing
    fixed = writing.fixed if writing else frozenset[TopicPartition]()
    missing = any(positions.get(at, end) < end for at, end in stop.upto.items() if at in fixed)
    if missing or state.work.has_unannounced_ranges or state.said.pending:
        return state, ()
    return without_pending_stop(state), (Stop(stop.error),)


def without_pending_stop(state: State) -> State:
    return replace(state, run=replace(state.run, stop=None))


def _describe_ranges(ranges: Ranges) -> str:
    there = sorted((at, span) for at, span in ranges.items() if not span.is_empty)
    named = [
        f"{at.topic} partition {at.partition} offsets {span.begin} to {span.end - 1}"
        for at, span in there[:_NAMED_MAX]
    ]
    more = [f"{len(there) - _NAMED_MAX} more"] if len(there) > _NAMED_MAX else []
    return ", ".join([*named, *more])


# ------------------------------------------------------------------------------------ ownership


def empty_written_range(offset: int) -> WrittenRange:
    """Return a written range of nothing, at position ``offset``."""
    return WrittenRange(OffsetRange(offset, offset))


def with_gained_partitions(
    state: State, gained: frozenset[TopicPartition], presence_sequence: int
) -> State:
    """Own these, too: without a position, until a settlement behind the presence gives it
    (POSITION-2)."""
    owned = {
        **state.work.owned,
        **{partition: Ownership(presence_sequence) for partition in gained},
    }
    return replace(state, work=replace(state.work, owned=owned))


def without_lost_partitions(state: State, gone: frozenset[TopicPartition]) -> State:
    """Own the partitions no longer; their work is announced, or dropped, before."""
    owned = {partition: own for partition, own in state.work.owned.items() if partition not in gone}
    work = replace(state.work, owned=owned, leaving=state.work.leaving - gone)
    return replace(state, work=_without_failure_of(work, gone))


def with_partitions_marked_leaving(state: State, partitions: frozenset[TopicPartition]) -> State:
    leaving = partitions & state.work.owned.keys()
    return replace(state, work=replace(state.work, leaving=leaving))


def on_own_presence(state: State, sequence: int, offset: ControlOffset) -> State:
    """POSITION-2: note where the PRESENCE that names a gain stands in the log."""
    owned = {
        p: replace(own, since=offset) if own.since is None and own.presence == sequence else own
        for p, own in state.work.owned.items()
    }
    return replace(state, work=replace(state.work, owned=owned))


def with_settled_positions(
    state: State, settled_offsets: Offsets, settled_to: ControlOffset
) -> State:
    """Apply C, once the own late statuses are judged, to the positions (POSITION-2, POSITION-3)."""
    # Files mix partitions: if one position is wrong, no file can be kept. Moving only that position
    # would announce the others' offsets with files that hold the wrong one's rows as well.
    wrong = [
        p for p, own in state.work.owned.items() if _contradicts_position(settled_offsets, p, own)
    ]
    if wrong:
        state = drop_unannounced_work(state)
        moved = {
            p: _with_position_reset(p, own, settled_offsets) for p, own in state.work.owned.items()
        }
        work = replace(state.work, owned=moved)
        state = replace(state, work=_without_failure_of(work, wrong))
    learned = _with_first_settled_positions(state.work.owned, settled_offsets, settled_to)
    return replace(state, work=replace(state.work, owned=learned))


def _contradicts_position(
    settled_offsets: Offsets, partition: TopicPartition, own: Ownership
) -> bool:
    """Return whether C contradicts the position; a partition that C leaves out does not count."""
    return (
        own.work is not None
        and partition in settled_offsets
        and settled_offsets[partition] != own.work.range.begin
    )


def _with_position_reset(
    partition: TopicPartition, own: Ownership, settled_offsets: Offsets
) -> Ownership:
    known = own.work is not None and partition in settled_offsets
    return replace(own, work=empty_written_range(settled_offsets[partition])) if known else own


def _with_first_settled_positions(
    owned: Mapping[TopicPartition, Ownership], expected: Offsets, settled_to: ControlOffset
) -> Mapping[TopicPartition, Ownership]:
    """POSITION-2: take a gained partition's position from the first settlement behind its PRESENCE.

    Not from one before it: what the former owner announced in between is not in that one's C, and
    would be read and written once more.
    """
    return {
        p: replace(own, work=empty_written_range(expected[p]))
        if own.work is None and own.since is not None and own.since < settled_to and p in expected
        else own
        for p, own in owned.items()
    }


# ------------------------------------------------------------------------ announced, or dropped


def take_work_as_status(state: State, status_number: int) -> tuple[State, WriteStatus]:
    """Return everything unannounced as one status, which names every owned partition (ANSWER-1)."""
    work, writing = state.work, state.term.writing
    ranges = {p: own.work for p, own in work.owned.items() if own.work and writing}
    failed = (work.failed | _partitions_with_stopping_record(state)) & work.owned.keys()
    doubtful = frozenset(
        p for p, each in ranges.items() if _is_empty_but_not_known_idle(state, p, each)
    )
    waiting = partitions_with_open_proposals(state)
    stop = state.run.stop
    status = WriteStatus(
        status_number=status_number,
        written=ranges,
        tables=_table_statuses(writing, state) if writing else (),
        unknown=frozenset(work.owned.keys() - ranges.keys()) | failed | doubtful | waiting,
        failure=work.failure or (str(stop.error) if stop else describe_open_proposals(state)),
        troubles=work.troubles,
    )
    owned = {p: _with_range_restarted_at_end(own) for p, own in work.owned.items()}
    return _with_ownerships_and_files_cleared(state, owned), status


def drop_unannounced_work(state: State) -> State:
    """Drop all unannounced work and the batch; every position goes back to where it began."""
    owned = {
        partition: replace(own, work=empty_written_range(own.work.range.begin)) if own.work else own
        for partition, own in state.work.owned.items()
    }
    return _with_batch_cleared(_with_ownerships_and_files_cleared(state, owned), state.run)


def drop_work_and_positions(state: State) -> State:
    """EPOCH-3: begin a higher epoch, in which nothing read or known before counts."""
    dropped = drop_unannounced_work(state)
    owned = {p: replace(own, work=None) for p, own in dropped.work.owned.items()}
    work = replace(dropped.work, owned=owned, failure=None, failed=frozenset())
    return without_pending_stop(with_source_looks_reset(replace(dropped, work=work)))


def _with_ownerships_and_files_cleared(
    state: State, owned: Mapping[TopicPartition, Ownership]
) -> State:
    """Return the state with these positions; files and troubles go together with the ranges."""
    work = replace(
        state.work,
        owned=owned,
        files=(),
        quarantine_files=(),
        secondary_files={},
        troubles={},
        announced_limit_steps=0,
    )
    return replace(state, work=work)


def _with_range_restarted_at_end(own: Ownership) -> Ownership:
    return replace(own, work=empty_written_range(own.work.range.end)) if own.work else own


def _partitions_with_stopping_record(state: State) -> frozenset[TopicPartition]:
    """BATCH-2: return the partitions with a record that stops the sink: there is more than is
    named."""
    return frozenset(state.run.stop.error.first) if state.run.stop else frozenset()


def _is_empty_but_not_known_idle(
    state: State, partition: TopicPartition, written: WrittenRange
) -> bool:
    """ANSWER-1: return whether the partition may hold more, so that an empty range does not mean
    idle.

    A partition that cannot be asked now, or waits for room, is not idle; nor is one whose end was
    seen before an earlier END, or of which is told before END, as it is given up. A paused sink
    asks nothing: nobody knows what waits.
    """
    writing = state.term.writing
    if not written.range.is_empty or writing is None or partition not in writing.fixed:
        return False
    # An empty range says "idle" only if the end was seen in the very transaction that it answers.
    # Records that came since an earlier look would be older than the valid-through that the
    # coordinator concludes from "idle": the table would be called complete without them.
    answers = state.term.ended == writing.number
    seen = partition in state.source.looked and answers and not state.term.paused
    return not seen or state.source.ends.get(partition, 0) > written.range.end


def _table_statuses(writing: OpenTransaction, state: State) -> tuple[TableStatus, ...]:
    """QUARANTINE-2: return the files of all tables, announced with the ranges that they belong
    to."""
    work = state.work
    tables = [TableStatus(writing.table.table, work.files)] if work.files else []
    if writing.quarantine is not None and work.quarantine_files:
        tables.append(TableStatus(writing.quarantine.table, work.quarantine_files))
    tables += [
        TableStatus(at.table, files, at.uuid, at.schema_id)
        for at, files in work.secondary_files.items()
    ]
    return tuple(tables)


# -------------------------------------------------------- how much there is, and what it waits for

LIMIT_STEPS = 8
"""How often a participant speaks on the way to its share of a limit."""


def build_presence(
    state: State, kind: PresenceKind, concerns: frozenset[TopicPartition]
) -> Presence:
    """Return its sign of life, and how much its next status will hold (COMMIT-5)."""
    positions, ends = state.positions, state.source.ends
    buffered = buffered_amounts_with_next_batch(state)
    return Presence(
        kind=kind,
        concerns=concerns,
        owned={p: PartitionPresence(positions.get(p), ends.get(p)) for p in state.work.owned},
        state="paused" if state.term.paused else state.phase.value,
        buffered_records=buffered.records,
        buffered_bytes=buffered.octets,
    )


def buffered_amounts_with_next_batch(state: State) -> BufferedAmounts:
    """Return what is read and not announced, and what the running batch, or the next one, reads.

    The bytes of what was not read yet are unknown: they are taken to be like the last batch's.
    """
    ranges = [own.work for own in state.work.owned.values() if own.work]
    # Records that wait for columns do not hasten END.
    there = {} if state.needs.open else find_backlog(state)
    waiting = min(sum(map(len, there.values())), _records_of_next_batch_max(state))
    records = sum(len(each.range) for each in ranges) + waiting
    octets = sum(each.bytes_read for each in ranges) + round(waiting * state.run.record_bytes)
    return BufferedAmounts(records, octets)


def _records_of_next_batch_max(state: State) -> int:
    """Return what END would still find read: of a backlog that is held back, only what a batch
    reads now (BATCH-3)."""
    if Timer.PACE not in state.deadlines:
        return batch_records_max(state)
    return sum(map(len, state.run.batch.ranges.values())) if state.run.batch else 0


def filled_eighths_of_commit_limit(state: State) -> int:
    """Return the eighths of this participant's share of the nearest limit; 0 if there is none."""
    writing = state.term.writing
    if writing is None or not (writing.limits.commit_records or writing.limits.commit_bytes):
        return 0
    share = len(writing.fixed & state.work.owned.keys()) / max(len(writing.fixed), 1)
    limits = (writing.limits.commit_records, writing.limits.commit_bytes)
    held = buffered_amounts_with_next_batch(state)
    parts = (amount / limit for amount, limit in zip(held, limits, strict=True) if limit)
    return int(LIMIT_STEPS * max(parts) / share) if share else 0


def with_announced_limit_steps(state: State, steps: int) -> State:
    return replace(state, work=replace(state.work, announced_limit_steps=steps))


def partitions_with_open_proposals(state: State) -> frozenset[TopicPartition]:
    """SCHEMA-4: return the partitions for which a status says that there is more."""
    first = (need.proposal.first for need in state.needs.open)
    return frozenset(at for offsets in first for at in offsets) & state.work.owned.keys()


def describe_open_proposals(state: State) -> str | None:
    """Return text on everything that proposals wait for; ``None`` where there are none."""
    needs = state.needs.open
    if not needs:
        return None
    asked = [_describe_columns(need.proposal) for need in needs]
    left = len(asked) - _COLUMNS_NAMED_MAX
    more = f" and {left} more tables" if left > 0 else ""
    return f"waits for {'; '.join(asked[:_COLUMNS_NAMED_MAX])}{more}"


def describe_proposal(proposal: Proposal) -> str:
    """Return text like ``waits for lake.orders: +pax, +tip``."""
    return f"waits for {_describe_columns(proposal)}"


def _describe_columns(proposal: Proposal) -> str:
    wanted = list(describe_schema_growth(Struct(), proposal.columns))
    left = len(wanted) - _COLUMNS_NAMED_MAX
    more = f" and {left} more" if left > 0 else ""
    named = f"{', '.join(wanted[:_COLUMNS_NAMED_MAX])}{more}"
    if not proposal.uuid:
        return f"table {proposal.table}" + (f" ({named})" if named else "")
    return f"{proposal.table}: {named}"
