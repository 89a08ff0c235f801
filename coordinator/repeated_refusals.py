"""Counts statuses that are refused whole for the same reason, and ends it by name (RANGE-3).

An honest participant is refused once, because it was late, or had not heard yet what others have.
If it is refused again and again, the coordinator knows a table too badly, or one of the two is
wrong, and no repetition helps.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.errors import StatusRefused
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import LogLine
from headgate.coordinator.phase_steps import (
    Step,
    partitions_of_newest_start,
    recover_from_table,
    secondaries_named_by_start,
    term_of,
)
from headgate.coordinator.state import Fault, RepeatedRefusal, State
from headgate.coordinator.status_validation import ValidationResult
from headgate.coordinator.table_suspension import suspend_or_forget_tables

LOOKS_AT = 3
"""So many equal refusals in a row, and all tables are read afresh, in a new epoch."""

ENDS_AT = 6
"""So many, and the table takes nothing any more, or the sink stops."""

PASSING_MS_MIN = 300_000
"""What is mostly over soon gets so long, however short the intervals are."""

_PASSING = (Fault.UNREADABLE, Fault.OVERTAKEN)
"""A table that cannot be read now (SUSPEND-3), and a member that does not know yet that its session
in the group has ended: it reads partitions that others own by now."""

_NAMED_MAX = 5


def with_repeated_refusals_counted(state: State, verdict: ValidationResult, now_ms: int) -> State:
    """Count on how often in a row each partition's ranges were refused for the same reason.

    What anybody has admitted of a partition begins its count anew: then somebody gets on with it,
    and who is refused is a zombie, or a liar. Silence does not.
    """
    before, read = state.refused, partitions_of_newest_start(state)
    taken = verdict.admitted_partitions
    counts, grown = dict(before), set[TopicPartition]()
    stale = {each.sender for each in verdict.refusals if each.objection.fault is Fault.STALE}
    for refusal in verdict.refusals:
        if refusal.sender in stale:
            continue  # that has a name of its own (TOKEN-2), and what follows begins behind it
        for partition in refusal.partitions & read:
            now = RepeatedRefusal(refusal.sender, refusal.objection, since_ms=now_ms)
            known = before.get(partition)
            if known and known.is_same_fault(now):
                now = replace(now, times=known.times + 1, since_ms=known.since_ms)
                grown.add(partition)
            elif partition in grown:
                continue  # a zombie is refused beside its owner
            counts[partition] = now
    left = {at: each for at, each in counts.items() if at in read and at not in taken}
    return replace(state, refused=left)


def act_on_repeated_refusals(state: State, now_ms: int) -> Step | None:
    """Look at the tables afresh, or end what goes on in spite of that; ``None``: nothing is due.

    Raises ``StatusRefused`` where no table alone is at fault.
    """
    for each in sorted(state.refused.values(), key=lambda each: -each.times):
        if each.times < LOOKS_AT:
            return None
        if each.times == LOOKS_AT and not each.looked:
            return _begin_epoch_to_reread_tables(state, each)
        if each.times >= ENDS_AT and not _may_end_by_itself(each, now_ms):
            return _suspend_or_stop(state, each, now_ms)
    return None


def _may_end_by_itself(refused: RepeatedRefusal, now_ms: int) -> bool:
    return refused.objection.fault in _PASSING and now_ms - refused.since_ms < PASSING_MS_MIN


def _begin_epoch_to_reread_tables(state: State, refused: RepeatedRefusal) -> Step:
    looked = {
        at: replace(each, looked=True) if each.is_same_fault(refused) else each
        for at, each in state.refused.items()
    }
    again, actions = recover_from_table(
        replace(state, refused=looked), "reads all tables afresh (RANGE-3)"
    )
    return again, (_refusal_log_line(_refusal_error(state, refused)), *actions)


def _suspend_or_stop(state: State, refused: RepeatedRefusal, now_ms: int) -> Step:
    error, table, term = _refusal_error(state, refused), refused.objection.table, term_of(state)
    if (
        not table
        or table in secondaries_named_by_start(state)
        or table in term.suspensions.suspended
    ):
        raise error
    rest = {at: each for at, each in state.refused.items() if not each.is_same_fault(refused)}
    suspended, tells = suspend_or_forget_tables(
        replace(state, refused=rest), {table: error}, now_ms
    )
    return suspended, (_refusal_log_line(error), *tells)


def _refusal_log_line(error: StatusRefused) -> LogLine:
    return LogLine(str(error), trouble=True, lasts=True, event=LogEvent.STATUS_REFUSED)


def _refusal_error(state: State, refused: RepeatedRefusal) -> StatusRefused:
    alike = sorted(at for at, each in state.refused.items() if each.is_same_fault(refused))
    some, more = ", ".join(map(str, alike[:_NAMED_MAX])), len(alike) - _NAMED_MAX
    where = some + (f" and {more} more" if more > 0 else "")
    return StatusRefused(
        f"{refused.sender} is refused {refused.times} times in a row, and nothing of {where} is "
        f"committed: {refused.objection.text}",
        "compare the versions of headgate and the sink files of all participants, and restart the "
        "named one",
    )
