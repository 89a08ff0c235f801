"""The tables that a sink's routes have filled: found by their names, and by the sink's tag."""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from headgate.control_protocol.identifiers import tag_name
from headgate.control_protocol.record import CommitRecord
from headgate.operations.history import History
from headgate.sink.named_tables import named_tables
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.catalog import rights_taken


def filled_tables(
    settings: SinkSettings, catalog: Catalog, record: CommitRecord | None
) -> dict[str, Table]:
    """By name, the tables that have this sink's tag, and those that are owed something."""
    tag = tag_name(settings.name, settings.table.branch)
    owed = {debt.table for debt in record.debts} if record else set()
    aside = {settings.table.identifier, settings.quarantine.table}
    names = sorted({*named_tables(settings, catalog), *owed} - aside)
    found = loaded_tables(catalog, names)
    return {n: table for n, table in found.items() if n in owed or tag in table.metadata.refs}


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


def _loaded(catalog: Catalog, name: str) -> Table | None:
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None
    except Exception as error:
        if rights_taken(error):
            return None
        raise
