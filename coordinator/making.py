"""Makes and changes tables that routes name, as participants propose (rules N1, S3, S9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from headgate.control_protocol.column_growth import Refusal
from headgate.control_protocol.columns import dotted
from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.events import Destination, Tables, TableStart
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.table_changes import Changed
from headgate.coordinator.actions import Action, Tell
from headgate.coordinator.evolution import (
    TABLES_BYTES_MAX,
    bounded,
    not_evolved,
    refused_bytes,
    sayable,
    wants,
)
from headgate.coordinator.moves import Step, term_of
from headgate.coordinator.speech import folder, say
from headgate.coordinator.state import State
from headgate.coordinator.suspension import suspend
from headgate.coordinator.transitions import Phase

_WHY_CHARACTERS_MAX = 1_000


def changed(state: State, tables: tuple[Changed, ...], now_ms: int) -> Step:
    """Answer the proposals for tables that are finished, or never will be; the others wait."""
    if state.phase is not Phase.EVOLVING or state.term is None or state.term.tables is not None:
        return state, ()
    term = state.term
    asked = wants(term.proposals)
    done = _sayable((want.at, said) for want, said in zip(asked, tables, strict=True))
    failures = [said for said in tables if said.failure]
    why = "; ".join(f"{said.table}: {said.failure}" for said in failures[:3])
    if not done:
        return not_evolved(state, now_ms, why)
    answers = sayable(
        tuple(
            each.answer
            for each in term.proposals
            if Destination(each.proposal.table, each.proposal.uuid) in done
        )
    )
    again_ms = now_ms + state.settings.retry_backoff_ms if failures else term.evolve_due_ms
    starts = {start.table: start for said in done.values() for start in _starts(state, said)}
    secondaries = {
        name: replace(view, schema_id=starts[name].schema_id)
        if name in starts and starts[name].uuid == view.uuid
        else view
        for name, view in term.secondaries.items()
    }
    term = replace(
        term,
        secondaries=secondaries,
        tables=Tables(answers, tuple(starts.values())),
        evolve_due_ms=again_ms,
    )
    state = replace(state, term=term, failures=0)
    gone = {
        said.table: TableMissing(said.why.removeprefix(f"{TableMissing.code} "))
        for said in done.values()
        if said.dropped
    }
    state, suspended = suspend(state, gone, now_ms)
    told = [action for said in done.values() for action in _told(said)]
    if failures:
        told.append(
            Tell(f"asked for again: {why}", trouble=True, event=LogEvent.COORDINATOR_RETRYING)
        )
    return state, (*suspended, *told, *say(state))


def _sayable(tables: Iterable[tuple[Destination, Changed]]) -> dict[Destination, Changed]:
    """Return the results that fit into one TABLES; the next one has the others."""
    done: dict[Destination, Changed] = {}
    room = TABLES_BYTES_MAX // 2
    for at, found in tables:
        if found.failure:
            continue
        said = replace(found, refused=bounded(found.refused), why=found.why[:_WHY_CHARACTERS_MAX])
        room -= refused_bytes(said.refused) + len(f"{said.table}{said.data}{said.why}".encode())
        if done and room < 0:
            break
        done[at] = said
    return done


def _starts(state: State, said: Changed) -> Iterator[TableStart]:
    """Yield the table for TABLES, and what holds for all others that are missing (R4)."""
    if said.uuid:
        prefix = f"{said.data}/{folder(state)}/{term_of(state).number}"
        ids = said.uuid, said.schema_id, said.spec_id
        yield TableStart(said.table, *ids, prefix, refused=said.refused)
        return
    if said.dropped and state.identity.makes_anew:  # a repeated proposal gets a new one (N5)
        yield TableStart(said.table, "", 0, 0, "")
        return
    none_is_made = TableStart(said.table, "", 0, 0, "", refused=(Refusal((), said.why),))
    yield none_is_made
    if said.any_other:
        yield replace(none_is_made, table="")


def _told(said: Changed) -> Iterator[Action]:
    if said.changes:
        text = f"{said.table}: {', '.join(said.changes)}"
        yield Tell(text, event=LogEvent.COLUMNS_CHANGED)
    words = [f"{dotted(each.path)} {each.reason}".strip() for each in said.refused]
    if words:
        text = f"{said.table} does not add: {'; '.join(words)}"
        yield Tell(text, trouble=True, event=LogEvent.COLUMNS_REFUSED)
    if not said.uuid and not said.dropped:
        text = f"table {said.table} is not created, its records are unmatched: {said.why}"
        yield Tell(text, trouble=True, event=LogEvent.COLUMNS_REFUSED)
