"""Tables that rows are routed to, which no START names: found by the statuses that name them (R5).

They are read once per epoch, and again where a status names another UUID. What is wrong with one is
a named error, as it is for the quarantine; one that cannot be read now has its statuses refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.control_protocol.errors import FollowerForeign, TableRolledBack, TagMissing
from headgate.control_protocol.ports import Lineage, TableView
from headgate.coordinator.actions import DescribeFollowers, DescribeSources, FollowersRead
from headgate.coordinator.debts import refuse_foreign
from headgate.coordinator.moves import term_of
from headgate.coordinator.recovery import refuse_shared
from headgate.coordinator.settings import CoordinatorSettings, RollbackPolicy
from headgate.coordinator.speech import addressed
from headgate.coordinator.state import State


def unknown_tables(state: State) -> tuple[str, ...]:
    """Tables of statuses that wait for their judgement, which are not known as they name them."""
    if not state.identity.routed:
        return ()
    term = term_of(state)
    known = {(name, view.uuid) for name, view in term.followers.items()}
    named = {
        (table.table, table.uuid)
        for heard in term.statuses
        for table in heard.status.tables
        if table.files and table.table != term.view.table
    }
    strangers = {name for name, uuid in named - known if name not in addressed(state)}
    return tuple(sorted(strangers))


def asking_tables(state: State) -> State:
    """The judgement waits for the answer."""
    return replace(state, term=replace(term_of(state), asks_tables=True))


def asked_again(state: State) -> DescribeFollowers | DescribeSources:
    """What was asked for an END or a judgement, when there was no answer."""
    if term_of(state).asks_tables:
        return DescribeFollowers(unknown_tables(state))
    return DescribeSources()


def with_tables(state: State, given: FollowersRead) -> State:
    """The answer. Raises the ``StopSink`` of a table that is not in order."""
    term = term_of(state)
    for view in given.views.values():
        refuse_lost(view, state.settings)
        refuse_shared(view, term.topic_ids, state.identity.shared_with)
    try:
        refuse_foreign(given.views, term.view, term.debts)
    except FollowerForeign as error:
        raise FollowerForeign(
            error.message,
            f"restore the ledger {term.view.table} if it was created anew; tables that another "
            "ledger fills take a sink of another name",
        ) from None
    followers = {**term.followers, **given.views}
    return replace(state, failures=0, term=replace(term, followers=followers, asks_tables=False))


def refuse_lost(view: TableView, settings: CoordinatorSettings) -> None:
    """What a table lost that the ledger's offsets have passed cannot be read again (Q2)."""
    keep = settings.on_rollback is RollbackPolicy.KEEP_OFFSETS
    if view.lineage is Lineage.ROLLED_BACK and not keep:
        raise TableRolledBack(
            f"{view.table} was rolled back behind the sink's tag; the ledger's offsets have passed "
            "what it lost",
            'coordinator.on_rollback = "keep-offsets" goes on: its rows stay out',
        )
    if view.lineage is Lineage.TAG_MISSING:
        raise TagMissing(
            f"{view.table}: the sink's tag is gone, but the table once had it",
            "restore the tag on the sink's newest snapshot of this table",
        )


def remembered(state: State) -> Mapping[str, str]:
    """The UUIDs that the lead's record keeps: with routes, only of followers that START names.

    A thousand others would make each of its snapshots large.
    """
    known = addressed(state) if state.identity.routed else term_of(state).followers
    return {name: view.uuid for name, view in sorted(known.items())}
