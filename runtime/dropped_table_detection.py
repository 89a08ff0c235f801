"""Recognizes tables that are gone though the notes next to the group's offsets know them
(CONFIG-1)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import (
    sink_in_offset_metadata,
    table_uuid_in_offset_metadata,
)
from headgate.control_protocol.errors import RetryLater, TableRecreated
from headgate.coordinator.settings import TableRecreatedPolicy
from headgate.kafka.source_topics import KafkaSourceTopics

PATIENCE_S = 30.0
_AGAIN_S = 0.5
_Answer = TypeVar("_Answer")


def open_source_topics(
    settings: SinkSettings, missing_max_s: float = 0.0
) -> closing[KafkaSourceTopics]:
    source = settings.source
    return closing(
        KafkaSourceTopics(
            settings.kafka, source.topics, source.group_id, missing_max_s=missing_max_s
        )
    )


def call_with_retries(call: Callable[[], _Answer], patience_s: float) -> _Answer:
    until_s = time.monotonic() + patience_s
    while True:
        try:
            return call()
        except RetryLater:
            if time.monotonic() > until_s:
                raise
            time.sleep(_AGAIN_S)


def require_table_never_filled_before(settings: SinkSettings, patience_s: float = 0.0) -> None:
    """Refuse to create a table that this sink has filled before.

    The notes next to the group's offsets remember it, and a new table would have none of its rows.
    Raises ``TableRecreated``, or ``RetryLater`` if the notes cannot be read.
    """
    restart = settings.coordinator.on_table_recreated is TableRecreatedPolicy.RESTART
    if restart or not settings.table.create:
        return
    with open_source_topics(
        settings
    ) as topics:  # the group's coordinator may just be being elected
        note = call_with_retries(topics.committed_offset_metadata, patience_s)
    known = table_uuid_in_offset_metadata(note)
    if known is None or sink_in_offset_metadata(note) not in (None, settings.name):
        return
    identifier = settings.table.identifier
    anew = (
        "if the ledger is gone for good, fill other tables with a sink that has another name "
        "and group"
        if settings.tables
        else 'coordinator.on_table_recreated = "restart", set for one start, makes a new one and '
        "fills it from source.start_at"
    )
    raise TableRecreated(
        f"there is no table {identifier}, but this sink has filled it (UUID {known}): it, or its "
        "catalog, was dropped or renamed; nothing was created",
        "is this the right catalog, and the right name? else restore the table, and start again; "
        f"{anew}",
    )
