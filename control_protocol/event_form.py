"""Envelopes as the plain dictionaries of their Avro schemas, and back.

The way back checks every range: the rest of the program may trust the shape of what it builds, and
it raises nothing but ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TypeVar

from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    EndCommit,
    Envelope,
    Event,
    Limits,
    Notice,
    NoticeKind,
    PartitionPresence,
    Pause,
    Presence,
    PresenceKind,
    Proposal,
    Resume,
    Settlement,
    StartCommit,
    Tables,
    TableSettlement,
    WriteStatus,
)
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TransactionNumber,
)
from headgate.control_protocol.status_form import status_form, status_of
from headgate.control_protocol.tables_form import (
    proposal_form,
    proposal_of,
    table_start_form,
    table_start_of,
    tables_form,
    tables_of,
)
from headgate.control_protocol.topic_form import (
    Form,
    by_topic,
    natural,
    offsets_form,
    offsets_of,
    once,
    optional_natural,
    partition_of,
    partitions_form,
    partitions_of,
)

SENDER_CHARACTERS_MAX = 500

_SettlementT = TypeVar("_SettlementT", bound=Settlement)

_SCHEMA_NAMES: dict[type[Event], str] = {
    StartCommit: "start-commit",
    EndCommit: "end-commit",
    WriteStatus: "write-status",
    AckCommit: "ack-commit",
    AbortCommit: "abort-commit",
    Presence: "presence",
    Pause: "pause",
    Resume: "resume",
    Notice: "notice",
    Proposal: "proposal",
    Tables: "tables",
}


def to_form(envelope: Envelope) -> tuple[str, Form]:
    """Return the name of the event's schema, and the record to write with it."""
    form: Form = {
        "version": envelope.version,
        "sink": envelope.sink,
        "epoch": envelope.epoch,
        "transaction": envelope.transaction,
        "member": envelope.sender.member,
        "incarnation": envelope.sender.incarnation,
        "sequence": envelope.sequence,
        "time_ms": envelope.time_ms,
    }
    return _SCHEMA_NAMES[type(envelope.event)], form | _event_form(envelope.event)


def from_form(schema_name: str, form: Form) -> Envelope:
    """Return the envelope of a record read with the named schema; ``ValueError`` if absurd."""
    return Envelope(
        sink=SinkName(form["sink"]),
        epoch=Epoch(natural(form["epoch"])),
        transaction=TransactionNumber(natural(form["transaction"])),
        sender=_sender(form["member"], form["incarnation"]),
        sequence=natural(form["sequence"]),
        time_ms=form["time_ms"],
        event=_EVENTS[schema_name](form),
        version=form["version"],
    )


def _sender(member: str, incarnation: str) -> Sender:
    """Refuse long names: senders are remembered, and answers name them (G6)."""
    if max(len(member), len(incarnation)) > SENDER_CHARACTERS_MAX:
        raise ValueError(f"a sender of more than {SENDER_CHARACTERS_MAX} characters")
    return Sender(member, incarnation)


def _event_form(event: Event) -> Form:
    match event:
        case StartCommit():
            return _start_form(event)
        case WriteStatus():
            return status_form(event)
        case AckCommit() | AbortCommit():
            return _settlement_form(event)
        case Presence():
            return _presence_form(event)
        case Proposal():
            return proposal_form(event)
        case Tables():
            return tables_form(event)
        case Notice():
            return {**asdict(event), "kind": event.kind.value}
        case Resume():
            return {"tables": list(event.tables)}
        case EndCommit() | Pause():
            return {}


# --------------------------------------------------------------------------- start, settlement


def _start_form(start: StartCommit) -> Form:
    return {
        "settled_to": start.settled_to,
        "offsets": offsets_form(start.offsets),
        "topic_ids": dict(start.topic_ids),
        "tables": [table_start_form(table) for table in start.tables],
        "folder": start.folder,
        "limits": {
            "target_file_bytes": start.limits.target_file_bytes,
            "commit_timeout_ms": start.limits.commit_timeout_ms,
            "commit_records": start.limits.commit_records,
            "commit_bytes": start.limits.commit_bytes,
        },
        "paused": start.paused,
        "configuration": dict(start.configuration),
        "parked": dict(start.suspended),
    }


def _start(form: Form) -> StartCommit:
    settled_to = optional_natural(form["settled_to"])
    if not form["tables"]:
        raise ValueError("a START without a table")
    return StartCommit(
        settled_to=None if settled_to is None else ControlOffset(settled_to),
        offsets=offsets_of(form["offsets"]),
        topic_ids={topic: TopicId(topic_id) for topic, topic_id in form["topic_ids"].items()},
        tables=tuple(map(table_start_of, form["tables"])),
        limits=Limits(
            target_file_bytes=natural(form["limits"]["target_file_bytes"]),
            commit_timeout_ms=natural(form["limits"]["commit_timeout_ms"]),
            commit_records=natural(form["limits"]["commit_records"]),
            commit_bytes=natural(form["limits"]["commit_bytes"]),
        ),
        paused=form["paused"],
        folder=form["folder"],
        configuration=form["configuration"],
        suspended=form["parked"],
    )


def _settlement_form(settlement: Settlement) -> Form:
    return {
        "settled_to": settlement.settled_to,
        "offsets": offsets_form(settlement.offsets),
        "tables": [
            {"table": table.table, "snapshot_id": table.snapshot_id, "records": table.records}
            for table in settlement.tables
        ],
        "valid_through_ms": settlement.valid_through_ms,
        "reason": settlement.reason,
        "parked": dict(settlement.suspended),
    }


def _settlement(kind: type[_SettlementT], form: Form) -> _SettlementT:
    return kind(
        settled_to=ControlOffset(natural(form["settled_to"])),
        offsets=offsets_of(form["offsets"]),
        tables=tuple(
            TableSettlement(table["table"], table["snapshot_id"], natural(table["records"]))
            for table in form["tables"]
        ),
        valid_through_ms=form["valid_through_ms"],
        reason=form["reason"],
        suspended=form["parked"],
    )


# ------------------------------------------------------------------------------------ presence


def _presence_form(presence: Presence) -> Form:
    return {
        "kind": presence.kind.value,
        "concerns": partitions_form(presence.concerns),
        "owned": [
            {
                "topic": topic,
                "partitions": [
                    {"partition": n, "position": at.position, "end_offset": at.end_offset}
                    for n, at in partitions.items()
                ],
            }
            for topic, partitions in by_topic(presence.owned).items()
        ],
        "state": presence.state,
        "buffered_records": presence.buffered_records,
        "buffered_bytes": presence.buffered_bytes,
    }


def _presence(form: Form) -> Presence:
    return Presence(
        kind=PresenceKind(form["kind"]),
        concerns=partitions_of(form["concerns"]),
        owned=once(
            (
                partition_of(topic["topic"], at["partition"]),
                PartitionPresence(
                    optional_natural(at["position"]), optional_natural(at["end_offset"])
                ),
            )
            for topic in form["owned"]
            for at in topic["partitions"]
        ),
        state=form["state"],
        buffered_records=natural(form["buffered_records"]),
        buffered_bytes=natural(form["buffered_bytes"]),
    )


def _notice(form: Form) -> Notice:
    return Notice(
        kind=NoticeKind(form["kind"]),
        code=form["code"],
        text=form["text"],
        configuration=form["configuration"],
        page=form["page"],
        actor=form["actor"],
        next_try_ms=optional_natural(form["next_try_ms"]),
    )


_EVENTS: dict[str, Callable[[Form], Event]] = {
    "start-commit": _start,
    "end-commit": lambda _: EndCommit(),
    "write-status": status_of,
    "ack-commit": lambda form: _settlement(AckCommit, form),
    "abort-commit": lambda form: _settlement(AbortCommit, form),
    "presence": _presence,
    "pause": lambda _: Pause(),
    "resume": lambda form: Resume(tuple(form["tables"])),
    "notice": _notice,
    "proposal": proposal_of,
    "tables": tables_of,
}
