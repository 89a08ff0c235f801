"""Lists the names of log events, all that docs/reference/log-events.md explains. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class LogEvent(StrEnum):
    """Says what a log line is about. Names never change their meaning; new ones may be added."""

    SINK_STARTED = "sink.started"
    SINK_DRAINING = "sink.draining"
    SINK_STOPPED = "sink.stopped"
    SINK_WAITS = "sink.waiting-for-start"
    LEADERSHIP_RELEASED = "leadership.released"
    SINK_RELOADED = "sink.reloaded"
    SINK_NOT_RELOADED = "sink.not-reloaded"
    SINK_FAILED = "sink.failed"
    SINK_STATE = "sink.state"
    PARTITIONS_JOINED = "partitions.joined"
    PARTITIONS_GAINED = "partitions.gained"
    PARTITIONS_LOST = "partitions.lost"
    PARTITIONS_HELD = "partitions.held"
    PARTITIONS_ADMITTED = "partitions.admitted"
    BATCH_UNANNOUNCED = "batch.unannounced"
    COMMIT_AWAITED = "commit.awaited"
    STATUS_ANNOUNCED = "status.announced"
    BATCH_FAILED = "batch.failed"
    FETCH_PAUSED = "fetch.paused"
    FETCH_RESUMED = "fetch.resumed"
    EPOCH_BEGAN = "epoch.began"
    EPOCH_SUPERSEDED = "epoch.superseded"
    EPOCH_RECLAIMED = "epoch.reclaimed"
    COORDINATOR_RETRYING = "coordinator.retrying"
    COORDINATOR_STOPPED = "coordinator.stopped"
    TRANSACTION_SETTLED = "transaction.settled"
    COMMIT_REFUSED = "commit.refused"
    STATUS_REFUSED = "status.refused"
    PARTICIPANT_ALWAYS_LATE = "participant.always-late"
    DELIVERY_UNCONFIRMED = "delivery.unconfirmed"
    DELIVERY_PENDING = "delivery.pending"
    DELIVERY_EXPIRED = "delivery.expired"
    TABLE_DROPPED = "table.dropped"
    TABLE_SUSPENDED = "table.suspended"
    TABLE_RESUMED = "table.resumed"
    RECORDS_UNMATCHED = "records.unmatched"
    RECORDS_BAD = "records.bad"
    KEYS_READ = "keys.read"
    COLUMNS_CHANGED = "columns.changed"
    COLUMNS_REFUSED = "columns.refused"
    COLUMNS_AWAITED = "columns.awaited"
    FIELDS_IGNORED = "fields.ignored"
    CONTROL_TOPIC_UNAVAILABLE = "control-topic.unavailable"
    TOKEN_NOT_RENEWED = "token.not-renewed"  # noqa: S105 - a name
    TOKEN_RENEWED = "token.renewed"  # noqa: S105
    SETTINGS_CHANGED = "settings.changed"
    TABLE_COMPACTED = "table.compacted"
    ROWS_EXPIRED = "rows.expired"
    ORPHANS_DELETED = "orphans.deleted"
    NOTE = "note"


def event_extra(event: LogEvent, **fields: Any) -> Mapping[str, Any]:
    """Return what a logging call takes as ``extra``, so that a line bears the event's name."""
    return {"headgate_event": event.value, "headgate_fields": fields}
