"""A sink without a key, on a control topic to which a stranger may write."""

from __future__ import annotations

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.events import (
    AckCommit,
    EndCommit,
    Envelope,
    Event,
    Presence,
    PresenceKind,
    Proposal,
    WriteStatus,
    WrittenRange,
)
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Epoch,
    Sender,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.runtime.process_notices import open_control_log

pytestmark = [pytest.mark.integration, pytest.mark.wide]

FAR = 1_000_000_000


def say(sink: Deployment, sender: Sender, *events: tuple[int, int, Event]) -> None:
    """Each with its epoch and transaction."""
    log = open_control_log(sink.settings)
    try:
        log.append(
            [
                Envelope(
                    sink=sink.settings.name,
                    epoch=Epoch(epoch),
                    transaction=TransactionNumber(transaction),
                    sender=sender,
                    sequence=number,
                    time_ms=0,
                    event=event,
                )
                for number, (epoch, transaction, event) in enumerate(events, start=1)
            ]
        )
    finally:
        log.close()


def all_comes_all_the_same(sink: Deployment) -> None:
    sink.produce(500)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()


def at_work(deploy: Deploy) -> Deployment:
    """One participant: with a second one the epoch might still move."""
    sink = deploy()
    sink.start()
    sink.produce(500)
    sink.wait_until_lag_zero()
    return sink


def test_a_forged_claim_beyond_the_logs_end_moves_nothing(deploy: Deploy) -> None:
    sink = at_work(deploy)
    record = sink.record()
    assert record is not None
    claims = {at: WrittenRange(OffsetRange(next_, FAR)) for at, next_ in record.offsets.items()}
    status = WriteStatus(1, claims)
    epoch, transaction = record.transaction.epoch, record.transaction.number
    say(sink, Sender("mallory", "m"), (epoch, transaction + 1, status))
    sink.wait_until(
        lambda: any(p.said(f"{FAR}), but the log ends at") for p in sink.participants),
        "refusal of the claim",
    )
    all_comes_all_the_same(sink)


def test_forged_numbers_and_words_in_anothers_name_move_nothing(deploy: Deploy) -> None:
    sink = at_work(deploy)
    record = sink.record()
    assert record is not None
    epoch = record.transaction.epoch
    beyond = Offsets(dict.fromkeys(record.offsets, FAR))
    alive = Presence(PresenceKind.ALIVE, frozenset(), {})
    say(
        sink,
        record.coordinator,
        (epoch, 2**61, EndCommit()),
        (epoch, 2**61, AckCommit(ControlOffset(0), beyond)),
        (epoch, 1, AckCommit(ControlOffset(FAR), beyond)),
        (2**62 - 1, 1, alive),
        (epoch + 1, 1, alive),
        (epoch, 1, WriteStatus(2**61)),
    )
    all_comes_all_the_same(sink)


def test_forged_columns_are_not_taken_up(deploy: Deploy) -> None:
    """Its settings ignore fields without a column, so that no participant has asked for any."""
    sink = at_work(deploy)
    record = sink.record()
    assert record is not None
    with sink.table() as table:
        before, uuid = table.schema(), str(table.metadata.table_uuid)
    columns = Struct((Column("odd", "gibberish"), Column("forged", "long")))
    proposal = Proposal(1, "any", uuid, before.schema_id, columns, Offsets(), 1)
    epoch, transaction = record.transaction.epoch, record.transaction.number
    say(sink, Sender("mallory", "m"), (epoch, transaction + 1, proposal))
    all_comes_all_the_same(sink)
    with sink.table() as table:
        assert table.schema() == before
