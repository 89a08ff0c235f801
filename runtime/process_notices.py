"""Announces on the control topic that a process starts, how it ended, and what keeps failing.

``status`` shows these notices. They are for people only and best effort: a process that dies
without a word is recognized by its silence.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from headgate.config.configuration_fingerprint import configuration_digest
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.current_sink import bound_to_current_sink
from headgate.control_protocol.errors import (
    CODE,
    HeadgateError,
    RetryLater,
    SinkStopped,
    Unreachable,
)
from headgate.control_protocol.events import Envelope, Notice, NoticeKind
from headgate.control_protocol.identifiers import Epoch, Sender, SinkName, TransactionNumber
from headgate.control_protocol.ports import ControlLog
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.control_log import KafkaLog, KafkaLogTimes, LogClients
from headgate.kafka.control_topic import require_fitting_topic_if_present
from headgate.runtime.wall_clock import wall_ms

_log = redacted_logger("headgate.runtime")

_ANSWER_MS = 3_000
_ERROR_CHARS_MAX = 2_000
_TROUBLE_EVERY_S = 5.0


def open_control_log(
    settings: SinkSettings,
    times: KafkaLogTimes | None = None,
    *,
    clients: LogClients | None = None,
    statuses_of: Sender | None = None,
) -> KafkaLog:
    """Open the sink's control topic. It needs no group other than the sink's own."""
    config = {**settings.kafka, "group.id": settings.source.group_id}
    wire = replace(settings.event_wire, statuses_of=statuses_of)
    return KafkaLog(config, settings.control.topic, times, wire, clients=clients)


@contextmanager
def announcing_end(settings: SinkSettings, sender: Sender) -> Iterator[None]:
    """Announce how the body ended, and raise its error again."""
    try:
        yield
    except Unreachable:
        raise  # brokers or catalog are away; ``status`` finds that out by itself
    except SinkStopped:
        # In order: an operator asked for it.
        try_append_notice(settings, sender, build_stop_notice())
        raise
    except HeadgateError as error:
        text = f"{error.message} ({error.hint})" if error.hint else error.message
        try_append_notice(settings, sender, build_stop_notice(error.code, settings.redact(text)))
        raise
    except Exception as error:
        text = settings.redact(f"{type(error).__name__}: {error}")
        try_append_notice(settings, sender, build_stop_notice(HeadgateError.code, text))
        raise
    try_append_notice(settings, sender, build_stop_notice())


def try_announce_start(settings: SinkSettings, sender: Sender, log: ControlLog) -> None:
    """Announce that a process takes part from now on, through the log that it already has open."""
    digest = configuration_digest(settings)
    page = settings.http.listen
    started = Notice(NoticeKind.STARTED, configuration=digest, page=page)
    try:
        log.append([_build_envelope(settings.name, sender, started)])
    except HeadgateError as error:
        _log.debug("the start could not be announced: %s", error)


def build_stop_notice(code: str = "", text: str = "") -> Notice:
    return Notice(NoticeKind.STOPPED, code, text[:_ERROR_CHARS_MAX])


def try_append_notice(
    settings: SinkSettings, sender: Sender, notice: Notice, answer_timeout_ms: int = _ANSWER_MS
) -> None:
    """Append the event if the control topic exists; asking for a missing topic might create it."""
    try:
        if not require_fitting_topic_if_present(
            settings.kafka, settings.control.topic, answer_timeout_ms
        ):
            return
        log = open_control_log(
            settings, KafkaLogTimes(delivery_ms=answer_timeout_ms, request_ms=answer_timeout_ms)
        )
        try:
            log.append([_build_envelope(settings.name, sender, notice)])
        finally:
            log.close()
    except HeadgateError as error:
        _log.debug("an event for headgate status could not be written: %s", error)


def _build_envelope(sink: SinkName, sender: Sender, event: Notice) -> Envelope:
    return Envelope(
        sink=sink,
        epoch=Epoch(0),  # supersedes nobody
        transaction=TransactionNumber(0),
        sender=sender,
        sequence=0,
        time_ms=wall_ms(),
        event=event,
    )


class Complaints:
    """Announces now and then what a coordinator keeps failing at.

    It never waits for the brokers.
    """

    def __init__(self, settings: SinkSettings, sender: Sender) -> None:
        self._settings = settings
        self._sender = sender
        self._due_s = 0.0
        self._saying = threading.Thread(target=lambda: None)

    def __call__(self, text: str, next_try_in_ms: int | None) -> None:
        if self._saying.is_alive() or time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + _TROUBLE_EVERY_S
        found = CODE.search(text)
        code = found[0] if found else RetryLater.code
        redacted = self._settings.redact(text)[:_ERROR_CHARS_MAX]
        trouble = Notice(NoticeKind.ERROR, code, redacted, next_try_ms=next_try_in_ms)
        self._saying = threading.Thread(
            target=bound_to_current_sink(try_append_notice),
            args=[self._settings, self._sender, trouble],
            daemon=True,
        )
        self._saying.start()
