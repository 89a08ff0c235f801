"""Checks for ``headgate check`` whether routed tables with a key can be filled."""

from __future__ import annotations

from pyiceberg.table import Table

from headgate.control_protocol.errors import HeadgateError, KeyUnfit, TableMissing
from headgate.control_protocol.record_codec import key_property, marker_property
from headgate.data.envelopes.changes import Tombstones
from headgate.data.writers.encodings import refuse_for_keys
from headgate.data.writers.keyed_routes import may_key, may_name
from headgate.operations.kafka_access import compacted, source_topics
from headgate.operations.routed_tables import own_tables
from headgate.operations.table_access import iceberg_of, refuse_other_kind
from headgate.sink.settings import SinkSettings
from headgate.sink.sink_tables import looked_at
from headgate.tables.iceberg.keyed.stored_key import key_text, refuse_other_key


def check_keys(settings: SinkSettings) -> str:
    """List the topics' tables that have a key; if records name the tables, the existing ones.

    Raises ``KeyUnfit`` and ``KeyChanged`` for an existing one that cannot be filled by it, and the
    error of one that cannot be read.
    """
    routing = settings.tables.routing
    with source_topics(settings) as topics:
        known = [name for name in sorted(topics.describe()) if may_key(routing, name)]
    if not known:
        return "no topic goes to a table with a key"
    names = {named.table for name in known if (named := routing.named_by(name))}
    telling = [name for name in known if routing.named_by(name) is None]
    refuse_other_kind(settings)
    try:
        with looked_at(settings) as tables:
            if telling:
                there = tables.primary.named_by_routes() - own_tables(settings)
                names |= {n for n in there if any(may_name(routing, t, n) for t in telling)}
            names = {name for name in names if routing.key_of(name)}
            unread = list[HeadgateError]()
            for name, answer in tables.primary.each_at_rest(sorted(names)):
                if isinstance(answer, HeadgateError):
                    unread.append(answer)
                else:
                    _refuse(settings, name, iceberg_of(answer.reader).table)
            for error in unread:
                raise error
    except TableMissing:  # the catalog has no database yet, and so no table
        pass
    said = [f"{name} by {', '.join(routing.key_of(name))}" for name in sorted(names)]
    return "; ".join([*said, *_told(settings, telling)])


def _told(settings: SinkSettings, topics: list[str]) -> list[str]:
    """What a person should know of topics whose records name keyed tables."""
    if not topics:
        return []
    said = [f"records of {', '.join(topics)} name tables"]
    if settings.changes.tombstones is not Tombstones.DELETE:
        found = compacted(settings.kafka, topics)
        said += [
            f"{name} is compacted: of a key that was deleted it may hold no more than a record "
            "without a value, which deletes nothing here"
            for name in topics
            if found[name]
        ]
    return said


def _refuse(settings: SinkSettings, name: str, table: Table) -> None:
    try:
        wanted = key_text(table.schema(), settings.tables.routing.key_of(name))
    except KeyUnfit as error:
        raise KeyUnfit(f"{name}: {error.message}", error.hint) from None
    refuse_for_keys(name, table.properties)
    stored = table.properties.get(key_property(settings.name))
    filled = marker_property(settings.name) in table.properties
    refuse_other_key(name, stored, wanted, filled=filled)
