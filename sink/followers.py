"""Opens the sink's tables: the lead and its followers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog

from headgate.kafka.dead_letter_topic import DeadLetterTopic
from headgate.participant.settings import UnknownFields
from headgate.sink.forwarder import Forwarder
from headgate.sink.made_tables import TableMaker
from headgate.sink.routed_tables import policy_of, section_of
from headgate.sink.routing import follower_names
from headgate.sink.settings import SinkSettings
from headgate.tables.followers import FollowerTables
from headgate.tables.iceberg.gate import Gates
from headgate.tables.iceberg.joint import JointPayments
from headgate.tables.iceberg.keyed.index_memory import IndexMemory
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.unsent import UnsentRows
from headgate.tables.iceberg.upkeep import Upkeep

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

    from headgate.tables.iceberg.keyed.keyed_rows import KeyedRows


def iceberg_table(
    settings: SinkSettings,
    catalog: Catalog,
    identifier: str,
    gates: Gates | None = None,
    *,
    memory: IndexMemory | None = None,
    leads: bool = False,
) -> IcebergTable:
    """Open an Iceberg table of the sink.

    ``gates``: where commits and maintenance of the table meet; ``memory``: the memory that the
    indexes of all keyed tables share; ``leads``: whether the coordinator commits to it.
    """
    upkeep = Upkeep(
        catalog,
        gate=(gates or Gates()).of(identifier),
        expire_after_ms=settings.maintenance.expire_after_ms or None,
    )
    schema = (settings.tables or settings.table).schema
    return IcebergTable(
        catalog,
        identifier,
        settings.name,
        settings.table.branch,
        readd_dropped=schema.readd_dropped,
        upkeep=upkeep,
        keyed=_keyed(settings, identifier, memory),
        warms=leads,
        refuse_columns=_refuse_columns(settings) if leads else None,
        keeps_columns=_keeps_columns(settings, identifier),
    )


def _refuse_columns(settings: SinkSettings) -> Callable[[Schema], None] | None:
    """Return what raises as a start would; none where the sink itself changes columns (S5)."""
    from headgate.sink.preconditions import refuse_schema  # a command that only reads needs none

    if settings.table.schema.unknown_fields is UnknownFields.EVOLVE:
        return None
    return lambda schema: refuse_schema(schema, settings)


def _keeps_columns(settings: SinkSettings, identifier: str) -> bool:
    """Return whether others may not take columns away from files written before (S6, S10)."""
    if identifier == settings.table.identifier:
        return settings.table.schema.unknown_fields is not UnknownFields.EVOLVE
    if identifier in follower_names(settings):
        return False
    each = section_of(settings.tables, identifier)
    return policy_of(settings.tables, each).unknown_fields is not UnknownFields.EVOLVE


def _keyed(settings: SinkSettings, identifier: str, memory: IndexMemory | None) -> KeyedRows | None:
    """Return how records replace rows of this table, if it has a key."""
    lead = identifier == settings.table.identifier
    named = settings.table if lead else settings.tables
    key = settings.table.key if lead else settings.tables.routing.key_of(identifier)
    if not key or identifier in follower_names(settings):
        return None
    from headgate.tables.iceberg.keyed.keyed_rows import (  # reads files: only if needed
        KeyedBy,
        KeyedRows,
    )

    places, bytes_max = named.record_columns, settings.changes.index_memory_bytes
    by = KeyedBy(key, places.partition, places.offset, places.topic, bytes_max)
    return KeyedRows(by, memory=memory)


def opened_followers(
    settings: SinkSettings,
    catalog: Catalog,
    stack: ExitStack,
    maker: TableMaker | None = None,
    *,
    gates: Gates,
) -> FollowerTables:
    """Open the quarantine, and the other tables to which the lead's record owes payments."""
    memory = IndexMemory(settings.changes.index_memory_bytes)
    followers = FollowerTables(
        lambda identifier: iceberg_table(settings, catalog, identifier, gates, memory=memory),
        told_of_payments(settings, catalog, stack),
        required=follower_names(settings) if settings.tables else None,
        make=maker.wanted if maker else None,
        listed=maker.listed if maker else tuple,
        joint=JointPayments(catalog) if settings.tables.atomic else None,
    )
    stack.callback(followers.close)
    return followers


def told_of_payments(
    settings: SinkSettings, catalog: Catalog, stack: ExitStack
) -> Callable[[], None]:
    """Return what is called after payments: the sender of dead letters, if there is one."""
    if not (settings.quarantine.keeps and settings.quarantine.dead_letter_topic):
        return lambda: None
    forwarder = _forwarder(settings, catalog)
    stack.callback(forwarder.close)
    return forwarder.wake


def _forwarder(settings: SinkSettings, catalog: Catalog) -> Forwarder:
    """Return what sends dead letters for as long as its coordinator lives."""
    aside = settings.quarantine
    rows = UnsentRows(catalog, aside.table, settings.name, settings.table.branch)
    group_id = f"{settings.source.group_id}-dead-letters"
    return Forwarder(
        rows,
        lambda ending: DeadLetterTopic(settings.kafka, aside.dead_letter_topic, group_id, ending),
    )
