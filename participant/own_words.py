"""Logs a participant's main events: most participants have no coordinator that would."""

from __future__ import annotations

import logging

from headgate.control_protocol.events import Presence, PresenceKind, WriteStatus
from headgate.control_protocol.log_events import LogEvent, about
from headgate.participant.state import Draft, State

_OF_PARTITIONS = {
    PresenceKind.JOINED: LogEvent.PARTITIONS_JOINED,
    PresenceKind.GAINED: LogEvent.PARTITIONS_GAINED,
    PresenceKind.LOST: LogEvent.PARTITIONS_LOST,
}
_SHOWN_MAX = 20


def log_draft(log: logging.Logger, sink: str, draft: Draft) -> None:
    """Log one line for partitions gained or lost, and for a status that names rows or a failure."""
    event = draft.event
    if isinstance(event, Presence) and event.concerns:
        named = sorted(map(str, event.concerns))
        more = f" and {len(named) - _SHOWN_MAX} more" if len(named) > _SHOWN_MAX else ""
        extra = about(_OF_PARTITIONS[event.kind], epoch=draft.epoch, partitions=len(named))
        text = ", ".join(named[:_SHOWN_MAX]) + more
        log.info("sink %s: %s %s", sink, event.kind.value, text, extra=extra)
    elif isinstance(event, WriteStatus):
        rows = sum(claim.records for claim in event.claims.values())
        if rows or event.failure:
            ids = {"epoch": draft.epoch, "transaction": draft.transaction, "rows": rows}
            extra = about(LogEvent.STATUS_ANNOUNCED, **ids)
            told = f"{rows} rows announced for transaction {draft.epoch}.{draft.transaction}"
            if event.failure:
                told += f", and {len(event.unknown)} partitions are not written: {event.failure}"
            log.info("sink %s: %s", sink, told, extra=extra)


def log_pause(log: logging.Logger, state: State) -> None:
    """Log that an operator's request took effect, whoever coordinates."""
    event = LogEvent.FETCH_PAUSED if state.paused else LogEvent.FETCH_RESUMED
    told = "paused: nothing is fetched until headgate resume" if state.paused else "fetches again"
    log.info("sink %s: %s", state.sink, told, extra=about(event, epoch=state.epoch))
