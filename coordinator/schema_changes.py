"""Leads from proposals to a table that has what records need (rules SCHEMA-2, SCHEMA-3 and
SCHEMA-8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce

from headgate.control_protocol.columns import (
    Struct,
    dotted_path,
    struct_to_json_without_ids,
    unify_columns,
)
from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.events import (
    Answer,
    Destination,
    Envelope,
    Proposal,
    Tables,
    TableStart,
)
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import LogLine, backoff_ms
from headgate.control_protocol.ports import Changed, EvolvedTable, Lineage, Want
from headgate.control_protocol.schema_evolution import Refusal
from headgate.coordinator.inputs_and_actions import Action, ChangeTables, EvolveTable
from headgate.coordinator.phase_steps import (
    Step,
    append_actions_of_phase,
    enter_phase,
    primary_table_start,
    recover_from_table,
    relative_epoch_folder,
    term_of,
)
from headgate.coordinator.phases import Phase
from headgate.coordinator.state import HeardProposal, State, Timer
from headgate.coordinator.table_suspension import suspend_or_forget_tables

GATHERING_MS = 100
"""How long the first proposal waits for others: one table update serves all."""

WANTS_MAX = 200
"""This many tables are asked for at once; others wait behind them."""

PROPOSALS_BYTES_MAX = 16 * 1024 * 1024
"""Beyond this the proposal that has waited longest is forgotten, until it is repeated
(SCHEMA-2)."""

_PROPOSAL_BYTES = 2_000
_OFFSET_BYTES = 200
"""The size of a proposal besides its texts, and of each partition that it names."""

TABLES_BYTES_MAX = 400_000
"""The limit of one TABLES; the rest waits for the next one."""

_ANSWER_BYTES = 30

REFUSED_MAX = 200
REFUSED_BYTES_MAX = 100_000
"""The size up to which refused fields are named; beyond it the epoch adds no more columns."""


def on_proposal(state: State, said: Envelope, proposal: Proposal, now_ms: int) -> State:
    """SCHEMA-2: remember a proposal; one that is asked again while it waits is known."""
    term, answer = term_of(state), Answer(said.sender, proposal.number)
    if any(answer == each.answer for each in term.changes.proposals):
        return state
    if not _may_columns_change(state, proposal):
        return state
    waiting = _newest_proposals_in_bounds(
        (
            *term.changes.proposals,
            HeardProposal(answer, proposal, _proposal_size_bytes(said, proposal)),
        )
    )
    if not waiting:
        state = state.with_deadline(Timer.CHANGES, None)
    elif not term.changes.proposals:
        state = state.with_deadline(Timer.CHANGES, now_ms + GATHERING_MS)
    return replace(state, term=replace(term, changes=replace(term.changes, proposals=waiting)))


def _proposal_size_bytes(said: Envelope, proposal: Proposal) -> int:
    texts = (
        struct_to_json_without_ids(proposal.columns),
        proposal.table,
        proposal.raw,
        proposal.source,
    )
    topics = sum(len(partition.topic) + _OFFSET_BYTES for partition in proposal.first)
    return _PROPOSAL_BYTES + len(str(said.sender)) + sum(map(len, texts)) + topics


def _newest_proposals_in_bounds(waiting: tuple[HeardProposal, ...]) -> tuple[HeardProposal, ...]:
    """Drop the oldest proposals beyond the bound: anybody may have said them (LOG-6)."""
    beyond = sum(each.size_bytes for each in waiting) - PROPOSALS_BYTES_MAX
    forgotten = 0
    while beyond > 0:
        beyond -= waiting[forgotten].size_bytes
        forgotten += 1
    return waiting[forgotten:]


def _may_columns_change(state: State, proposal: Proposal) -> bool:
    """Return whether rows go to the table and its columns may change (SCHEMA-1).

    A ledger takes no rows (LEDGER-1), and a quarantine's columns are headgate's.
    """
    primary = term_of(state).primary.view
    if not state.identity.routed:
        return state.identity.evolves and proposal.uuid == primary.uuid
    return proposal.table not in (primary.table, *state.identity.secondaries)


def must_end_come_first(state: State, now_ms: int) -> bool:
    """Return whether END goes before a table update that is due as well.

    It does in a transaction that has had an answer: proposals may come during each update, for
    ever.
    """
    term = term_of(state)
    answered = term.changes.answered_in == term.progress.number
    return answered and state.is_due(Timer.END, now_ms)


def ask_for_table_changes(state: State) -> Step:
    """SCHEMA-3: ask for one table update for everything proposed meanwhile."""
    term = term_of(state)
    if state.identity.routed:
        return _ask_for_changes_of_unsuspended_tables(state)
    columns = reduce(
        unify_columns, (each.proposal.columns for each in term.changes.proposals), Struct()
    )
    return enter_phase(state, Phase.EVOLVING), (EvolveTable(term.primary.view, columns),)


def _ask_for_changes_of_unsuspended_tables(state: State) -> Step:
    """SUSPEND-2: forget what was asked of suspended tables; their records need nothing of them."""
    term = term_of(state)
    waiting = tuple(
        each
        for each in term.changes.proposals
        if each.proposal.table not in term.suspensions.suspended
    )
    term = replace(term, changes=replace(term.changes, proposals=waiting))
    if not waiting:
        return replace(state, term=term).with_deadline(Timer.CHANGES, None), ()
    asking = enter_phase(state, Phase.EVOLVING, term=term)
    return asking, (ChangeTables(join_proposals_by_table(waiting)),)


def join_proposals_by_table(proposals: Iterable[HeardProposal]) -> tuple[Want, ...]:
    """Return one request per table, which joins what all proposals ask for."""
    found: dict[Destination, Want] = {}
    for each in (heard.proposal for heard in proposals):
        at = Destination(each.table, each.uuid)
        before = found.get(at, Want(at, Struct(), each.raw))
        found[at] = replace(before, columns=unify_columns(before.columns, each.columns))
    return tuple(found.values())[:WANTS_MAX]


def on_table_evolved(state: State, done: EvolvedTable) -> Step:
    """SCHEMA-3: answer the proposals, however the table came by its columns (SCHEMA-8)."""
    term = state.term
    if state.phase is not Phase.EVOLVING or term is None or term.changes.tables is not None:
        return state, ()
    view = done.view
    if (view.uuid, view.tag, view.lineage) != (
        term.primary.view.uuid,
        term.primary.view.tag,
        Lineage.CONTAINS_TAG,
    ):
        return recover_from_table(state, "the table has moved while its columns were changed")
    known = replace(term.primary.view, schema_id=view.schema_id)
    term = replace(
        term,
        primary=term.primary.with_view(known),
        changes=replace(
            term.changes,
            refused=collapse_refusals_beyond_limit((*term.changes.refused, *done.refused)),
        ),
    )
    state = replace(state, term=term)
    answers = tuple(each.answer for each in term.changes.proposals)
    tables = Tables(answers_fitting_one_event(answers), (primary_table_start(state),))
    known_term = replace(term, changes=replace(term.changes, tables=tables))
    state = replace(state, term=known_term, call=state.call.without_failures())
    return state, (*_evolution_log_lines(view.table, done), *append_actions_of_phase(state))


def wait_and_retry_table_changes(state: State, now_ms: int, why: str) -> Step:
    """Wait and try again. Commits go on; the participants' statuses say that they wait
    (SCHEMA-4)."""
    settings, failures = state.settings, state.call.failures
    wait_ms = backoff_ms(failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
    waiting = enter_phase(state, Phase.OPEN, failures=failures + 1)
    waiting = waiting.with_deadline(Timer.CHANGES, now_ms + wait_ms)
    told = f"{why}; its columns are asked for again in {wait_ms} ms"
    return waiting, (LogLine(told, trouble=True, event=LogEvent.COORDINATOR_RETRYING),)


def on_tables_event(state: State, tables: Tables, now_ms: int) -> Step:
    """Take the answer as heard: what waited for it is written, and END comes soon (SCHEMA-3)."""
    term = term_of(state)
    if tables != term.changes.tables:
        return state, ()
    answered = frozenset(tables.answers)
    soon_ms = now_ms + state.settings.rebalance_delay_ms
    left = tuple(each for each in term.changes.proposals if each.answer not in answered)
    if not left:
        state = state.with_deadline(Timer.CHANGES, None)
    term = replace(
        term,
        changes=replace(
            term.changes, tables=None, proposals=left, answered_in=term.progress.number
        ),
    )
    state = state.with_end_due_by(soon_ms)
    return enter_phase(state, Phase.OPEN, term=term, failures=0), ()


def answers_fitting_one_event(answers: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """Return the first answers that fit into one TABLES; the next one answers the others."""
    room, said = TABLES_BYTES_MAX // 2, 0
    for answer in answers:
        room -= len(str(answer.sender).encode()) + _ANSWER_BYTES
        if room < 0:
            break
        said += 1
    return answers[:said]


def collapse_refusals_beyond_limit(refused: tuple[Refusal, ...]) -> tuple[Refusal, ...]:
    """Name each field once; if they are too many to name, refuse all that the table lacks."""
    by_path = {refusal.path: refusal for refusal in refused}
    if len(by_path) > REFUSED_MAX or refusals_size_bytes(by_path.values()) > REFUSED_BYTES_MAX:
        return (Refusal((), "too many fields were refused to list them"),)
    return tuple(by_path.values())


def refusals_size_bytes(refused: Iterable[Refusal]) -> int:
    """Return their size in TABLES and START."""
    return sum(len("/".join((*each.path, each.reason)).encode()) for each in refused)


def _evolution_log_lines(table: str, done: EvolvedTable) -> tuple[Action, ...]:
    told: list[Action] = []
    if done.changes:
        told.append(LogLine(f"{table}: {', '.join(done.changes)}", event=LogEvent.COLUMNS_CHANGED))
    if done.refused:
        words = "; ".join(f"{dotted_path(each.path)} {each.reason}" for each in done.refused)
        told.append(
            LogLine(f"{table} does not add: {words}", trouble=True, event=LogEvent.COLUMNS_REFUSED)
        )
    return tuple(told)


# Makes and changes tables that routes name, as participants propose (rules CREATE-1, SCHEMA-3,
# SCHEMA-8).


_WHY_CHARACTERS_MAX = 1_000


def on_tables_changed(state: State, tables: tuple[Changed, ...], now_ms: int) -> Step:
    """Answer the proposals for tables that are finished, or never will be; the others wait."""
    if (
        state.phase is not Phase.EVOLVING
        or state.term is None
        or state.term.changes.tables is not None
    ):
        return state, ()
    term = state.term
    asked = join_proposals_by_table(term.changes.proposals)
    done = _results_fitting_one_event(
        (want.at, said) for want, said in zip(asked, tables, strict=True)
    )
    failures = [said for said in tables if said.failure]
    why = "; ".join(f"{said.table}: {said.failure}" for said in failures[:3])
    if not done:
        return wait_and_retry_table_changes(state, now_ms, why)
    answers = answers_fitting_one_event(
        tuple(
            each.answer
            for each in term.changes.proposals
            if Destination(each.proposal.table, each.proposal.uuid) in done
        )
    )
    starts = {
        start.table: start
        for said in done.values()
        for start in _table_starts_of_answer(state, said)
    }
    secondaries = {
        name: replace(view, schema_id=starts[name].schema_id)
        if name in starts and starts[name].uuid == view.uuid
        else view
        for name, view in term.delivery.secondaries.items()
    }
    term = replace(
        term,
        delivery=term.delivery.with_secondaries(secondaries),
        changes=replace(term.changes, tables=Tables(answers, tuple(starts.values()))),
    )
    state = replace(state, term=term, call=state.call.without_failures())
    if failures:
        again_ms = now_ms + state.settings.retry_backoff_ms
        state = state.with_deadline(Timer.CHANGES, again_ms)
    gone = {
        said.table: TableMissing(said.why.removeprefix(f"{TableMissing.code} "))
        for said in done.values()
        if said.dropped
    }
    state, suspended = suspend_or_forget_tables(state, gone, now_ms)
    told = [action for said in done.values() for action in _table_change_log_lines(said)]
    if failures:
        told.append(
            LogLine(f"asked for again: {why}", trouble=True, event=LogEvent.COORDINATOR_RETRYING)
        )
    return state, (*suspended, *told, *append_actions_of_phase(state))


def _results_fitting_one_event(
    tables: Iterable[tuple[Destination, Changed]],
) -> dict[Destination, Changed]:
    """Return the results that fit into one TABLES; the next one has the others."""
    done: dict[Destination, Changed] = {}
    room = TABLES_BYTES_MAX // 2
    for at, found in tables:
        if found.failure:
            continue
        said = replace(
            found,
            refused=collapse_refusals_beyond_limit(found.refused),
            why=found.why[:_WHY_CHARACTERS_MAX],
        )
        room -= refusals_size_bytes(said.refused) + len(
            f"{said.table}{said.data}{said.why}".encode()
        )
        if done and room < 0:
            break
        done[at] = said
    return done


def _table_starts_of_answer(state: State, said: Changed) -> Iterator[TableStart]:
    """Yield the table for TABLES, and what holds for all others that are missing (ROUTE-4)."""
    if said.uuid:
        prefix = f"{said.data}/{relative_epoch_folder(state)}/{term_of(state).progress.number}"
        ids = said.uuid, said.schema_id, said.spec_id
        yield TableStart(said.table, *ids, prefix, refused=said.refused)
        return
    if said.dropped and state.identity.makes_anew:  # a repeated proposal gets a new one (LEDGER-2)
        yield TableStart(said.table, "", 0, 0, "")
        return
    none_is_made = TableStart(said.table, "", 0, 0, "", refused=(Refusal((), said.why),))
    yield none_is_made
    if said.any_other:
        yield replace(none_is_made, table="")


def _table_change_log_lines(said: Changed) -> Iterator[Action]:
    if said.changes:
        text = f"{said.table}: {', '.join(said.changes)}"
        yield LogLine(text, event=LogEvent.COLUMNS_CHANGED)
    words = [f"{dotted_path(each.path)} {each.reason}".strip() for each in said.refused]
    if words:
        text = f"{said.table} does not add: {'; '.join(words)}"
        yield LogLine(text, trouble=True, event=LogEvent.COLUMNS_REFUSED)
    if not said.uuid and not said.dropped:
        text = f"table {said.table} is not created, its records are unmatched: {said.why}"
        yield LogLine(text, trouble=True, event=LogEvent.COLUMNS_REFUSED)
