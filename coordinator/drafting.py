"""From a verdict to a decision that names what is pending for secondary tables: manifests first
(D2, D3, D8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.control_protocol.errors import HeadgateError, MissingRights
from headgate.control_protocol.pending_commits_codec import PENDING_COMMITS_MAX
from headgate.control_protocol.ports import CommitAttempt, Draft, Lineage
from headgate.control_protocol.record import CommitRecord, PendingCommit
from headgate.coordinator.actions import (
    CommitTable,
    DescribeSecondaries,
    Drafted,
    DraftManifests,
    SecondariesRead,
)
from headgate.coordinator.admission import Verdict
from headgate.coordinator.dropped import given_up
from headgate.coordinator.moves import Step, move, recover, term_of, wait
from headgate.coordinator.pending_commits import expired_so_far, overdue, renewal, unfenced, without
from headgate.coordinator.refreshing import refreshes
from headgate.coordinator.renewal import renews_secondary
from headgate.coordinator.speech import addressed
from headgate.coordinator.standard import age_ms, too_old
from headgate.coordinator.state import State
from headgate.coordinator.suspension import (
    REFUSALS_MAX,
    closed,
    suspended_for,
    to_be_delivered,
    told,
)
from headgate.coordinator.transitions import Phase

_TOO_OLD = "the files to be drafted are so old that they may have been cleaned up: begins again"
_TOO_MANY = "more is pending than the table's record can name: begins again, and delivers first"


def expiring(state: State, now_ms: int) -> tuple[PendingCommit, ...]:
    """D8: return the pending commits that the next decision names as expired, and that nobody
    delivers then."""
    wall_ms = now_ms + state.wall_ahead_ms
    return overdue(term_of(state).pending_commits, wall_ms, state.settings.claim_age_max_ms)


def _strayed(state: State) -> tuple[PendingCommit, ...]:
    """D8: return the pending commits of routed tables that the last read shows to be other tables
    now."""
    term, apart = term_of(state), {*addressed(state), *closed(term_of(state))}
    known = {name: view.uuid for name, view in term.secondaries.items() if name not in apart}
    return tuple(d for d in term.pending_commits if known.get(d.table, d.secondary) != d.secondary)


def with_what_is_pending(state: State, record: CommitRecord, now_ms: int) -> CommitRecord:
    """D3: add the pending commits that are left to the record, in their order."""
    term = term_of(state)
    gone = given_up(term.pending_commits, term.forgotten)
    late = tuple(dict.fromkeys((*expiring(state, now_ms), *_strayed(state), *gone)))
    stored = term.view.record
    return replace(
        record,
        pending_commits=without(term.pending_commits, late),
        expired=expired_so_far(stored, late),
    )


def fences(state: State) -> bool:
    """D8: return whether the record names a expired pending commit whose secondary table has not
    moved since."""
    term = term_of(state)
    expired = term.view.record.expired if term.view.record else ()
    return bool(expired) and any(
        unfenced(known, expired, term.pending_commits)
        for name, known in term.secondaries.items()
        if name not in term.suspended  # a resumed table is delivered to before it takes rows
    )


def drafted_for(state: State, attempt: CommitAttempt, verdict: Verdict, now_ms: int) -> Step:
    """D2: write the manifests of secondary tables before the decision; decide at once without
    any."""
    term = term_of(state)
    named, expired, pending = (
        addressed(state),
        attempt.record.expired,
        attempt.record.pending_commits,
    )
    resumed = tuple(renewal(attempt.record, each) for each in to_be_delivered(term, pending))
    renewed = tuple(
        renewal(attempt.record, secondary)
        for name, secondary in {**named, **term.secondaries}.items()
        if name not in verdict.secondary_files
        and name not in term.suspended
        and (
            (name in named and renews_secondary(state, name, now_ms))
            or unfenced(secondary, expired, pending)
        )
    )
    touched = {
        *verdict.secondary_files,
        *(pending_commit.table for pending_commit in (*resumed, *renewed)),
    }
    idle = refreshes(state, attempt.record, touched)
    pending_commits = (*pending, *resumed, *renewed, *idle)
    if len(pending_commits) > PENDING_COMMITS_MAX:
        return recover(state, _TOO_MANY)
    attempt = replace(attempt, record=replace(attempt.record, pending_commits=pending_commits))
    wall_ms = now_ms + state.wall_ahead_ms
    drafts = tuple(
        Draft(
            table=term.secondaries[name],
            transaction=attempt.record.transaction,
            coordinator=attempt.record.coordinator,
            files=files,
            since_ms=max(0, wall_ms - age_ms(state, term.secondaries[name], files, now_ms)),
        )
        for name, files in verdict.secondary_files.items()
    )
    if not drafts:
        decided = replace(term, drafts=())
        moved = move(state, Phase.COMMITTING, term=decided, attempt=attempt)
        return moved, (CommitTable(attempt),)
    drafting = replace(term, decision=attempt, drafts=drafts)
    return move(state, Phase.DRAFTING, term=drafting), (DraftManifests(drafts),)


def drafted(state: State, given: Drafted, now_ms: int) -> Step:
    """D3: decide; the drafts are pending as soon as the primary table's commit has landed, and not
    before."""
    term = term_of(state)
    attempt = term.decision
    assert attempt is not None
    if given.troubles:
        return _undrafted(state, given.troubles, now_ms)
    if too_old(state, attempt, now_ms):  # P9: the answer may have taken long
        return recover(state, _TOO_OLD)
    pending_commits = (*attempt.record.pending_commits, *given.pending_commits)
    if len(pending_commits) > PENDING_COMMITS_MAX:
        return recover(state, _TOO_MANY)
    attempt = replace(attempt, record=replace(attempt.record, pending_commits=pending_commits))
    decided = replace(term, decision=None)
    moved = move(state, Phase.COMMITTING, term=decided, attempt=attempt, failures=0)
    return moved, (CommitTable(attempt),)


def _undrafted(state: State, troubles: Mapping[str, HeadgateError], now_ms: int) -> Step:
    """I1: judge again, without the tables that cannot take the drafts."""
    rights_only = all(isinstance(error, MissingRights) for error in troubles.values())
    if rights_only and state.failures < REFUSALS_MAX:
        return wait(state, now_ms, "; ".join(error.message for error in troubles.values()))
    found = suspended_for(state, troubles, now_ms + state.wall_ahead_ms)
    recovering, actions = recover(
        state, f"no manifest for {', '.join(sorted(troubles))}: begins again"
    )
    return replace(recovering, troubled={**state.troubled, **found}), (*told(found), *actions)


def drafts_again(state: State, now_ms: int) -> Step:
    """Read the secondary tables after a failure to write the manifests: they may have changed."""
    term = term_of(state)
    assert term.decision is not None
    if too_old(state, term.decision, now_ms):
        return recover(state, _TOO_OLD)
    names = tuple(dict.fromkeys(draft.table.table for draft in term.drafts))
    return state, (DescribeSecondaries(names),)


def read_for_drafts(state: State, given: SecondariesRead, now_ms: int) -> Step:
    """Ask for the same drafts again, if the tables are still the same."""
    term = term_of(state)
    if given.troubles:
        return _undrafted(state, given.troubles, now_ms)
    for draft in term.drafts:
        name = draft.table.table
        if state.identity.routed and name not in given.views:
            return recover(state, f"{name} cannot be read: begins again")
        now = given.views.get(name, draft.table)
        if now.uuid != draft.table.uuid or now.lineage is Lineage.TAG_MISSING:
            return recover(state, f"{draft.table.table} is another table now: begins again")
    return state, (DraftManifests(term.drafts),)
