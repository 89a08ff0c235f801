"""How an envelope reads in a transcript: one line, offsets as ``C=0:10,1:20``."""

from __future__ import annotations

from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    EndCommit,
    Envelope,
    Presence,
    Resume,
    Settlement,
    StartCommit,
    WriteStatus,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets


def brief(said: Envelope) -> str:
    number = f"{said.epoch}.{said.transaction}"
    match said.event:
        case StartCommit() as start:
            settled_to = "here" if start.settled_to is None else start.settled_to
            schema = f" schema={start.tables[0].schema_id}" if start.tables[0].schema_id else ""
            ahead = start.tables[1].offsets if len(start.tables) > 1 else Offsets()
            aside = f" quarantine {brief_offsets(ahead)}" if ahead else ""
            suspended = "".join(f" {table}=suspended" for table in start.suspended)
            said_of = f"L={settled_to} {brief_offsets(start.offsets)}{schema}{aside}{suspended}"
            return f"START {number}  {said_of}"
        case EndCommit():
            return f"END {number}"
        case WriteStatus() as status:
            return f"WRITE-STATUS {number}  {_status(status)}"
        case AckCommit() as settlement:
            return f"ACK {number}  {_settlement(settlement)}"
        case AbortCommit() as settlement:
            return f"ABORT {number}  {_settlement(settlement)}"
        case Presence() as presence:
            return f"PRESENCE {presence.kind} {_partitions(presence.concerns)}, epoch {said.epoch}"
        case Resume(tables=tables):
            return f"RESUME {', '.join(tables)}".rstrip()
        case event:
            return f"{type(event).__name__.upper()}"


def brief_offsets(offsets: Offsets) -> str:
    return "C=" + ",".join(f"{p.partition}:{offset}" for p, offset in sorted(offsets.items()))


def _status(status: WriteStatus) -> str:
    parts = [
        f"{partition.partition}:{claim.range}"
        for partition, claim in sorted(status.written.items())
    ]
    if status.unknown:
        parts.append(f"unknown {_partitions(status.unknown)}")
    if status.failure:
        parts.append(f"failed: {status.failure}")
    files = "+".join(str(len(table.files)) for table in status.tables) or "0"
    parts.append(f"{files} files")
    return " ".join([f"#{status.status_number}", *parts])


def _settlement(said: Settlement) -> str:
    snapshot = said.tables[0].snapshot_id
    held = f" snapshot {snapshot}" if snapshot else ""
    reason = f' "{said.reason}"' if said.reason else ""
    return f"L={said.settled_to} {brief_offsets(said.offsets)}{held}{reason}"


def _partitions(partitions: frozenset[TopicPartition]) -> str:
    return "{" + ",".join(str(p.partition) for p in sorted(partitions)) + "}"
