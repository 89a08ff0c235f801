"""Shows what a sink's members say on the control topic, one line per event, as it comes.

It joins no group, appends nothing, and trusts only what a participant would trust.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.columns import Struct, describe_schema_growth
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import LogDiscontinuity
from headgate.control_protocol.events import (
    AbortCommit,
    EndCommit,
    Envelope,
    Event,
    Notice,
    NoticeKind,
    Pause,
    Presence,
    PresenceKind,
    Proposal,
    Resume,
    Settlement,
    StartCommit,
    Tables,
    WriteStatus,
)
from headgate.operations.access.kafka_connection import read_control_tail
from headgate.runtime.process_notices import open_control_log

RECORDS_READ = 2_000
_TURN_MS = 500
_NAMES_SHOWN = 5


def tail_events(settings: SinkSettings, last: int, *, follow: bool) -> Iterator[Envelope]:
    """Yield the ``last`` newest of the sink's events and, with ``follow``, those to come.

    Mere signs of life are left out. Raises ``Unreachable``.
    """
    if not follow:
        yield from _select_newest_to_show(read_control_tail(settings, RECORDS_READ), last)
        return
    with closing(open_control_log(settings)) as log:
        log.seek(log.end_offset())
        tail = read_control_tail(settings, RECORDS_READ)
        yield from _select_newest_to_show(tail, last)
        shown = {_identity_of_event(envelope) for envelope in tail}
        while True:
            try:
                read = [record.envelope for record in log.read(_TURN_MS)]
            except LogDiscontinuity:
                log.seek(log.end_offset())
                continue
            for envelope in read:
                ours = envelope.sink == settings.name and _is_worth_showing(envelope.event)
                if ours and _identity_of_event(envelope) not in shown:
                    yield envelope
            if read:
                shown.clear()  # the tail's events are passed by now, or were read with it


def _select_newest_to_show(envelopes: list[Envelope], number: int) -> list[Envelope]:
    worth = [envelope for envelope in envelopes if _is_worth_showing(envelope.event)]
    return worth[-number:] if number else []


def _is_worth_showing(event: Event) -> bool:
    return not (isinstance(event, Presence) and event.kind is PresenceKind.ALIVE)


def _identity_of_event(envelope: Envelope) -> tuple[object, ...]:
    part = envelope.event.part if isinstance(envelope.event, WriteStatus) else 0
    return envelope.sender, envelope.sequence, envelope.time_ms, part


def event_as_json(envelope: Envelope) -> dict[str, Any]:
    """Return an event as one flat JSON object."""
    return {
        "time_ms": envelope.time_ms,
        "sink": envelope.sink,
        "event": event_name(envelope.event),
        "epoch": envelope.epoch,
        "transaction": envelope.transaction,
        "member": envelope.sender.member,
        "incarnation": envelope.sender.incarnation,
        "text": describe_event(envelope.event),
    }


def event_name(event: Event) -> str:
    """Return the event's name in PROTOCOL.md, with what distinguishes a presence."""
    match event:
        case StartCommit():
            return "START-COMMIT"
        case EndCommit():
            return "END-COMMIT"
        case WriteStatus():
            return "WRITE-STATUS"
        case AbortCommit():
            return "ABORT-COMMIT"
        case Settlement():
            return "ACK-COMMIT"
        case Presence(kind=kind):
            return f"PRESENCE {kind.value}"
        case Notice(kind=notice):
            return f"NOTICE {notice.value}"
    return type(event).__name__.upper()


def describe_event(event: Event) -> str:
    """Return what matters about an event to a person."""
    match event:
        case StartCommit(offsets=offsets, paused=paused):
            return count_of(len(offsets), "partition") + (", paused" if paused else "")
        case WriteStatus(written=ranges, failure=failure, unknown=unknown):
            rows = sum(each.records for each in ranges.values())
            parts = [count_of(rows, "row")]
            parts += [f"{count_of(len(unknown), 'partition')} unknown"] if unknown else []
            parts += [f"failed: {failure}"] if failure else []
            return ", ".join(parts)
        case Settlement(tables=tables, reason=reason):
            rows = sum(table.records for table in tables if table.snapshot_id)
            return count_of(rows, "row") + (f"; {reason}" if reason else "")
        case Presence(concerns=concerns):
            named = sorted(map(str, concerns))
            more = len(named) - _NAMES_SHOWN
            return ", ".join(named[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        case Notice():
            return _describe_notice(event)
        case Proposal(table=table, columns=columns, records=records):
            return (
                f"{table}: {', '.join(describe_schema_growth(Struct(), columns))} for "
                f"{count_of(records, 'record')}"
            )
        case Tables(tables=tables, answers=answers):
            now = ", ".join(f"{table.table} schema {table.schema_id}" for table in tables)
            return f"{now}; {len(answers)} proposals answered"
        case Resume(tables=tables):
            return ", ".join(tables)
        case EndCommit() | Pause():
            return ""


def _describe_notice(notice: Notice) -> str:
    parts = [f"{notice.actor}:"] if notice.actor else []
    parts += [notice.code] if notice.code and notice.code not in notice.text else []
    parts += [notice.text] if notice.text else []
    if notice.kind is NoticeKind.STOPPED and not notice.code:
        parts.append("in order")
    parts += [f"configuration {notice.configuration}"] if notice.configuration else []
    parts += [f"page at {notice.page}"] if notice.page else []
    return " ".join(parts)
