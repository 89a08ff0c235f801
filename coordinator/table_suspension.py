"""Suspends routed tables with trouble, while all others go on (SUSPEND-1 to SUSPEND-5).

A suspended table takes nothing: its records go to the quarantine, statuses with files of it are
refused once, and what is pending for it waits. The primary table's record says so, claims carry it
on, and only a person ends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from headgate.control_protocol.commit_record import PendingCommit, Suspended
from headgate.control_protocol.errors import (
    HeadgateError,
    HistoryUndecidable,
    MissingRights,
    SecondaryForeign,
    SourceShared,
    TableMissing,
    TableRolledBack,
    TagMissing,
    TooManySuspended,
    Unreachable,
)
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import LogLine
from headgate.control_protocol.ports import Lineage, TableView, Unknown
from headgate.coordinator.inputs_and_actions import DeliveriesAnswered, SecondariesRead
from headgate.coordinator.phase_steps import (
    epoch_prefixes,
    leader_unanswered_max_ms,
    secondaries_named_by_start,
    term_of,
    with_former_data_roots,
)
from headgate.coordinator.recovery import require_sources_unshared
from headgate.coordinator.secondary_pending_commits import (
    find_overdue_commits,
    require_secondaries_own_and_not_ahead,
)
from headgate.coordinator.settings import CoordinatorSettings, RollbackPolicy
from headgate.coordinator.state import AccessRefusals, RefusedAccess, State, Term

# Tables that the ledger has filled and that are gone: suspended, or made again where asked for
# (LEDGER-2).
#
# The ledger remembers the tables that it has filled beyond one epoch. A table that is made again is
# first *forgotten* by a decision: what was pending for the old table expires by name there, and
# nothing is pending for a new one.


Troubles = Mapping[str, HeadgateError]


def tables_to_suspend_if_missing(
    state: State, view: TableView, suspended: Collection[str]
) -> frozenset[str]:
    """Return the tables to suspend if they are missing; none under ``on_missing = "create"``."""
    if not state.identity.routed or state.identity.makes_anew:
        return frozenset()
    return frozenset(view.filled) - frozenset(suspended) - frozenset(state.identity.secondaries)


def tables_of_term_to_suspend_if_missing(state: State) -> frozenset[str]:
    """Return the epoch's filled tables: a busy sink would not miss one of them."""
    term = term_of(state)
    return (
        tables_to_suspend_if_missing(state, term.primary.view, term.suspensions.suspended)
        - term.suspensions.forgotten
    )


def find_missing_filled_tables(state: State, given: SecondariesRead) -> dict[str, HeadgateError]:
    """Return the filled tables that were found missing.

    Those that START names, that are suspended already and that are forgotten are left out.
    """
    term = term_of(state)
    wanted = (
        term.primary.view.filled.keys()
        - secondaries_named_by_start(state).keys()
        - term.suspensions.forgotten
    )
    return {
        name: error
        for name, error in given.troubles.items()
        if name in wanted - term.suspensions.suspended.keys() and isinstance(error, TableMissing)
    }


def find_missing_tables_to_recreate(state: State, troubles: Troubles) -> frozenset[str]:
    """Return the missing tables if the settings ask for new ones, also those that are suspended."""
    if not state.identity.makes_anew:
        return frozenset()
    return frozenset(n for n, error in troubles.items() if isinstance(error, TableMissing))


def forget_secondaries_at_next_decision(
    state: State, gone: Collection[str]
) -> tuple[State, tuple[LogLine, ...]]:
    """Let the next decision forget these tables; nothing is delivered to them, or accepted for
    them."""
    term = term_of(state)
    new = frozenset(gone) - term.suspensions.forgotten
    if not new:
        return state, ()
    secondaries = {
        name: view for name, view in term.delivery.secondaries.items() if name not in new
    }
    parted = replace(
        term,
        suspensions=replace(term.suspensions, forgotten=term.suspensions.forgotten | new),
        delivery=term.delivery.with_secondaries(secondaries),
    )
    return replace(state, term=parted), dropped_tables_log_lines(new)


def dropped_tables_log_lines(gone: Collection[str]) -> tuple[LogLine, ...]:
    return tuple(
        LogLine(
            f"{name} was dropped: it is created again when records for it come; "
            "what is pending for it expires",
            trouble=True,
            event=LogEvent.TABLE_DROPPED,
        )
        for name in sorted(gone)
    )


def replaced_tables_log_lines(state: State, given: SecondariesRead) -> tuple[LogLine, ...]:
    """CREATE-4: name tables that somebody else put in the place of filled ones; they are filled."""
    known = term_of(state).primary.view.filled
    return tuple(
        LogLine(
            f"{name} is not the table that was filled before: it lacks that one's rows",
            trouble=True,
            event=LogEvent.TABLE_DROPPED,
        )
        for name, view in sorted(given.views.items())
        if known.get(name, view.uuid) != view.uuid
    )


def pending_commits_of_tables(
    pending_commits: Collection[PendingCommit], tables: Collection[str]
) -> tuple[PendingCommit, ...]:
    """Return the pending commits of these tables."""
    return tuple(
        pending_commit for pending_commit in pending_commits if pending_commit.table in tables
    )


def with_forgetting_done(term: Term, forgets: Collection[str]) -> Term:
    """Strike these from the tables that the next decision is to forget: one that forgets them has
    landed."""
    return replace(
        term,
        suspensions=replace(
            term.suspensions, forgotten=term.suspensions.forgotten - frozenset(forgets)
        ),
    )


SUSPENDED_MAX = 100
"""The primary table's record and every START name them; beyond this it is not the tables'
trouble."""

REFUSALS_MAX = 3
"""Rights come and go while somebody changes them: they must be missing so often in a row."""

_WHY_CHARACTERS_MAX = 300
_INTACT = (Lineage.CONTAINS_TAG, Lineage.FRESH)


def require_history_intact(view: TableView, settings: CoordinatorSettings) -> None:
    """Raise the error of a table that lost rows below the ledger's offsets: they are gone
    (QUARANTINE-1)."""
    keep = settings.on_rollback is RollbackPolicy.KEEP_OFFSETS
    if view.lineage in (Lineage.ROLLED_BACK, Lineage.UNDECIDABLE) and not keep:
        back = view.lineage is Lineage.ROLLED_BACK
        kind = TableRolledBack if back else HistoryUndecidable
        what = "was rolled back" if back else "may have been rolled back; history is missing"
        raise kind(
            f"{view.table} {what} behind the sink's tag; the ledger's offsets have passed "
            "what it lost",
            'coordinator.on_rollback = "keep-offsets" continues without its rows',
        )
    if view.lineage is Lineage.TAG_MISSING:
        raise TagMissing(
            f"{view.table}: the sink's tag is gone, but the table once had it",
            "restore the tag on the sink's newest snapshot of this table",
        )


def find_table_trouble(
    view: TableView, state: State, topic_ids: Mapping[str, str]
) -> HeadgateError | None:
    """Return what is wrong with a table, as a read of it shows."""
    try:
        require_history_intact(view, state.settings)
        require_sources_unshared(view, topic_ids, state.identity.shared_with)  # type: ignore[arg-type]
    except (HistoryUndecidable, SourceShared, TableRolledBack, TagMissing) as error:
        return error
    return None


def suspend_troubled_tables(
    state: State, given: SecondariesRead, reported_troubles: Mapping[str, str], now_ms: int
) -> tuple[State, tuple[LogLine, ...]]:
    """SUSPEND-1: suspend those of the routed tables just read that are not in order.

    ``reported_troubles`` are participants'. They count where this coordinator finds nothing wrong
    and they are repeated again and again. Raises the error where there is no quarantine
    (SUSPEND-4).
    """
    term, named = term_of(state), secondaries_named_by_start(state)
    troubles = {
        n: error for n, error in given.troubles.items() if n not in term.suspensions.suspended
    }
    shut = suspended_tables_not_resuming(term)
    refused = _tables_not_allowed(given.troubles) - shut
    for name, view in given.views.items():
        if name in named or name in term.suspensions.suspended:
            continue
        if error := find_table_trouble(view, state, term.sources.topic_ids):
            troubles[name] = error
        elif reported_troubles.get(name, "").startswith(MissingRights.code):
            troubles[name] = MissingRights(
                reported_troubles[name].removeprefix(f"{MissingRights.code} ")
            )
            refused.add(name)
    state, early = _count_refused_reads(state, refused, {*given.views, *given.troubles})
    resuming = {n: error for n, error in given.troubles.items() if n not in early}
    state, stopped = _stop_resuming_troubled_tables(state, resuming, now_ms)
    state, tells = suspend_or_forget_tables(
        state, {n: e for n, e in troubles.items() if n not in early}, now_ms
    )
    return state, (*stopped, *tells)


def stop_resuming_tables_without_pending(
    state: State, given: SecondariesRead, now_ms: int
) -> tuple[State, tuple[LogLine, ...]]:
    """SUSPEND-5: suspend resuming tables again that a table check finds gone or unreadable."""
    read = given.views.keys() | given.troubles.keys()
    looked = resuming_tables_without_pending(term_of(state)) & read
    refused = _tables_not_allowed(given.troubles) & looked
    state, early = _count_refused_reads(state, refused, looked)
    troubles = {n: error for n, error in given.troubles.items() if n not in early}
    return _stop_resuming_troubled_tables(state, troubles, now_ms)


def _tables_not_allowed(troubles: Troubles) -> set[str]:
    return {n for n, error in troubles.items() if isinstance(error, MissingRights)}


def _count_refused_reads(
    state: State, refused: Collection[str], asked: Collection[str]
) -> tuple[State, set[str]]:
    """Count these refusals, and return whose are too few yet to suspend the table."""
    term = term_of(state)
    known = term.suspensions.refused_access
    reads = _count_refused_access(known.reads, refused, asked, term.delivery.pending)
    early = {n for n in refused if reads[n].times < REFUSALS_MAX}
    return _with_refused_access(state, replace(known, reads=reads)), early


def _stop_resuming_troubled_tables(
    state: State, troubles: Troubles, now_ms: int
) -> tuple[State, tuple[LogLine, ...]]:
    """SUSPEND-5: suspend resuming tables again that are gone, or cannot be read.

    A person who asks for one that is resuming is not heard: it would be so for ever.
    """
    term, wall_ms = term_of(state), state.wall_ms(now_ms)
    found = {
        name: _suspension_for(name, error, wall_ms)
        for name, error in troubles.items()
        if (known := term.suspensions.suspended.get(name)) and known.resuming
    }
    if not found:
        return state, ()
    suspensions = replace(
        term.suspensions,
        suspended={**term.suspensions.suspended, **found},
        refused_access=term.suspensions.refused_access.without_tables(found),
    )
    return replace(state, term=replace(term, suspensions=suspensions)), suspended_tables_log_lines(
        found
    )


def suspend_undeliverable_tables(
    state: State, given: DeliveriesAnswered, now_ms: int
) -> tuple[State, tuple[LogLine, ...]]:
    """SUSPEND-1: suspend the tables whose deliveries failed for a trouble of their own."""
    term, outcomes = term_of(state), given.outcomes.items()
    refused = {n: o.reason for n, o in outcomes if isinstance(o, Unknown) and o.rights}
    refused |= {n: e.message for n, e in given.troubles.items() if isinstance(e, MissingRights)}
    asked = {*given.outcomes, *given.troubles}
    known = term.suspensions.refused_access
    deliveries = _count_refused_access(known.deliveries, refused, asked, term.delivery.pending)
    troubles = {n: e for n, e in given.troubles.items() if n not in refused}
    weary = {n for n in refused if deliveries[n].times >= REFUSALS_MAX}
    troubles |= {n: MissingRights(refused[n]) for n in sorted(weary)}
    named = secondaries_named_by_start(state)
    state = _with_refused_access(state, replace(known, deliveries=deliveries))
    return suspend_or_forget_tables(
        state, {n: e for n, e in troubles.items() if n not in named}, now_ms
    )


def count_refused_stagings(
    state: State, troubles: Mapping[str, HeadgateError], asked: Collection[str]
) -> tuple[State, dict[str, HeadgateError]]:
    """SUSPEND-1: return the troubles of staging that suspend their tables, others counted.

    ``asked`` are the tables to stage for; those without trouble were not refused.
    """
    term = term_of(state)
    refused = {n for n, error in troubles.items() if isinstance(error, MissingRights)}
    known = term.suspensions.refused_access
    stagings = _count_refused_access(known.stagings, refused, asked, term.delivery.pending)
    early = {n for n in refused if stagings[n].times < REFUSALS_MAX}
    state = _with_refused_access(state, replace(known, stagings=stagings))
    return state, {n: error for n, error in troubles.items() if n not in early}


def _count_refused_access(
    known: Mapping[str, RefusedAccess],
    refused: Collection[str],
    asked: Collection[str],
    pending: Sequence[PendingCommit],
) -> dict[str, RefusedAccess]:
    """Count one more refusal of each of these tables; anew where somebody delivered meanwhile."""
    counts = {name: count for name, count in known.items() if name not in asked}
    oldest = {each.table: each for each in reversed(pending)} if refused else {}
    for name in refused:
        before, first = known.get(name, RefusedAccess(0)), oldest.get(name)
        times = before.times if before.oldest in (None, first) else 0
        counts[name] = RefusedAccess(times + 1, first)
    return counts


def _with_refused_access(state: State, refused: AccessRefusals) -> State:
    term = term_of(state)
    return replace(
        state, term=replace(term, suspensions=replace(term.suspensions, refused_access=refused))
    )


def suspend_or_forget_tables(
    state: State, troubles: Mapping[str, HeadgateError], now_ms: int
) -> tuple[State, tuple[LogLine, ...]]:
    """Suspend these tables from now on, or forget them where they are made again. Raises the error
    of one where there is no quarantine (SUSPEND-4)."""
    anew = find_missing_tables_to_recreate(state, troubles)
    state, parting_words = forget_secondaries_at_next_decision(
        state, anew - term_of(state).suspensions.suspended.keys()
    )
    term = term_of(state)
    found = build_suspensions_or_raise(state, troubles, state.wall_ms(now_ms))
    suspended = {**term.suspensions.suspended, **found}
    require_not_too_many_suspended(suspended)
    shut = {name for name, each in suspended.items() if not each.resuming}
    refused = term.suspensions.refused_access.without_tables(shut)
    state = replace(
        state,
        term=replace(
            term, suspensions=replace(term.suspensions, suspended=suspended, refused_access=refused)
        ),
    )
    return state, (*suspended_tables_log_lines(found), *parting_words)


def build_suspensions_or_raise(
    state: State, troubles: Mapping[str, HeadgateError], wall_ms: int
) -> dict[str, Suspended]:
    """Return the record's entries for tables with these troubles, without those made again
    (LEDGER-2). Raises the first trouble where there is no quarantine (SUSPEND-4)."""
    anew = find_missing_tables_to_recreate(state, troubles)
    found = {name: error for name, error in sorted(troubles.items()) if name not in anew}
    for error in found.values():
        if not state.identity.secondaries:
            raise error
    return {name: _suspension_for(name, error, wall_ms) for name, error in found.items()}


def _suspension_for(name: str, error: HeadgateError, wall_ms: int) -> Suspended:
    """Return the record's entry of a table with this trouble."""
    return Suspended(name, f"{error.code} {error.message}"[:_WHY_CHARACTERS_MAX], max(0, wall_ms))


def suspended_tables_log_lines(found: Mapping[str, Suspended]) -> tuple[LogLine, ...]:
    return tuple(
        LogLine(
            f"{name} is suspended, its records go to the quarantine: {suspended.why}",
            trouble=True,
            event=LogEvent.TABLE_SUSPENDED,
        )
        for name, suspended in sorted(found.items())
    )


def require_not_too_many_suspended(suspended: Mapping[str, Suspended]) -> None:
    """Raise ``TooManySuspended``: diverting everything helps nobody."""
    if len(suspended) > SUSPENDED_MAX:
        some = "; ".join(f"{name}: {p.why}" for name, p in sorted(suspended.items())[:3])
        raise TooManySuspended(
            f"{len(suspended)} tables have problems, and at most {SUSPENDED_MAX} are "
            f"suspended: {some}",
            "check the catalog and its rights; headgate tables SINK lists what is suspended",
        )


def suspended_tables_not_resuming(term: Term) -> frozenset[str]:
    """Return the tables that receive nothing at all."""
    return frozenset(
        name for name, suspended in term.suspensions.suspended.items() if not suspended.resuming
    )


def commits_of_receiving_tables(term: Term) -> tuple[PendingCommit, ...]:
    """Return what is pending for tables that may receive it."""
    shut = suspended_tables_not_resuming(term) | term.suspensions.forgotten
    return tuple(
        pending_commit
        for pending_commit in term.delivery.pending
        if pending_commit.table not in shut
    )


def suspend_overdue_tables(
    state: State,
    given: SecondariesRead,
    pending: Collection[PendingCommit],
    now_ms: int,
    *,
    too_many_pending: bool,
) -> tuple[State, tuple[LogLine, ...]]:
    """SUSPEND-3: suspend tables that have received nothing for too long; if too many pending
    commits wait, those for which most do.

    That is a table that cannot be read now, or that was just delivered to and does not show it. One
    that is resuming has as long as a leader without an answer, and only END's wait ends that: its
    pending commits are old by nature, and one delivery of so many takes its time.
    Trouble of more tables than can be suspended is the catalog's: then nobody is suspended for the
    number of pending commits.
    """
    term, named = term_of(state), secondaries_named_by_start(state)
    if not (state.identity.routed and state.identity.secondaries):
        return state, ()
    wall_ms = state.wall_ms(now_ms)
    weary = {
        d.table
        for d in find_overdue_commits(pending, wall_ms, state.settings.claim_age_max_ms // 2)
    } - term.suspensions.suspended.keys()
    if too_many_pending:
        counts = Counter(pending_commit.table for pending_commit in pending)
        most = {name for name, count in counts.items() if count == max(counts.values())}
        most -= {
            name
            for name, known in term.suspensions.suspended.items()
            if known.resuming
            and wall_ms - known.since_ms < leader_unanswered_max_ms(state.settings)
        }
        weary |= most if len(most | term.suspensions.suspended.keys()) <= SUSPENDED_MAX else set()
    helpless = {
        n for n in weary if n not in named and (n not in given.views or term.delivery.asked)
    }
    why = "could not be delivered for so long that its pending commits pile up, or will expire"
    return suspend_or_forget_tables(state, {n: Unreachable(f"{n} {why}") for n in helpless}, now_ms)


def on_resume_request(state: State, tables: Iterable[str], now_ms: int) -> State:
    """SUSPEND-5: remember that a person wants these suspended tables filled again; the next END
    looks at them.
    """
    term = term_of(state)
    wanted = frozenset(n for n in tables if n in suspended_tables_not_resuming(term))
    if wanted <= term.suspensions.resume_asked:
        return state
    asked = replace(
        term,
        suspensions=replace(term.suspensions, resume_asked=term.suspensions.resume_asked | wanted),
    )
    return replace(state, term=asked).with_end_due_by(now_ms)


def resume_requested_tables(
    state: State, given: SecondariesRead, now_ms: int
) -> tuple[State, tuple[LogLine, ...]]:
    """SUSPEND-5: open what was asked for, or deliver to it first; what still has trouble stays
    suspended.

    A table that lost rows is taken as it is: they stay out. One that is gone may be made again
    (LEDGER-2).
    """
    term = term_of(state)
    suspended, secondaries, tells = (
        dict(term.suspensions.suspended),
        dict(term.delivery.secondaries),
        list[LogLine](),
    )
    gone: list[str] = []
    wall_ms = max(0, state.wall_ms(now_ms))
    for name in sorted(term.suspensions.resume_asked & suspended.keys()):
        view, error = given.views.get(name), given.troubles.get(name)
        if isinstance(error, TableMissing) and state.identity.makes:
            gone.append(name)
            del suspended[name]
            continue
        if view is not None:
            error = _shared_sources_error(view, state, term)
        if view is None or error is not None:
            error = error or Unreachable(f"{name} cannot be reached")
            suspended[name] = stays = _suspension_for(name, error, wall_ms)
            text = f"{name} stays suspended: {stays.why}"
            tells.append(LogLine(text, trouble=True, event=LogEvent.TABLE_SUSPENDED))
            continue
        secondaries[name] = view
        suspended[name] = replace(suspended[name], since_ms=wall_ms, resuming=True)
    for name in resuming_tables_without_pending(term) & given.views.keys():
        secondaries[name] = given.views[name]
    asked = replace(
        term,
        suspensions=replace(term.suspensions, suspended=suspended, resume_asked=frozenset()),
        delivery=term.delivery.with_secondaries(secondaries),
    )
    state, parting_words = forget_secondaries_at_next_decision(replace(state, term=asked), gone)
    opened, more = reopen_resumed_tables(state, given.views)
    return opened, (*tells, *parting_words, *more)


def resuming_tables_without_pending(term: Term) -> frozenset[str]:
    """SUSPEND-5: return resuming tables that are to receive nothing: their deliverer may have ended
    too early."""
    pending = {pending_commit.table for pending_commit in term.delivery.pending}
    return frozenset(
        n
        for n, suspended in term.suspensions.suspended.items()
        if suspended.resuming and n not in pending
    )


def _shared_sources_error(view: TableView, state: State, term: Term) -> HeadgateError | None:
    try:
        require_sources_unshared(view, term.sources.topic_ids, state.identity.shared_with)
    except SourceShared as error:
        return error
    return None


def reopen_resumed_tables(
    state: State, views: Mapping[str, TableView]
) -> tuple[State, tuple[LogLine, ...]]:
    """SUSPEND-5: let resumed tables take rows again, if they are in order and nothing is
    pending."""
    term = term_of(state)
    owing = {pending_commit.secondary for pending_commit in term.delivery.pending}
    done = {
        name
        for name, suspended in term.suspensions.suspended.items()
        if suspended.resuming
        and (view := views.get(name))
        and view.lineage in _INTACT
        and view.uuid not in owing
    }
    if not done:
        return state, ()
    suspended = {name: p for name, p in term.suspensions.suspended.items() if name not in done}
    tells = tuple(
        LogLine(f"{name} takes rows again", event=LogEvent.TABLE_RESUMED) for name in sorted(done)
    )
    return replace(
        state, term=replace(term, suspensions=replace(term.suspensions, suspended=suspended))
    ), tells


def resuming_tables_needing_empty_commit(
    term: Term, pending: Iterable[PendingCommit]
) -> tuple[TableView, ...]:
    """Return resumed tables that need a delivery before they open: an empty one."""
    have = {pending_commit.secondary for pending_commit in pending}
    return tuple(
        term.delivery.secondaries[name]
        for name, suspended in sorted(term.suspensions.suspended.items())
        if suspended.resuming
        and name in term.delivery.secondaries
        and term.delivery.secondaries[name].uuid not in have
    )


# Tables that rows are routed to, which no START names: found by the statuses that name them
# (LEDGER-1).
#
# They are read once per epoch, and again where a status names another UUID, or what is wrong with
# one, or files that are not where the table had its data. One that has trouble is suspended
# (SUSPEND-1); one that cannot be read now has its statuses refused. So are those that a coordinator
# before let pending commits expire of, whose tags it may not have moved (PENDING-8).


def tables_to_read_before_validation(state: State) -> tuple[str, ...]:
    """Return the tables to read before judging: unknown as statuses name them, or expired
    (PENDING-8)."""
    if not state.identity.routed:
        return ()
    term = term_of(state)
    strangers = _tables_to_read_for_statuses(state) | _unread_tables_with_expired_commits(term)
    return tuple(
        sorted(
            strangers - secondaries_named_by_start(state).keys() - term.suspensions.suspended.keys()
        )
    )


def _tables_to_read_for_statuses(state: State) -> frozenset[str]:
    term = term_of(state)
    known = {(name, view.uuid) for name, view in term.delivery.secondaries.items()}
    named = {
        (table.table, table.uuid)
        for heard in term.collection.statuses
        for table in heard.status.tables
        if table.files and table.table != term.primary.view.table
    }
    strangers = {name for name, _ in named - known}
    return frozenset(
        strangers | _tables_with_moved_data(state) | table_troubles_reported(term).keys()
    )


def _tables_with_moved_data(state: State) -> set[str]:
    """Return known tables of which a status names a file that is not below their data.

    Their owner may have moved it: participants read a table again, and see that first.
    """
    term, found = term_of(state), set[str]()
    for table in (table for heard in term.collection.statuses for table in heard.status.tables):
        known = term.delivery.secondaries.get(table.table)
        if known is None or not table.files or table.table in found:
            continue
        below = epoch_prefixes(state, known)
        if not all(below.is_below_epoch_folder(file.path) for file in table.files):
            found.add(table.table)
    return found


def _unread_tables_with_expired_commits(term: Term) -> frozenset[str]:
    """PENDING-8: return tables with expired pending commits: a late delivery may be under way until
    they are read.

    The coordinator that let their pending commits expire has read them, but may have ended before
    its next decision.
    """
    record = term.primary.view.record
    expired = record.expired if record else ()
    return frozenset(
        pending_commit.table
        for pending_commit in expired
        if pending_commit.table not in term.delivery.secondaries
    )


def table_troubles_reported(term: Term) -> Mapping[str, str]:
    """Return the table troubles that statuses awaiting judgement report (SUSPEND-1)."""
    return {
        table: why
        for heard in term.collection.statuses
        for table, why in heard.status.troubles.items()
        if table != term.primary.view.table
    }


def suspend_or_take_in_read_tables(
    state: State, given: SecondariesRead, now_ms: int
) -> tuple[State, tuple[LogLine, ...]]:
    """Take in the answer. Raises ``SecondaryForeign``, which is the ledger's own trouble.

    A missing table that only an expired pending commit names takes no delivery: it is asked for
    again, not suspended, for whoever dropped it may have meant to.
    """
    named = _tables_to_read_for_statuses(state)
    troubles = {
        name: error
        for name, error in given.troubles.items()
        if name in named or not isinstance(error, TableMissing)
    }
    given = replace(given, troubles=troubles)
    state, tells = suspend_troubled_tables(
        state, given, table_troubles_reported(term_of(state)), now_ms
    )
    term = term_of(state)
    try:
        judged = {
            name: view
            for name, view in given.views.items()
            if name not in term.suspensions.suspended
        }
        require_secondaries_own_and_not_ahead(judged, term.primary.view, term.delivery.pending)
    except SecondaryForeign as error:
        raise SecondaryForeign(
            error.message,
            f"restore the ledger {term.primary.view.table} if it was re-created; tables that "
            "another ledger fills take a sink of another name",
        ) from None
    secondaries = {**term.delivery.secondaries, **given.views}
    known = replace(term, delivery=term.delivery.with_secondaries(secondaries))
    known = with_former_data_roots(term, known)  # it is judged at once
    call = state.call.without_failures()
    return replace(state, call=call, term=known), (*tells, *replaced_tables_log_lines(state, given))


def secondary_uuids_for_record(state: State) -> Mapping[str, str]:
    """Return the UUIDs for the primary table's record: with routes, only of secondary tables that
    START names.

    A thousand others would make each of its snapshots large.
    """
    known = (
        secondaries_named_by_start(state)
        if state.identity.routed
        else term_of(state).delivery.secondaries
    )
    return {name: view.uuid for name, view in sorted(known.items())}
