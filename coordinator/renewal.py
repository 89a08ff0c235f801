"""When a sink without new rows commits all the same, so that its tag stays near the head (T5).

By age; and when others have moved the branch, which is checked now and then: what they expire next
may be the way from the head to the tag.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.ports import TableView
from headgate.coordinator.actions import (
    Action,
    DescribeSecondaries,
    DescribeSources,
    ReadTable,
    SecondariesRead,
)
from headgate.coordinator.dropped import found_gone, to_be_looked_for
from headgate.coordinator.growth import ripened
from headgate.coordinator.moves import Step, move, term_of
from headgate.coordinator.refreshing import listed, seen, unseen
from headgate.coordinator.speech import addressed
from headgate.coordinator.state import State
from headgate.coordinator.suspension import resumed, suspend, unopened
from headgate.coordinator.transitions import Phase


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
