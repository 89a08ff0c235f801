"""The tables that a sink's routes have filled: found by their names, and by the sink's tag."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from headgate.control_protocol.identifiers import tag_name
from headgate.control_protocol.record import CommitRecord
from headgate.control_protocol.table_history import History, TableReader
from headgate.operations.table_access import iceberg_of
from headgate.sink.settings import SinkSettings
from headgate.sink.tables_settings import OnMissing
from headgate.tables.iceberg.catalog import rights_taken

_PLACEHOLDER = re.compile(r"\{\w+\}")


def filled_tables(
    settings: SinkSettings,
    catalog: Catalog,
    record: CommitRecord | None,
    remembered: Collection[str] = (),
) -> dict[str, Table]:
    """By name, the tables that have this sink's tag, and those that are owed something.

    ``remembered``: others of the ledger, whatever their tags; routes of today may not name them.
    """
    tag = tag_name(settings.name, settings.table.branch)
    sure = {*remembered, *((debt.table for debt in record.debts) if record else ())}
    aside = {settings.table.identifier, settings.quarantine.table}
    found = loaded_tables(catalog, {*_named(settings, catalog), *sure} - aside)
    return {n: table for n, table in found.items() if n in sure or tag in table.metadata.refs}


def every_table(settings: SinkSettings, catalog: Catalog, history: History) -> dict[str, Table]:
    """By name, the sink's tables that are there, of former routes too, which the ledger remembers.

    What has only the name of one, and neither its UUID nor the sink's tag, is somebody else's.
    """
    tag = tag_name(settings.name, settings.table.branch)
    known = {*history.filled, *decided_tables(settings, history)}
    found = filled_tables(settings, catalog, history.record, known)

    def ours(name: str, table: Table) -> bool:
        uuid = str(table.metadata.table_uuid)
        return tag in table.metadata.refs or history.filled.get(name, uuid) == uuid

    return {name: table for name, table in found.items() if ours(name, table)}


def told_of_routed(settings: SinkSettings, ledger: TableReader, history: History) -> list[str]:
    """What a person should know of the tables: who is parked, and who is gone (I1, N5)."""
    if not settings.tables:
        return []
    parked = history.record.parked if history.record else ()
    told = [f"{each.table} is parked: {each.why}" for each in parked]
    gone = missing_tables(
        iceberg_of(ledger).table.catalog, history.filled.keys() - {each.table for each in parked}
    )
    anew = settings.tables.on_missing is OnMissing.CREATE
    then = "it is made anew" if anew else "it will be parked"
    return told + [f"{name} was filled, and is gone: {then}" for name in gone]


def missing_tables(catalog: Catalog, names: Iterable[str]) -> list[str]:
    """Those that are neither listed nor there."""
    wanted = set(names)
    for namespace in {name.rpartition(".")[0] for name in wanted}:
        try:
            wanted -= {".".join(found) for found in catalog.list_tables(namespace)}
        except NoSuchNamespaceError:
            continue
    return sorted(name for name in wanted if not catalog.table_exists(name))


def decided_tables(settings: SinkSettings, history: History) -> dict[str, int]:
    """By name, how many rows the ledger's retained records decided for a routed table.

    Each debt counts once; commits that name the same one carry it on.
    """
    debts = {debt for commit in history.commits for debt in commit.record.debts if debt.manifest}
    rows: dict[str, int] = {}
    for debt in debts:
        if debt.table != settings.quarantine.table:
            rows[debt.table] = rows.get(debt.table, 0) + debt.rows
    return rows


def loaded_tables(catalog: Catalog, names: Iterable[str]) -> dict[str, Table]:
    """By name, those of the tables that are there and may be read."""
    return {name: table for name in sorted(names) if (table := _loaded(catalog, name))}


def _named(settings: SinkSettings, catalog: Catalog) -> Iterator[str]:
    """What there is under names that a route can make."""
    patterns = [_pattern(route.to) for route in settings.tables.route]
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
    plain = {name for name in wanted if not _PLACEHOLDER.search(name)}
    patterns = [_pattern(name) for name in wanted - plain]
    if not patterns:
        return plain
    there = (".".join(found) for found in catalog.list_namespaces())
    return plain | {name for name in there if any(p.fullmatch(name) for p in patterns)}


def _pattern(text: str) -> re.Pattern[str]:
    parts = [re.escape(part) for part in _PLACEHOLDER.split(text)]
    return re.compile("[a-z0-9_]+".join(parts))


def _loaded(catalog: Catalog, name: str) -> Table | None:
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None
    except Exception as error:
        if rights_taken(error):
            return None
        raise
