"""Envelopes as the plain dictionaries of their Avro schemas, and back.

The way back checks every range: the rest of the program may trust the shape of what it builds, and
it raises nothing but ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from headgate.control_protocol.columns import from_json, to_json
from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    Answer,
    Claim,
    EndCommit,
    Envelope,
    Event,
    FileKind,
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
    TableStart,
    TableStatus,
    WriteStatus,
    WrittenFile,
)
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.schema_evolution import Refusal

# Values per partition as Avro records per topic, and back: names are long and partitions many.


Form = dict[str, Any]
"""A record of an Avro schema, as fastavro takes and gives it."""

PARTITION_MAX = 2**31 - 1
NUMBER_MAX = 2**62 - 1
"""The limit of every number: it can still be counted up, for Avro and the table hold twice it."""

_Value = TypeVar("_Value")


def natural(value: int) -> int:
    if not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{value} where only natural numbers up to {NUMBER_MAX} are possible")
    return value


def optional_natural(value: int | None) -> int | None:
    return None if value is None else natural(value)


def partition_of(topic: str, partition: int) -> TopicPartition:
    if not 0 <= partition <= PARTITION_MAX:
        raise ValueError(f"topic {topic!r} cannot have a partition {partition}")
    return TopicPartition(topic, partition)


def by_topic(values: Mapping[TopicPartition, _Value]) -> dict[str, dict[int, _Value]]:
    topics: dict[str, dict[int, _Value]] = {}
    for at in sorted(values):
        topics.setdefault(at.topic, {})[at.partition] = values[at]
    return topics


def once(pairs: Iterable[tuple[TopicPartition, _Value]]) -> dict[TopicPartition, _Value]:
    """Build a dictionary; refuse a partition named twice, for either could be meant."""
    values: dict[TopicPartition, _Value] = {}
    for at, value in pairs:
        if at in values:
            raise ValueError(f"{at} is named twice")
        values[at] = value
    return values


def offsets_form(offsets: Offsets) -> list[Form]:
    return [
        {"topic": topic, "partitions": list(next_), "offsets": list(next_.values())}
        for topic, next_ in by_topic(offsets).items()
    ]


def offsets_of(topics: list[Form]) -> Offsets:
    return Offsets(
        once(
            (partition_of(form["topic"], partition), natural(offset))
            for form in topics
            for partition, offset in zip(form["partitions"], form["offsets"], strict=True)
        )
    )


def partitions_form(partitions: frozenset[TopicPartition]) -> list[Form]:
    topics = by_topic(dict.fromkeys(partitions))
    return [{"topic": topic, "partitions": list(numbers)} for topic, numbers in topics.items()]


def partitions_of(topics: list[Form]) -> frozenset[TopicPartition]:
    return frozenset(
        partition_of(form["topic"], number) for form in topics for number in form["partitions"]
    )


# WRITE-STATUS as the dictionary of its Avro schema, and back: claims, and files per table.


PARTS_MAX = 1024


def status_form(status: WriteStatus) -> Form:
    return {
        "status_number": status.status_number,
        "part": status.part,
        "parts": status.parts,
        "claims": [
            {"topic": topic, "claims": [_claim_form(n, claim) for n, claim in claims.items()]}
            for topic, claims in by_topic(status.claims).items()
        ],
        "tables": [_table_status_form(table) for table in status.tables],
        "unknown": partitions_form(status.unknown),
        "failure": status.failure,
        "troubles": dict(status.troubles),
    }


def status_of(form: Form) -> WriteStatus:
    if not 0 <= form["part"] < form["parts"] <= PARTS_MAX:
        raise ValueError(f"a status cannot have a part {form['part']} of {form['parts']}")
    tables = tuple(_table_status(table) for table in form["tables"])
    if len({(table.table, table.uuid) for table in tables}) < len(tables):
        raise ValueError("a table is named twice")
    return WriteStatus(
        status_number=natural(form["status_number"]),
        claims=once(
            (partition_of(topic["topic"], claim["partition"]), _claim(claim))
            for topic in form["claims"]
            for claim in topic["claims"]
        ),
        tables=tables,
        unknown=partitions_of(form["unknown"]),
        failure=form["failure"],
        part=form["part"],
        parts=form["parts"],
        troubles=form["troubles"],
    )


def _table_status_form(table: TableStatus) -> Form:
    return {
        "table": table.table,
        "uuid": table.uuid,
        "schema_id": table.schema_id,
        "files": [_file_form(file) for file in table.files],
    }


def _table_status(form: Form) -> TableStatus:
    return TableStatus(
        table=form["table"],
        files=tuple(_file(file) for file in form["files"]),
        uuid=form["uuid"],
        schema_id=natural(form["schema_id"]),
    )


def _claim_form(partition: int, claim: Claim) -> Form:
    return {
        "partition": partition,
        "begin": claim.range.begin,
        "end": claim.range.end,
        "records": claim.records,
        "quarantined": claim.quarantined,
        "skipped": claim.skipped,
        "bad": claim.bad,
        "bytes_read": claim.bytes_read,
        "max_timestamp_ms": claim.max_timestamp_ms,
        "deleted": claim.deleted,
    }


def _claim(form: Form) -> Claim:
    return Claim(
        range=OffsetRange(natural(form["begin"]), natural(form["end"])),
        records=natural(form["records"]),
        quarantined=natural(form["quarantined"]),
        skipped=natural(form["skipped"]),
        bad=natural(form["bad"]),
        bytes_read=natural(form["bytes_read"]),
        max_timestamp_ms=form["max_timestamp_ms"],
        deleted=natural(form["deleted"]),
    )


def _file_form(file: WrittenFile) -> Form:
    return {
        "path": file.path,
        "records": file.records,
        "size_bytes": file.size_bytes,
        "kind": file.kind.value,
        "detail": file.detail,
    }


def _file(form: Form) -> WrittenFile:
    return WrittenFile(
        path=form["path"],
        records=natural(form["records"]),
        size_bytes=natural(form["size_bytes"]),
        kind=FileKind(form["kind"]),
        detail=form["detail"],
    )


# PROPOSAL and TABLES, and the table in a START, as the dictionaries of their Avro schemas.


NAME_CHARACTERS_MAX = 4_000


def table_start_form(table: TableStart) -> Form:
    return {
        "table": table.table,
        "uuid": table.uuid,
        "schema_id": table.schema_id,
        "spec_id": table.spec_id,
        "file_prefix": table.file_prefix,
        "offsets": offsets_form(table.offsets),
        "refused": [{"path": list(each.path), "reason": each.reason} for each in table.refused],
    }


def table_start_of(form: Form) -> TableStart:
    return TableStart(
        table=form["table"],
        uuid=form["uuid"],
        schema_id=natural(form["schema_id"]),
        spec_id=natural(form["spec_id"]),
        file_prefix=form["file_prefix"],
        offsets=offsets_of(form["offsets"]),
        refused=tuple(Refusal(tuple(each["path"]), each["reason"]) for each in form["refused"]),
    )


def proposal_form(proposal: Proposal) -> Form:
    return {
        "number": proposal.number,
        "table": proposal.table,
        "uuid": proposal.uuid,
        "schema_id": proposal.schema_id,
        "columns": to_json(proposal.columns),
        "first": offsets_form(proposal.first),
        "records": proposal.records,
        "source": proposal.source,
        "raw": proposal.raw,
    }


def proposal_of(form: Form) -> Proposal:
    """G6: build the proposal, with names of bounded length, for answers repeat them."""
    if max(len(form["table"]), len(form["raw"])) > NAME_CHARACTERS_MAX:
        raise ValueError(f"a table's name of more than {NAME_CHARACTERS_MAX} characters")
    return Proposal(
        number=natural(form["number"]),
        table=form["table"],
        uuid=form["uuid"],
        schema_id=natural(form["schema_id"]),
        columns=from_json(form["columns"]),
        first=offsets_of(form["first"]),
        records=natural(form["records"]),
        source=form["source"],
        raw=form["raw"],
    )


def tables_form(tables: Tables) -> Form:
    return {
        "answers": [
            {
                "member": answer.sender.member,
                "incarnation": answer.sender.incarnation,
                "number": answer.number,
            }
            for answer in tables.answers
        ],
        "tables": [table_start_form(table) for table in tables.tables],
    }


def tables_of(form: Form) -> Tables:
    return Tables(
        answers=tuple(
            Answer(Sender(each["member"], each["incarnation"]), natural(each["number"]))
            for each in form["answers"]
        ),
        tables=tuple(map(table_start_of, form["tables"])),
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
