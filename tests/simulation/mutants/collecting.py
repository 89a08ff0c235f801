"""COMMIT-3, RANGE-2, OUTCOME-2, COMMIT-4: readiness, judgement, outcomes, settlement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family, Planted

from headgate.control_protocol.events import WriteStatus
from headgate.control_protocol.machine_io import Append, OutgoingEvent
from headgate.coordinator import machine, status_validation
from headgate.coordinator.phases import Phase
from headgate.coordinator.recovery import Resolution
from headgate.coordinator.state import HeardStatus, State
from headgate.participant import machine as participant

FAMILY = Family()


@FAMILY.replaces("COMMIT-3", (machine, "_unheard_partitions"))
def count_not_set(right: Any, state: State) -> Any:
    """Claims are counted: a second status of a partition is as good as the missing one."""
    term = state.term
    assert term is not None
    told = [heard.status for heard in term.collection.statuses]
    count = sum(len(said.unknown) + len(said.written) for said in told)
    enough = count + len(term.collection.named_by_presence) >= len(term.collection.awaited)
    return frozenset() if enough else right(state)


@FAMILY.replaces("LOG-5", (machine, "is_repeated_event"))
def counts_twice(right: Any, state: State, said: Any) -> bool:
    """A status that is heard twice is judged twice."""
    return not isinstance(said.event, WriteStatus) and bool(right(state, said))


@FAMILY.replaces("LOG-5", (machine, "is_repeated_event"))
def late_judged_twice(right: Any, state: State, said: Any) -> bool:
    """What was judged is forgotten: a status said again behind L is judged again."""
    if not isinstance(said.event, WriteStatus) or state.term is None:
        return bool(right(state, said))
    number = said.event.status_number
    waiting = state.term.collection.statuses
    return any((s.sender, s.status.status_number) == (said.sender, number) for s in waiting)


@FAMILY.replaces("LOG-5", (machine, "is_repeated_event"))
def high_water_mark(right: Any, state: State, said: Any) -> bool:
    """Only the highest number is known: what was overtaken on its way counts for nothing."""
    window = state.watch.windows.get(said.sender)
    return bool(right(state, said)) or (window is not None and said.sequence < window.highest)


@FAMILY.replaces("COMMIT-3", (machine, "_on_status"))
def late_do_not_count(right: Any, state: State, heard: HeardStatus) -> Any:
    """Only answers to this END count."""
    term = state.term
    assert term is not None
    newest = term.progress.number if state.phase is Phase.OPEN else term.previous_transaction_number
    return (state, ()) if heard.transaction < newest else right(state, heard)


@FAMILY.replaces("COMMIT-3", (machine, "_unheard_partitions"))
def newborn_waited_for(right: Any, state: State) -> Any:
    """A partition that nobody can own yet is waited for."""
    assert state.term is not None
    return right(
        replace(
            state,
            term=replace(
                state.term,
                collection=replace(
                    state.term.collection, awaited=frozenset(state.term.progress.offsets)
                ),
            ),
        )
    )


@FAMILY.patches("COMMIT-3")
def newborn_for_ever() -> tuple[Planted, ...]:
    """A partition that came later is never waited for."""
    right = machine._unheard_partitions
    first: dict[Any, Any] = {}

    def unnamed(state: State) -> Any:
        assert state.term is not None
        term = (state.identity.sender, state.term.epoch)
        return right(state) & first.setdefault(term, frozenset(state.term.progress.offsets))

    return ((machine, "_unheard_partitions", unnamed),)


@FAMILY.replaces("RANGE-2", (status_validation, "_check_ranges"))
def blind_admission(right: Any, heard: Any, offsets: Any, taken: Any) -> None:
    """Ranges are not compared with C."""


@FAMILY.replaces("RANGE-2", (status_validation, "_check_ranges"))
def late_admitted_blindly(right: Any, heard: Any, offsets: Any, taken: Any) -> Any:
    """A range that ends beyond C is let in, wherever it begins."""
    if all(claim.range.end >= offsets.get(p, 0) for p, claim in heard.status.written.items()):
        return None
    return right(heard, offsets, taken)


@FAMILY.replaces("RANGE-2", (machine, "validate_statuses"))
def piecemeal(right: Any, statuses: Any, by: Any) -> Any:
    """Claims that fit are let in, though the status as a whole does not fit."""
    fitting, offsets = [], by.offsets
    for heard in statuses:
        said = heard.status.written
        fit = {p: c for p, c in said.items() if offsets.get(p) == c.range.begin}
        offsets = offsets.after_ranges({p: c.range for p, c in fit.items()})
        fitting.append(replace(heard, status=replace(heard.status, written=fit)))
    return _uncounted(right, fitting, by)


def _uncounted(right: Any, statuses: Any, by: Any) -> Any:
    """The row counts were compared before; what is left of a status cannot add up."""
    counted, status_validation._check_counts = status_validation._check_counts, lambda *_: None
    try:
        return right(statuses, by)
    finally:
        status_validation._check_counts = counted


@FAMILY.replaces("RANGE-2", (machine, "validate_statuses"))
def not_in_log_order(right: Any, statuses: Any, by: Any) -> Any:
    """Statuses are judged by sender, not in log order."""
    return right(sorted(statuses, key=lambda h: (h.sender, -h.status.status_number)), by)


@FAMILY.replaces("RANGE-2", (status_validation, "_check_folders"))
def any_folder(right: Any, *given: Any) -> None:
    """Files may lie anywhere, and be of any age."""


@FAMILY.patches("RANGE-2")
def rows_uncounted() -> tuple[Planted, ...]:
    """Row counts are not compared, where files hold rows of a partition that was lost
    (POSITION-1)."""
    lose = participant._drop_work_and_announce_loss

    def keeps_files(state: Any, lost: Any) -> Any:
        after, actions = lose(state, lost)
        owned = {p: own for p, own in state.work.owned.items() if p in after.work.owned}
        work = replace(after.work, owned=owned, files=state.work.files)
        return replace(after, work=work), actions

    return (participant, "_drop_work_and_announce_loss", keeps_files), (
        status_validation,
        "_check_counts",
        lambda *_: None,
    )


@FAMILY.replaces("RANGE-2", (machine, "_is_worth_a_commit"))
def rows_only(right: Any, state: State, verdict: Any, *_: Any) -> bool:
    """A range without rows is not committed."""
    return bool(verdict.row_count > 0)


@FAMILY.replaces("OUTCOME-2", (machine, "judge_attempt"))
def blind_rebase(right: Any, attempt: Any, view: Any) -> Resolution:
    """After a refusal the same again, whoever's record is under the tag."""
    found: Resolution = right(attempt, view)
    return found if found is Resolution.LANDED else Resolution.AGAIN


@FAMILY.replaces("OUTCOME-2", (machine, "judge_attempt"))
def not_recognised(right: Any, attempt: Any, view: Any) -> Resolution:
    """A commit that had landed is made again."""
    found: Resolution = right(attempt, view)
    return Resolution.AGAIN if found is Resolution.LANDED else found


@FAMILY.replaces("OUTCOME-2", (machine, "judge_attempt"))
def fenced_goes_on(right: Any, attempt: Any, view: Any) -> Resolution:
    """Superseded by another's record in the table: taken for landed all the same."""
    found: Resolution = right(attempt, view)
    return Resolution.LANDED if found is Resolution.SUPERSEDED else found


@FAMILY.replaces("COMMIT-4", (machine, "validate_statuses"))
def all_sure(right: Any, statuses: Any, by: Any) -> Any:
    """Valid-through advances though something was unknown."""
    return replace(right(statuses, by), unsure=frozenset())


@FAMILY.replaces("COMMIT-4", (machine, "_decide_transaction"))
def says_before_it_lands(right: Any, state: State, *given: Any) -> Any:
    """ACK is said when the commit is sent."""
    judged, actions = right(state, *given)
    term = judged.term
    if judged.phase is Phase.COMMITTING and term and term.progress.settlement:
        actions = (
            Append(
                (
                    OutgoingEvent(
                        term.epoch, term.previous_transaction_number, term.progress.settlement
                    ),
                )
            ),
            *actions,
        )
    return judged, actions
