"""The control topic's conversation, as the demo understands it."""

from __future__ import annotations

from unit.operations.demo.conversation import FIRST, P0, P1, SECOND, ack, presence, said, start

from headgate.control_protocol.events import EndCommit, WriteStatus, WrittenRange
from headgate.control_protocol.identifiers import Epoch, TransactionId, TransactionNumber
from headgate.control_protocol.offsets import OffsetRange
from headgate.operations.demo.control_topic_observer import (
    CoordinatorLeads,
    FilesReported,
    Observation,
    ParticipantArrived,
    TransactionCommitted,
    TransactionEnding,
    pid_of,
)


def transaction(epoch: int, number: int) -> TransactionId:
    return TransactionId(Epoch(epoch), TransactionNumber(number))


def test_a_transaction_from_start_to_commit() -> None:
    seen = Observation()
    assert seen.on_event(said(FIRST, 1, 1, start(0))) == CoordinatorLeads(FIRST, Epoch(1))
    assert seen.on_event(said(FIRST, 1, 1, EndCommit())) == TransactionEnding(
        FIRST, transaction(1, 1)
    )
    assert seen.ended == transaction(1, 1)
    assert seen.on_event(said(FIRST, 1, 2, start(0))) is None
    claims = {P0: WrittenRange(OffsetRange(0, 40), 40), P1: WrittenRange(OffsetRange(0, 40), 40)}
    status = WriteStatus(1, claims)
    assert seen.on_event(said(SECOND, 1, 1, status)) == FilesReported(SECOND, transaction(1, 1), 80)
    assert seen.table_record_count == 0
    assert seen.on_event(said(FIRST, 1, 1, ack(40, 7, 80))) == TransactionCommitted(
        transaction(1, 1), 7, 80
    )
    assert (seen.table_record_count, seen.commits, seen.ended) == (80, 1, None)
    assert seen.opened == transaction(1, 2)


def test_a_settlement_without_a_snapshot_is_no_commit() -> None:
    seen = Observation()
    assert seen.on_event(said(FIRST, 1, 1, ack(40, None, 0))) is None
    assert (seen.table_record_count, seen.commits) == (80, 0)


def test_a_higher_epoch_leads_and_a_lower_one_is_not_heard_any_more() -> None:
    seen = Observation()
    seen.on_event(said(FIRST, 1, 1, start(0)))
    seen.on_event(said(FIRST, 1, 1, EndCommit()))
    assert seen.on_event(said(SECOND, 2, 1, start(10))) == CoordinatorLeads(SECOND, Epoch(2))
    assert (seen.coordinator, seen.ended, seen.table_record_count) == (SECOND, None, 20)
    assert seen.on_event(said(FIRST, 1, 2, EndCommit())) is None
    assert seen.on_event(said(FIRST, 1, 1, ack(40, 7, 80))) is None
    assert seen.table_record_count == 20


def test_participants_arrive_with_their_first_partitions() -> None:
    seen = Observation()
    assert seen.on_event(said(FIRST, 0, 0, presence())) is None
    assert seen.on_event(said(FIRST, 0, 0, presence(P1, P0, end=5))) == ParticipantArrived(
        FIRST, (P0, P1)
    )
    assert seen.on_event(said(FIRST, 1, 0, presence(P0, end=9))) is None
    assert seen.participants[FIRST].state == "writing"
    assert seen.partition_end_offsets() == {P0: 9}


def test_an_end_is_never_before_what_the_table_holds() -> None:
    seen = Observation()
    seen.on_event(said(FIRST, 1, 1, start(12)))
    seen.on_event(said(FIRST, 1, 0, presence(P0, end=9)))
    assert seen.partition_end_offsets() == {P0: 12, P1: 12}


def test_a_members_process() -> None:
    assert pid_of("my-host-22") == 22
