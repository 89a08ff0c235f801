"""What ``headgate check`` asks of an Iceberg quarantine, beside a table of any kind."""

from __future__ import annotations

from collections.abc import Callable

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import TableMissing
from headgate.operations.access.table import opened_aside
from headgate.operations.check.catalog_rights import Unasked, may_commit, may_create
from headgate.operations.check.state import NotChecked
from headgate.runtime.sink_tables import look_at_tables
from headgate.runtime.start_checks import refuse_place, refuse_read_only


def check_aside(
    settings: SinkSettings, refuse_replaced: Callable[[str | None], None] = lambda _: None
) -> str:
    """Say whether the quarantine is there, and can be filled. Raises as ``opened_aside``.

    ``refuse_replaced`` gets its UUID, and raises if it is not the one that the sink has filled.
    """
    wanted = settings.quarantine
    catalog = wanted.catalog if settings.apart else settings.catalog
    refuse_read_only(catalog)
    try:
        with look_at_tables(settings) as tables:
            uuid = tables.refuse_unfit_quarantine()
    except TableMissing:
        refuse_place(wanted.location or catalog.properties.get("warehouse", ""))
        refuse_replaced(None)
        return f"{wanted.table} does not exist yet; the next start creates it"
    refuse_replaced(uuid)
    return f"{wanted.table} exists (iceberg, UUID {uuid})"


def check_rights_aside(settings: SinkSettings) -> str:
    """Say whether its catalog lets this principal do what the sink will. Raises ``NotChecked``."""
    name = settings.quarantine.table
    try:
        with opened_aside(settings) as catalog:
            if not catalog.table_exists(name):
                return may_create(catalog, name)
            return may_commit(catalog.load_table(name))
    except Unasked as reason:
        raise NotChecked(str(reason)) from reason
    except TableMissing as error:
        raise NotChecked(f"{error.message}: the next start makes it") from error
