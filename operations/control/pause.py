"""Asks a sink to stop fetching, or to continue: an event on its control topic, and its effect.

A request is permanent once the table's record carries it; until then, a coordinator that dies takes
it to its grave. So it is repeated until then.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import ControlTopicUnfit, RetryLater, TableMissing
from headgate.control_protocol.events import Envelope, Pause, Resume
from headgate.control_protocol.identifiers import Epoch, Sender, SinkName, TransactionNumber
from headgate.control_protocol.ports import SinkTable, TableView
from headgate.control_protocol.spark_batch_decision import is_record_of_query
from headgate.coordinator.settings import CoordinatorSettings
from headgate.kafka.cluster_queries import ANSWER_S_MAX, with_log_silenced
from headgate.kafka.control_log import KafkaLog, KafkaLogTimes
from headgate.kafka.control_topic import require_fitting_topic_if_present
from headgate.operations.access.tables import open_primary
from headgate.operations.control.operator_claim import (
    commit_claim_or_raise,
    make_claim,
    try_announce_command,
)
from headgate.runtime.wall_clock import wall_ms

_ANSWER_MS = int(ANSWER_S_MAX * 1000)
_SAID_AGAIN_S = 5.0
LOOKED_AT_S = 0.2
_PATIENCE_S = 15.0
"""Beyond the commit time-out: the request may have to wait for the commit that stores it."""


def pause_sink(settings: SinkSettings, patience_s: float | None = None) -> CommitRecord:
    """Return the record that holds the pause: how far the sink has come, according to its table.

    Raises ``ControlTopicUnfit`` without a control topic, what opening the table raises, and
    ``RetryLater`` if nobody took the request within ``patience_s``.
    """
    return pause_or_resume_sink(settings, Pause(), lambda record: record.paused, patience_s)


def resume_sink(settings: SinkSettings, patience_s: float | None = None) -> CommitRecord:
    """Return the record that ends the pause: where the sink continues. Raises as ``pause_sink``."""
    return pause_or_resume_sink(settings, Resume(), lambda record: not record.paused, patience_s)


def is_paused(settings: SinkSettings) -> bool:
    """Return what the sink's table says; a table that does not exist says no."""
    with suppress(TableMissing), open_primary(settings) as table:
        record = table.read().record
        return record is not None and record.paused
    return False


def pause_or_resume_sink(
    settings: SinkSettings,
    event: Pause | Resume,
    is_applied: Callable[[CommitRecord], bool],
    patience_s: float | None = None,
) -> CommitRecord:
    """Send the event until the table's record shows its effect. Raises as ``pause_sink``."""
    with ExitStack() as opening:
        try:
            table = opening.enter_context(open_primary(settings))
            view = table.read()
        except TableMissing:  # a missing control topic is told first
            _require_control_topic(settings.kafka, settings.control.topic)
            raise
        if record := _pause_or_resume_if_spark_query(settings, view, event):
            return record
        _require_control_topic(settings.kafka, settings.control.topic)
        patience_s = default_patience_s(settings.coordinator) if patience_s is None else patience_s
        times = KafkaLogTimes(delivery_ms=_ANSWER_MS, request_ms=_ANSWER_MS)
        config = {**with_log_silenced(settings.kafka), "group.id": settings.source.group_id}
        log = KafkaLog(config, settings.control.topic, times, settings.event_wire)
        opening.callback(log.close)
        request = _envelope_of_request(settings.name, event)
        record = _send_until_recorded(request, log, table, is_applied, patience_s=patience_s)
        try_announce_command(settings, type(event).__name__.lower())
        return record


def _require_control_topic(kafka: Mapping[str, str], topic: str) -> None:
    if not require_fitting_topic_if_present(with_log_silenced(kafka), topic, _ANSWER_MS):
        raise ControlTopicUnfit(
            f"control topic {topic} does not exist, so nobody would hear the request",
            "start the sink first, or correct control.topic",
        )


def _pause_or_resume_if_spark_query(
    settings: SinkSettings, view: TableView, event: Pause | Resume
) -> CommitRecord | None:
    """QUERY-14: write the record of a sink that a Spark query fills, for it hears no request.

    Return ``None`` for any other sink.
    """
    if view.record is None or not is_record_of_query(view.record):
        return None
    command, paused = type(event).__name__.lower(), isinstance(event, Pause)
    if view.record.paused == paused:
        return view.record
    claim = make_claim(view.record, command, paused=paused)
    commit_claim_or_raise(
        settings, view, claim, RetryLater(f"the {command} was not stored", "try again")
    )
    return claim


def default_patience_s(coordinator: CoordinatorSettings) -> float:
    """Return how many seconds a request is worth waiting for."""
    return coordinator.commit_timeout_ms / 1000 + _PATIENCE_S


def _send_until_recorded(
    request: Envelope,
    log: KafkaLog,
    table: SinkTable,
    is_applied: Callable[[CommitRecord], bool],
    *,
    patience_s: float,
) -> CommitRecord:
    begun_s = time.monotonic()
    again_s = begun_s
    record = table.read().record
    while True:
        if time.monotonic() >= again_s:
            log.append([_with_newest_transaction(request, record)])
            again_s = time.monotonic() + _SAID_AGAIN_S
        record = table.read().record
        if record is not None and is_applied(record):
            return record
        if time.monotonic() - begun_s >= patience_s:
            raise RetryLater(
                f"sink {request.sink} did not take the request within {patience_s:g} s",
                "is a participant running? headgate status shows it; then try again",
            )
        time.sleep(LOOKED_AT_S)


def _with_newest_transaction(request: Envelope, record: CommitRecord | None) -> Envelope:
    """PAUSE-1: the request carries the table's newest transaction, and counts until it is
    answered."""
    if record is None:
        return request
    newest = record.transaction
    return replace(request, epoch=newest.epoch, transaction=newest.number)


def _envelope_of_request(sink: SinkName, event: Pause | Resume) -> Envelope:
    return Envelope(
        sink=sink,
        epoch=Epoch(0),
        transaction=TransactionNumber(0),
        sender=Sender("operator", uuid.uuid4().hex),
        sequence=0,
        time_ms=wall_ms(),
        event=event,
    )
