"""What a start asks before it creates anything: the source topics, and the table as it is."""

from __future__ import annotations

import time

from pyiceberg.catalog import Catalog

from headgate.control_protocol.errors import ConfigurationError, MissingRights, TableMissing
from headgate.control_protocol.iceberg_catalog import catalog_failure
from headgate.coordinator.source_topics import KafkaSourceTopics
from headgate.coordinator.tables.supported import refuse_unread
from headgate.sink.preconditions import future_location, refuse_place, refuse_table
from headgate.sink.settings import SinkSettings

_TOPIC_PATIENCE_S = 5.0
_TOPIC_AGAIN_S = 0.5


def require_sources(settings: SinkSettings) -> None:
    """Raises ``ConfigurationError`` for a topic that is missing, and not only new to a broker."""
    topics = KafkaSourceTopics(settings.kafka, settings.source.topics, settings.source.group_id)
    patience_s = time.monotonic() + _TOPIC_PATIENCE_S
    try:
        while True:
            try:
                topics.describe()
            except MissingRights:
                raise
            except ConfigurationError:
                if time.monotonic() > patience_s:
                    raise
                time.sleep(_TOPIC_AGAIN_S)
            else:
                return
    finally:
        topics.close()


def refuse_start(catalog: Catalog, settings: SinkSettings) -> None:
    """Raises where the table, or the place where it would be made, cannot take the records."""
    try:
        table = catalog.load_table(settings.table.identifier)
    except Exception as error:
        refuse_unread(settings.table.identifier, error)
        failure = catalog_failure(error, f"table {settings.table.identifier} cannot be read")
        if not isinstance(failure, TableMissing):
            raise failure from error
        refuse_place(future_location(settings))
        return
    refuse_table(table, settings)
    refuse_place(table.location())
