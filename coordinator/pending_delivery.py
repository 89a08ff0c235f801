"""Delivering the secondary tables what the primary table has decided, and striking it off (rules D4
to D8).

Each round reads the primary table, then the secondary tables, and delivers those that are pending
something; another round reads what came of it. The next END waits for that until
``deliver_until_ms``, and the first START of an epoch waits for the secondary tables that its claim
claims (D9).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.commit_record_codec import PENDING_COMMITS_MAX
from headgate.control_protocol.errors import HeadgateError, MissingRights
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.machine_io import LogLine
from headgate.control_protocol.ports import (
    CommitAttempt,
    Draft,
    Lineage,
    Refused,
    TableView,
    Unknown,
)
from headgate.coordinator.actions import (
    AcknowledgeDelivered,
    Action,
    CommitTable,
    DeliveriesAnswered,
    DeliverPendingCommits,
    DescribeSecondaries,
    DescribeSources,
    Drafted,
    DraftManifests,
    ReadTable,
    SecondariesRead,
    TidyDrafts,
)
from headgate.coordinator.outgoing_events import (
    Step,
    addressed,
    move,
    recover,
    say,
    superseded,
    term_of,
    wait,
)
from headgate.coordinator.pending_commits import (
    deliveries,
    expired_so_far,
    followed,
    in_order,
    overdue,
    renewal,
    undelivered,
    unfenced,
    without,
)
from headgate.coordinator.phases import Phase
from headgate.coordinator.recovery import newest_epoch, rival
from headgate.coordinator.secondary_tables import (
    REFUSALS_MAX,
    closed,
    deliverable,
    examined,
    found_gone,
    given_up,
    reopened,
    resumed,
    suspend,
    suspended_for,
    to_be_delivered,
    to_be_looked_for,
    told,
    trouble_of,
    unopened,
    unpayable,
    wearied,
)
from headgate.coordinator.source_partitions import ripened
from headgate.coordinator.state import Gathering, State, Term
from headgate.coordinator.status_validation import Verdict, age_ms, too_old

# Sends empty deliveries to tables without new rows, so that their valid-through advances (V2).
#
# Tables that the ledger has filled and that this epoch has not seen are looked at a few at a time.


AT_ONCE = 20
"""For one transaction this many tables are looked at, or delivered without rows."""


def listed(state: State, now_ms: int) -> State:
    """List the tables to look at, as often as tables are refreshed."""
    term, every_ms = term_of(state), state.identity.refresh_ms
    at_ms = term.unseen_at_ms
    if not every_ms or (at_ms is not None and now_ms - at_ms < every_ms):
        return state
    known = {*term.secondaries, *addressed(state), *term.suspended, *term.forgotten}
    names = tuple(sorted(term.view.filled.keys() - known))
    return replace(state, term=replace(term, unseen=names, unseen_at_ms=now_ms))


def unseen(term: Term) -> tuple[str, ...]:
    """Return the tables to look at next."""
    return term.unseen[:AT_ONCE]


def seen(state: State, given: SecondariesRead) -> State:
    """Remember the tables that were looked at, if this primary table has delivered them and they
    are in order.

    Nothing goes to the others, so what is wrong with them matters to nobody yet.
    """
    term = term_of(state)
    found = {
        name: view
        for name in unseen(term)
        if (view := given.views.get(name))
        and _ours(view, term.view)
        and trouble_of(view, state, term.topic_ids) is None
    }
    rest, secondaries = term.unseen[AT_ONCE:], {**term.secondaries, **found}
    return replace(state, term=replace(term, unseen=rest, secondaries=secondaries))


def _ours(secondary: TableView, primary: TableView) -> bool:
    return bool(secondary.record and secondary.record.primary == primary.uuid) and followed(
        {secondary.table: secondary}, primary
    )


def behind(state: State, through_ms: int | None, touched: Collection[str]) -> tuple[TableView, ...]:
    """Return the tables to be refreshed, those that are furthest behind first.

    ``touched`` are about to be delivered anyway, as are those that are pending something.
    """
    term, least_ms = term_of(state), state.identity.refresh_ms
    if not least_ms or through_ms is None:
        return ()
    busy = {
        *touched,
        *addressed(state),
        *term.suspended,
        *(pending_commit.table for pending_commit in term.pending_commits),
    }
    known = {
        name: record.valid_through_ms or 0
        for name, view in term.secondaries.items()
        if name not in busy and (record := view.record) and record.primary == term.view.uuid
    }
    late = sorted((at_ms, name) for name, at_ms in known.items() if through_ms - at_ms >= least_ms)
    return tuple(term.secondaries[name] for _, name in late[:AT_ONCE])


def refreshes(
    state: State, record: CommitRecord, touched: Collection[str]
) -> tuple[PendingCommit, ...]:
    """Return the empty pending commits by which tables learn of the record's valid-through."""
    late = behind(state, record.valid_through_ms, touched)
    return tuple(renewal(record, secondary) for secondary in late)


# When a sink without new rows commits all the same, so that its tag stays near the head (T5).
#
# By age; and when others have moved the branch, which is checked now and then: what they expire
# next may be the way from the head to the tag.


def prepared(state: State, now_ms: int) -> Step:
    """Describe the sources, and look at the table, because END is due."""
    state = listed(ripened(state, now_ms), now_ms)
    term = term_of(state)
    known_ms = max(term.committed_at_ms, term.looked_at_ms)
    actions: tuple[Action, ...] = (DescribeSources(),)
    wanted = (*sorted(term.resume_asked | unopened(term)), *unseen(term))
    looks = term.look_soon or now_ms - known_ms >= state.settings.table_check_interval_ms
    if looks:
        term = replace(term, looked_at_ms=now_ms, look_soon=False)
        wanted = (*addressed(state), *wanted)
    filled = to_be_looked_for(state, now_ms)
    if filled:
        term = replace(term, listed_at_ms=now_ms)
    secondaries = (DescribeSecondaries(wanted, filled),) if wanted or filled else ()
    actions = (*((ReadTable(),) if looks else ()), *secondaries, *actions)
    return move(state, Phase.PREPARING, term=term), actions


def looked(state: State, view: TableView) -> Step:
    """Note whether others moved the table; the next commit finds out more (C8).

    Where its owner wants its data now, the next START says (P9).
    """
    term = term_of(state)
    overtaken = _places(view) != _places(term.view)
    return replace(state, term=replace(term, overtaken=overtaken, view=_at(term.view, view))), ()


def _at(known: TableView, found: TableView) -> TableView:
    """Return the table as it is known, with its data where it was just found."""
    if found.uuid != known.uuid:
        return known
    return replace(known, location=found.location, data_location=found.data_location)


def looked_at_secondaries(state: State, given: SecondariesRead, now_ms: int) -> Step:
    """As ``looked``, for secondary tables: their tags and heads show what others did."""
    state, tells = resumed(state, given, now_ms)
    state, suspended = suspend(state, found_gone(state, given), now_ms)
    before = term_of(state)
    moved = any(
        _places(given.views[name]) != _places(known)
        for name, known in before.secondaries.items()
        if name in given.views
    )
    found = {
        n: _at(known, given.views[n]) for n, known in before.secondaries.items() if n in given.views
    }
    secondaries = {**before.secondaries, **found}
    looked = replace(
        state, term=replace(before, overtaken=before.overtaken or moved, secondaries=secondaries)
    )
    return seen(looked, given), (*tells, *suspended)


def renews(state: State, now_ms: int) -> bool:
    """Return whether the table's tag is to be moved without new rows."""
    term = term_of(state)
    return term.overtaken or _aged(state, term.committed_at_ms, now_ms)


def renews_secondary(state: State, name: str, now_ms: int) -> bool:
    """Return whether a secondary table's tag is to be moved without rows for it (Q4)."""
    term = term_of(state)
    return term.overtaken or _aged(state, term.moved_at_ms.get(name, 0), now_ms)


def _aged(state: State, since_ms: int, now_ms: int) -> bool:
    return now_ms - since_ms >= state.settings.tag_refresh_interval_ms


def _places(view: TableView) -> tuple[object, ...]:
    return view.uuid, view.tag, view.head


# From a verdict to a decision that names what is pending for secondary tables: manifests first
# (D2, D3, D8).


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


# Decides when a secondary table is delivered to: at once, or after its pending commits have
# gathered (V4).
#
# Only the epoch that decided knows since when a table's pending commits gather. A claim delivers to
# all that it finds.


GATHERED_MAX = 1_000
"""The primary table's record names each pending commit; where more gather, all are due."""


def pending_now(state: State, now_ms: int) -> tuple[PendingCommit, ...]:
    """Return what is to be delivered now. A table that was resumed takes rows only once it is
    delivered to."""
    term = term_of(state)
    pending = deliverable(term)
    gathering = {
        name
        for name, each in term.gathering.items()
        if now_ms < each.due_ms and name not in term.suspended
    }
    return tuple(
        pending_commit for pending_commit in pending if pending_commit.table not in gathering
    )


def paced(state: State, now_ms: int) -> Term:
    """Return the term with the time at which each table whose pending commits gather is delivered.

    Called when the newest transaction was just decided. A table that could not be delivered before
    is due already. Where too many gather all are due, and what comes next does not gather: it
    counts for D7.
    """
    term, apart = term_of(state), addressed(state)
    fresh = {
        d.table for d in term.pending_commits if d.transaction == term.closing_id and d.manifest
    }
    before = {d.table for d in term.pending_commits if d.transaction != term.closing_id}
    begun = {
        name: Gathering(now_ms + every_ms, term.closing_id)
        for name in fresh - before - apart.keys()
        if (every_ms := _every_ms(state, name))
    }
    known = {name: each for name, each in term.gathering.items() if name in before}
    waiting = begun.keys() | {name for name, each in known.items() if now_ms < each.due_ms}
    if sum(pending_commit.table in waiting for pending_commit in deliverable(term)) > GATHERED_MAX:
        due = {n: replace(each, due_ms=min(each.due_ms, now_ms)) for n, each in known.items()}
        return replace(term, gathering=due)
    kept = {n: replace(e, newest=term.closing_id) if n in waiting else e for n, e in known.items()}
    return replace(term, gathering={**kept, **begun})


def tried(term: Term, pending: Collection[PendingCommit]) -> tuple[PendingCommit, ...]:
    """Return the pending commits that somebody has tried to deliver, as far as this epoch knows.

    Not those of the transaction that was just decided, nor those that gathered.
    """
    return tuple(
        pending_commit
        for pending_commit in pending
        if pending_commit.transaction != term.closing_id
        and not (
            (gathered := term.gathering.get(pending_commit.table))
            and pending_commit.transaction <= gathered.newest
        )
    )


def _every_ms(state: State, table: str) -> int:
    paces = state.identity.paces
    return next((each.every_ms for each in paces if re.fullmatch(each.match, table)), 0)


TRIED_MAX = 200
"""The primary table's record is repeated in each of its snapshots: it can bear this many
undelivered pending commits."""
_REASONS_MAX = 3


def begin_delivering(state: State, now_ms: int) -> Step:
    """Wait for deliveries of what was just decided; older pending commits are tried only once."""
    term = term_of(state)
    fresh = all(
        pending_commit.transaction == term.closing_id
        for pending_commit in pending_now(state, now_ms)
    )
    patience_ms = state.settings.delivery_timeout_ms if fresh else 0
    delivering = replace(term, deliver_until_ms=now_ms + patience_ms, asked=False)
    return move(state, Phase.DELIVERING, term=delivering, failures=0), (ReadTable(),)


def primary_read(state: State, view: TableView, now_ms: int) -> Step:
    """D4: deliver only what a fresh read shows under the primary table's tag."""
    term = term_of(state)
    ours = term.view.record
    assert ours is not None
    if view.uuid == term.view.uuid and rival(ours, view):
        return superseded(state, newest_epoch((view,)), now_ms)
    same = (view.uuid, view.tag) == (term.view.uuid, term.view.tag)
    intact = view.lineage is Lineage.CONTAINS_TAG and ours.same_commit(view.record)
    if not (same and intact):
        return recover(state, "the table is not as it was decided: begins again")
    overtaken = term.overtaken or view.head != term.view.head
    read = replace(state, term=replace(term, view=view, overtaken=overtaken))
    return read, (DescribeSecondaries(_named(read, now_ms)),)


def _named(state: State, now_ms: int) -> tuple[str, ...]:
    """Return the secondary tables that START names, and all that are to be delivered now."""
    pending = (pending_commit.table for pending_commit in pending_now(state, now_ms))
    return tuple(dict.fromkeys((*addressed(state), *pending)))


def secondaries_read(state: State, given: SecondariesRead, now_ms: int) -> Step:
    """D7: acknowledge what a read of the secondary table shows, never what a commit answered."""
    before = term_of(state)
    named = addressed(state) if state.identity.routed else given.views
    ours = {name: view for name, view in given.views.items() if name in named}
    routed = {name: view for name, view in given.views.items() if name not in named}
    kept = {name: view for name, view in routed.items() if name not in before.suspended}
    if not (in_order(ours, before.view, before.pending_commits) and followed(kept, before.view)):
        return recover(state, "a secondary table is not as it was delivered to: begins again")
    state, suspended = examined(state, given, {}, now_ms)
    state = replace(state, term=acknowledged(term_of(state), given, now_ms))
    spent = _spent(before, term_of(state))
    state, opened = reopened(state, given.views)
    many = _too_many(state, now_ms)
    state, weary = wearied(state, given, pending_now(state, now_ms), now_ms, many=many)
    after, actions = _next_deliveries(state, given, now_ms)
    return after, (*suspended, *opened, *weary, *spent, *actions)


def _next_deliveries(state: State, given: SecondariesRead, now_ms: int) -> Step:
    """Deliver to the next pending commits; not to a suspended table, for that would hide what is
    wrong with it (I1)."""
    term = term_of(state)
    wanted = deliveries(term.view, pending_now(state, now_ms), given.views, expiring(state, now_ms))
    if not wanted or (term.asked and _patience_is_over(state, now_ms)):
        return _goes_on(state, now_ms)
    if term.asked:
        return _waits(state, now_ms, "is pending for secondary tables still")
    asked = replace(state, term=replace(term, asked=True))
    return asked, (DeliverPendingCommits(wanted, state.settings.delivery_timeout_ms),)


def acknowledged(term: Term, given: SecondariesRead, now_ms: int) -> Term:
    """Return the term with the secondary tables as they are now, without pending commits that they
    show as delivered."""
    secondaries = {name: given.views.get(name, known) for name, known in term.secondaries.items()}
    moved = {
        name: now_ms if view.tag != term.secondaries[name].tag else term.moved_at_ms.get(name, 0)
        for name, view in secondaries.items()
    }
    pending_commits = undelivered(term.pending_commits, given.views, term.view.uuid)
    return replace(
        term, secondaries=secondaries, pending_commits=pending_commits, moved_at_ms=moved
    )


def _spent(before: Term, after: Term) -> tuple[AcknowledgeDelivered, ...]:
    """Return the key files to delete: those of pending commits that a read, not an answer, shows as
    delivered."""
    struck = tuple(
        pending_commit
        for pending_commit in before.pending_commits
        if pending_commit.deletes and pending_commit not in after.pending_commits
    )
    return (AcknowledgeDelivered(struck),) if struck else ()


def deliveries_answered(state: State, given: DeliveriesAnswered, now_ms: int) -> Step:
    """Read the secondary tables again, whatever the answers were."""
    reasons = [o.reason for o in given.outcomes.values() if isinstance(o, Refused | Unknown)]
    event = LogEvent.DELIVERY_UNCONFIRMED
    told = [LogLine(_unconfirmed(reasons), trouble=True, event=event)] if reasons else []
    state, suspended = unpayable(state, given, now_ms)
    return state, (*told, *suspended, DescribeSecondaries(_named(state, now_ms)))


def _unconfirmed(reasons: Sequence[str]) -> str:
    """Join the reasons in one line: a slow catalog is slow for each of hundreds of tables."""
    more = len(reasons) - _REASONS_MAX
    rest = [f"and {more} more"] if more > 0 else []
    return f"delivery not confirmed: {'; '.join([*reasons[:_REASONS_MAX], *rest])}"


def failed(state: State, now_ms: int, reason: str) -> Step:
    """Retry after a failed read or call, as long as deliveries are waited for."""
    if _patience_is_over(state, now_ms):
        return _goes_on(state, now_ms)
    return _waits(state, now_ms, reason)


def again(state: State, now_ms: int) -> Step:
    """Begin another round (D4) after the wait, unless it took too long."""
    if _patience_is_over(state, now_ms):
        return _goes_on(state, now_ms)
    return replace(state, term=replace(term_of(state), asked=False)), (ReadTable(),)


def _patience_is_over(state: State, now_ms: int) -> bool:
    term = term_of(state)
    over = term.deliver_until_ms is not None and now_ms >= term.deliver_until_ms
    return over and not _endless(state, now_ms)


def _endless(state: State, now_ms: int) -> bool:
    """Return whether delivery must come first: secondary tables are claimed, or pending too much
    (D7)."""
    claims = any(pending_commit.claim for pending_commit in pending_now(state, now_ms))
    return claims or _too_many(state, now_ms)


def _too_many(state: State, now_ms: int) -> bool:
    return len(tried(term_of(state), pending_now(state, now_ms))) >= TRIED_MAX


def _waits(state: State, now_ms: int, why: str) -> Step:
    waiting, actions = wait(state, now_ms, why)
    until_ms = term_of(state).deliver_until_ms
    at_ms = waiting.retry_at_ms
    if until_ms is not None and at_ms is not None and not _endless(state, now_ms):
        waiting = replace(waiting, retry_at_ms=max(now_ms, min(at_ms, until_ms)))
    return waiting, actions


def _goes_on(state: State, now_ms: int) -> Step:
    """Move on to the first START of the epoch, or to the transaction that is open."""
    term = replace(term_of(state), deliver_until_ms=None, asked=False)
    if not term.started:
        starting = move(state, Phase.STARTING, term=term, failures=0)
        return starting, say(starting)
    troubles, known = tuple(_troubles(state, term, now_ms)), term.pending_told
    told: tuple[Action, ...] = tuple(
        LogLine(text, trouble=True, event=LogEvent.DELIVERY_PENDING)
        for text in troubles
        if text not in known
    )
    return move(state, Phase.OPEN, term=replace(term, pending_told=troubles), failures=0), told


def _troubles(state: State, term: Term, now_ms: int) -> Iterable[str]:
    """Describe the rows that are still pending: not the empty pending commits, which only move a
    tag."""
    pending = [
        pending_commit
        for pending_commit in pending_now(replace(state, term=term), now_ms)
        if pending_commit.records
    ]
    if not pending:
        return
    wall_ms, age_max_ms = now_ms + state.wall_ahead_ms, state.settings.claim_age_max_ms
    rows = sum(pending_commit.records for pending_commit in pending)
    tables = ", ".join(sorted({pending_commit.table for pending_commit in pending}))
    yield f"{rows} rows stay pending for {tables}, and are tried again"
    old = sum(
        pending_commit.records for pending_commit in overdue(pending, wall_ms, age_max_ms // 2)
    )
    if old:
        yield f"{old} rows pending for {tables} expire soon (coordinator.claim_age_max_ms)"


def told_expired(after: CommitRecord, before: CommitRecord | None) -> tuple[LogLine, ...]:
    """D8: log what nobody delivers any more."""
    known = before.expired if before else ()
    return tuple(
        LogLine(
            f"{pending_commit.said} of transaction {pending_commit.transaction} never "
            f"came into {pending_commit.table}: "
            "they were pending for too long, or the table is another one now",
            trouble=True,
            event=LogEvent.DELIVERY_EXPIRED,
        )
        for pending_commit in after.expired
        if pending_commit.manifest and pending_commit not in known
    )


def tidied(term: Term) -> tuple[Action, ...]:
    """Delete what dead coordinators drafted and never decided: all below this epoch.

    What expired was decided: its rows can be written again from there (I6).
    """
    expired = term.view.record.expired if term.view.record else ()
    kept = frozenset(
        pending_commit.manifest
        for pending_commit in (*term.pending_commits, *expired)
        if pending_commit.manifest
    )
    return (TidyDrafts(term.epoch, kept),) if term.secondaries else ()
