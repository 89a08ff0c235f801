"""Finds the tables that a sink's routes have filled, by their names and by the sink's tag."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table

from headgate.control_protocol.errors import HeadgateError, RetryLater, TableMissing
from headgate.control_protocol.identifiers import tag_name
from headgate.control_protocol.record import CommitRecord, Debt
from headgate.control_protocol.table_history import History, TableReader
from headgate.operations.follower_access import (
    FollowerReader,
    iceberg_follower,
    opened_follower,
)
from headgate.operations.status_report import MEND_TABLES
from headgate.operations.table_access import iceberg_of, opened_reader
from headgate.sink.kind_shelf import KindShelf
from headgate.sink.kinds import other_kind
from headgate.sink.routed_tables import pattern_of
from headgate.sink.settings import SinkSettings
from headgate.sink.shelf import IcebergShelf, Shelf
from headgate.sink.table_settings import ICEBERG
from headgate.sink.tables_settings import OnMissing
from headgate.tables.iceberg.catalog import rights_taken
from headgate.tables.iceberg.loading import loaded_each

_Table = TypeVar("_Table")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[_Table]):
    """Tables by their names. ``unread``: those that may exist and were not read, and why."""

    tables: Mapping[str, _Table]
    unread: Mapping[str, HeadgateError]


def filled_tables(
    settings: SinkSettings,
    catalog: Catalog,
    record: CommitRecord | None,
    remembered: Collection[str] = (),
) -> Loaded[Table]:
    """Return, by name, the tables that have this sink's tag, and those that are owed something.

    ``remembered``: other tables of the ledger, whatever their tags; today's routes may not name
    them. A table that only has a fitting name, and cannot be read, is somebody else's.
    """
    tag = tag_name(settings.name, settings.table.branch)
    sure = {*remembered, *((debt.table for debt in record.debts) if record else ())}
    found = loaded_tables(catalog, {*named_tables(settings, catalog), *sure} - own_tables(settings))
    return Loaded(
        {n: t for n, t in found.tables.items() if n in sure or tag in t.metadata.refs},
        {n: error for n, error in found.unread.items() if n in sure},
    )


@contextmanager
def every_table(
    settings: SinkSettings, ledger: TableReader, history: History
) -> Iterator[Loaded[FollowerReader]]:
    """Yield, by name, the sink's existing tables, and those of former routes in the ledger.

    A table that shares only the name, and neither UUID nor the sink's tag, belongs to somebody
    else. One that cannot be read stops no other.
    """
    with ExitStack() as opening:
        if settings.table.type == ICEBERG:
            decided = {*history.filled, *decided_tables(settings, history)}
            catalog = iceberg_of(ledger).table.catalog
            found = filled_tables(settings, catalog, history.record, decided)
            ours = {
                name: iceberg_follower(settings, table)
                for name, table in found.tables.items()
                if _is_ours(settings, name, table, history)
            }
            yield Loaded(ours, found.unread)
            return
        names = sorted(_remembered(settings, history))
        opened = {name: _opened(settings, ledger, name, opening) for name in names}
        yield Loaded(
            {n: answer for n, answer in opened.items() if isinstance(answer, FollowerReader)},
            {n: answer for n, answer in opened.items() if isinstance(answer, HeadgateError)},
        )


def each_table(
    settings: SinkSettings, ledger: TableReader, history: History, named: Collection[str]
) -> Iterator[tuple[str, FollowerReader | HeadgateError]]:
    """Yield the tables of ``every_table``, and those that are ``named``, with their names.

    Each is closed before the next is opened, since a reader may hold a connection. An error is that
    of one table.
    """
    if settings.table.type == ICEBERG:
        with every_table(settings, ledger, history) as found:
            yield from found.tables.items()
        known = {*found.tables, *found.unread}
        others = loaded_tables(iceberg_of(ledger).table.catalog, set(named) - known)
        for name, table in others.tables.items():
            yield name, iceberg_follower(settings, table)
        yield from {**found.unread, **others.unread}.items()
        return
    for name in sorted(_remembered(settings, history).union(named)):
        with ExitStack() as opening:
            if follower := _opened(settings, ledger, name, opening):
                yield name, follower


def _remembered(settings: SinkSettings, history: History) -> set[str]:
    """Return the tables that the ledger has decided for, and those that it owes something."""
    owed = (debt.table for debt in _debts(history))
    return {*history.filled, *decided_tables(settings, history), *owed} - own_tables(settings)


def _is_ours(settings: SinkSettings, name: str, table: Table, history: History) -> bool:
    uuid, tag = str(table.metadata.table_uuid), tag_name(settings.name, settings.table.branch)
    return tag in table.metadata.refs or history.filled.get(name, uuid) == uuid


def _opened(
    settings: SinkSettings, ledger: TableReader, name: str, opening: ExitStack
) -> FollowerReader | HeadgateError | None:
    try:
        return opening.enter_context(opened_follower(settings, ledger, name))
    except RetryLater as error:
        return rights_taken(error) or error
    except HeadgateError:  # dropped, or damaged: such tables are parked, which is reported
        return None


def own_tables(settings: SinkSettings) -> set[str]:
    return {settings.table.identifier, settings.quarantine.table}


def _debts(history: History) -> tuple[Debt, ...]:
    return history.record.debts if history.record else ()


def told_of_routed(settings: SinkSettings, ledger: TableReader, history: History) -> list[str]:
    """Return what a person should know about the tables: which are parked or gone (I1, N5)."""
    if not settings.tables:
        return []
    parked = history.record.parked if history.record else ()
    told = [f"{each.table} is parked: {each.why}" for each in parked]
    gone = missing_tables(settings, ledger, history.filled.keys() - {each.table for each in parked})
    anew = settings.tables.on_missing is OnMissing.CREATE
    then = "it is created again" if anew else "it will be parked"
    return told + [f"{name} was filled, and is gone: {then}" for name in gone]


def routed(settings: SinkSettings) -> str:
    """Say that the tables which the ledger remembers exist and take rows (I1, N5).

    Raises ``TableMissing``, and what opening the ledger raises.
    """
    with opened_reader(settings) as ledger:
        history = ledger.history()
        told = told_of_routed(settings, ledger, history)
    if told:
        raise TableMissing(
            "; ".join(told),
            MEND_TABLES,
        )
    return f"{len(history.filled)} were filled, and none of them is gone or parked"


def missing_tables(settings: SinkSettings, ledger: TableReader, names: Iterable[str]) -> list[str]:
    """Return the names that are neither listed nor exist."""
    wanted = set(names)
    if not wanted:
        return []
    shelf = shelf_of(settings, ledger)
    if settings.table.type == ICEBERG:
        for namespace in {name.rpartition(".")[0] for name in wanted}:
            wanted -= {f"{namespace}.{short}" for short in shelf.names(namespace)}
    return sorted(name for name in wanted if not shelf.has(name))


def shelf_of(settings: SinkSettings, ledger: TableReader) -> Shelf:
    """Return the tables by their names; ``ledger`` reads the sink's own."""
    if kind := other_kind(settings):
        return KindShelf(settings, kind)
    return IcebergShelf(iceberg_of(ledger).table.catalog)


def decided_tables(settings: SinkSettings, history: History) -> dict[str, int]:
    """Return, by name, how many rows the ledger's retained records decided for a routed table.

    Each debt counts once; commits that name it again only carry it on.
    """
    debts = {debt for commit in history.commits for debt in commit.record.debts if debt.manifest}
    rows: dict[str, int] = {}
    for debt in debts:
        if debt.table != settings.quarantine.table:
            rows[debt.table] = rows.get(debt.table, 0) + debt.rows
    return rows


def loaded_tables(catalog: Catalog, names: Iterable[str]) -> Loaded[Table]:
    """Return, by name, the tables that exist."""
    found, unread = dict[str, Table](), dict[str, HeadgateError]()
    for name, answer in loaded_each(catalog, sorted(names)):
        if isinstance(answer, Table):
            found[name] = answer
        elif not isinstance(answer, TableMissing):
            unread[name] = answer
    return Loaded(found, unread)


def named_tables(settings: SinkSettings, catalog: Catalog) -> Iterator[str]:
    """Yield existing tables whose names a route can produce."""
    patterns = [pattern_of(route.to) for route in settings.tables.route]
    for namespace in _namespaces(settings, catalog):
        try:
            tables = catalog.list_tables(namespace)
        except NoSuchNamespaceError:
            continue
        for found in tables:
            name = ".".join(found)
            if any(pattern.fullmatch(name) for pattern in patterns):
                yield name


def _namespaces(settings: SinkSettings, catalog: Catalog) -> set[str]:
    wanted = {route.to.rpartition(".")[0] for route in settings.tables.route}
    plain = {name for name in wanted if "{" not in name}
    patterns = [pattern_of(name) for name in wanted - plain]
    if not patterns:
        return plain
    there = (".".join(found) for found in catalog.list_namespaces())
    return plain | {name for name in there if any(p.fullmatch(name) for p in patterns)}
