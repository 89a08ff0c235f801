"""Names of log events: a closed list, which docs/events.md explains. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class LogEvent(StrEnum):
    """The topic of a log line. Names never change their meaning; new ones may be added."""

    SINK_STARTED = "sink.started"
    SINK_DRAINING = "sink.draining"
    SINK_STOPPED = "sink.stopped"
    SINK_RESTS = "sink.rests"
    LEAD_RELEASED = "lead.released"
    SINK_RELOADED = "sink.reloaded"
    SINK_NOT_RELOADED = "sink.not-reloaded"
    SINK_FAILED = "sink.failed"
    PARTITIONS_JOINED = "partitions.joined"
    PARTITIONS_GAINED = "partitions.gained"
    PARTITIONS_LOST = "partitions.lost"
    PARTITIONS_HELD = "partitions.held"
    PARTITIONS_ADMITTED = "partitions.admitted"
    PARTITIONS_UNANNOUNCED = "partitions.unannounced"
    STATUS_ANNOUNCED = "status.announced"
    BATCH_FAILED = "batch.failed"
    FETCH_PAUSED = "fetch.paused"
    FETCH_RESUMED = "fetch.resumed"
    EPOCH_BEGAN = "epoch.began"
    EPOCH_SUPERSEDED = "epoch.superseded"
    EPOCH_AGAIN = "epoch.again"
    COORDINATOR_WAITS = "coordinator.waits"
    COORDINATOR_STOPPED = "coordinator.stopped"
    TRANSACTION_SETTLED = "transaction.settled"
    COMMIT_REFUSED = "commit.refused"
    STATUS_REFUSED = "status.refused"
    PARTICIPANT_STARVES = "participant.starves"
    PAYMENT_UNCONFIRMED = "payment.unconfirmed"
    DEBTS_OWED = "debts.owed"
    DEBTS_LAPSED = "debts.lapsed"
    TABLE_DROPPED = "table.dropped"
    TABLE_PARKED = "table.parked"
    TABLE_RESUMED = "table.resumed"
    RECORDS_UNMATCHED = "records.unmatched"
    RECORDS_BAD = "records.bad"
    COLUMNS_CHANGED = "columns.changed"
    COLUMNS_REFUSED = "columns.refused"
    COLUMNS_AWAITED = "columns.awaited"
    FIELDS_IGNORED = "fields.ignored"
    CONTROL_LOG_TROUBLE = "control-log.trouble"
    SETTINGS_CHANGED = "settings.changed"
    TABLE_COMPACTED = "table.compacted"
    ORPHANS_DELETED = "orphans.deleted"
    NOTE = "note"


def about(event: LogEvent, **fields: Any) -> Mapping[str, Any]:
    """Return what a logging call takes as ``extra``, so that a line bears the event's name."""
    return {"headgate_event": event.value, "headgate_fields": fields}
