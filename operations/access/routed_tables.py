"""Finds the tables that a sink's routes have filled, by their names and by the sink's tag."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from headgate.config.multi_table_settings import OnMissing
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import HeadgateError, TableMissing
from headgate.control_protocol.table_history import History
from headgate.operations.access.table import opened_reader
from headgate.operations.status.report import MEND_TABLES
from headgate.runtime.sink_tables import Answer, SinkTables, TableAtRest


@dataclass(frozen=True, slots=True)
class Loaded:
    """Tables by their names. ``unread``: those that may exist and were not read, and why."""

    tables: Mapping[str, TableAtRest]
    unread: Mapping[str, HeadgateError]


def filled_tables(tables: SinkTables, sure: Collection[str]) -> Iterator[tuple[str, Answer]]:
    """Yield, by name, the tables that have this sink's tag, and those that are ``sure`` its own.

    Today's routes may not name the latter. A table that only has a fitting name, and cannot be
    read, is somebody else's. The caller closes the readers.
    """
    names = {*tables.named_by_routes(), *sure} - own_tables(tables.settings)
    return _answers(tables, names, sure)


def _answers(
    tables: SinkTables, names: Collection[str], sure: Collection[str]
) -> Iterator[tuple[str, Answer]]:
    for name, answer in tables.each_at_rest(sorted(names)):
        if name in sure or (isinstance(answer, TableAtRest) and answer.tagged):
            yield name, answer


@contextmanager
def every_table(tables: SinkTables, history: History) -> Iterator[Loaded]:
    """Yield, by name, the sink's existing tables, and those of former routes in the ledger.

    A table that shares only the name, and neither UUID nor the sink's tag, belongs to somebody
    else. One that cannot be read stops no other.
    """
    found, unread = dict[str, TableAtRest](), dict[str, HeadgateError]()
    with ExitStack() as opening:
        for name, answer in filled_tables(tables, _remembered(tables.settings, history)):
            if isinstance(answer, HeadgateError):
                unread[name] = answer
                continue
            opening.enter_context(closing(answer.reader))
            if _is_ours(name, answer, history):
                found[name] = answer
        yield Loaded(found, unread)


def each_table(
    tables: SinkTables, history: History, named: Collection[str]
) -> Iterator[tuple[str, Answer]]:
    """Yield the tables of ``every_table``, and those that are ``named``, with their names.

    Each is closed before the next is opened, since a reader may hold a connection. An error is that
    of one table.
    """
    sure = _remembered(tables.settings, history)
    own = own_tables(tables.settings)
    names = {*(tables.named_by_routes() - own), *sure, *named}
    for name, answer in _answers(tables, names, sure.union(named)):
        if isinstance(answer, HeadgateError):
            yield name, answer
            continue
        with closing(answer.reader):
            if name in named or _is_ours(name, answer, history):
                yield name, answer


def _remembered(settings: SinkSettings, history: History) -> set[str]:
    """Return the tables that the ledger has decided for, and those that it has pending
    something."""
    pending = (pending_commit.table for pending_commit in _pending_commits(history))
    return {*history.filled, *decided_tables(settings, history), *pending} - own_tables(settings)


def _is_ours(name: str, table: TableAtRest, history: History) -> bool:
    return table.tagged or history.filled.get(name, table.uuid) == table.uuid


def own_tables(settings: SinkSettings) -> set[str]:
    return {settings.table.identifier, settings.quarantine.table}


def _pending_commits(history: History) -> tuple[PendingCommit, ...]:
    return history.record.pending_commits if history.record else ()


def told_of_routed(tables: SinkTables, history: History) -> list[str]:
    """Return what a person should know about the tables: which are suspended or gone (I1, N5)."""
    settings = tables.settings
    if not settings.tables:
        return []
    suspended = history.record.suspended if history.record else ()
    told = [f"{each.table} is suspended: {each.why}" for each in suspended]
    gone = tables.missing(history.filled.keys() - {each.table for each in suspended})
    anew = settings.tables.on_missing is OnMissing.CREATE
    then = "it is created again" if anew else "it will be suspended"
    return told + [f"{name} was filled, and is gone: {then}" for name in gone]


def routed(settings: SinkSettings) -> str:
    """Say that the tables which the ledger remembers exist and take rows (I1, N5).

    Raises ``TableMissing``, and what opening the ledger raises.
    """
    with opened_reader(settings) as tables:
        history = tables.reader.history()
        told = told_of_routed(tables, history)
    if told:
        raise TableMissing(
            "; ".join(told),
            MEND_TABLES,
        )
    return f"{len(history.filled)} were filled, and none of them is gone or suspended"


def decided_tables(settings: SinkSettings, history: History) -> dict[str, int]:
    """Return, by name, how many rows the ledger's retained records decided for a routed table.

    Each pending commit counts once; commits that name it again only carry it on.
    """
    pending_commits = {
        pending_commit
        for commit in history.commits
        for pending_commit in commit.record.pending_commits
        if pending_commit.manifest
    }
    rows: dict[str, int] = {}
    for pending_commit in pending_commits:
        if pending_commit.table != settings.quarantine.table:
            rows[pending_commit.table] = rows.get(pending_commit.table, 0) + pending_commit.rows
    return rows
