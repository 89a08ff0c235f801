"""Checks for ``headgate check`` whether routed tables with a key can be filled."""

from __future__ import annotations

from pyiceberg.table import Table

from headgate.control_protocol.errors import KeyUnfit, TableMissing
from headgate.control_protocol.record_codec import key_property, marker_property
from headgate.data.writers.encodings import refuse_for_keys
from headgate.operations.kafka_access import source_topics
from headgate.operations.routed_tables import loaded_tables
from headgate.operations.table_access import opened_catalog
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.keyed.stored_key import key_text, refuse_other_key


def check_keys(settings: SinkSettings) -> str:
    """List the topics' tables that have a key.

    Raises ``KeyUnfit`` and ``KeyChanged`` for an existing one that cannot be filled by it.
    """
    routing = settings.tables.routing
    with source_topics(settings) as topics:
        targets = routing.tables_of(sorted(topics.describe())).values()
    names = sorted({each.table for each in targets if routing.key_of(each.table)})
    if not names:
        return "no topic goes to a table with a key"
    try:
        with opened_catalog(settings) as catalog:
            for name, table in loaded_tables(catalog, names).items():
                _refuse(settings, name, table)
    except TableMissing:  # the catalog has no database yet, and so no table
        pass
    return "; ".join(f"{name} by {', '.join(routing.key_of(name))}" for name in names)


def _refuse(settings: SinkSettings, name: str, table: Table) -> None:
    try:
        wanted = key_text(table.schema(), settings.tables.routing.key_of(name))
    except KeyUnfit as error:
        raise KeyUnfit(f"{name}: {error.message}", error.hint) from None
    refuse_for_keys(name, table.properties)
    stored = table.properties.get(key_property(settings.name))
    filled = marker_property(settings.name) in table.properties
    refuse_other_key(name, stored, wanted, filled=filled)
