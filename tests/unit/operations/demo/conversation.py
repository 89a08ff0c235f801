"""Envelopes as two members of the demo would send them."""

from __future__ import annotations

from headgate.control_protocol.events import (
    AckCommit,
    Envelope,
    Event,
    PartitionPresence,
    Presence,
    PresenceKind,
    StartCommit,
    TableSettlement,
)
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Epoch,
    Sender,
    SinkName,
    TopicPartition,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets

P0, P1 = TopicPartition("trips", 0), TopicPartition("trips", 1)
FIRST, SECOND = "my-host-11", "my-host-22"


def said(member: str, epoch: int, number: int, event: Event) -> Envelope:
    return Envelope(
        sink=SinkName("trips"),
        epoch=Epoch(epoch),
        transaction=TransactionNumber(number),
        sender=Sender(member, "x"),
        sequence=1,
        time_ms=0,
        event=event,
    )


def start(offset: int) -> StartCommit:
    return StartCommit(None, Offsets({P0: offset, P1: offset}), {}, ())


def ack(offset: int, snapshot_id: int | None, records: int) -> AckCommit:
    settled = TableSettlement("demo.trips", snapshot_id, records)
    return AckCommit(ControlOffset(9), Offsets({P0: offset, P1: offset}), (settled,))


def presence(*owned: TopicPartition, end: int = 0) -> Presence:
    places = {at: PartitionPresence(None, end) for at in owned}
    return Presence(PresenceKind.ALIVE, frozenset(), places, "writing")
