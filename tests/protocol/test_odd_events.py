"""Whatever a control topic can carry, no machine crashes, and only named errors end one.

Drawn are events with fields at their bounds, of tables and topics of nobody, through the codec and
into machines in every phase.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from protocol.coordinating import EPOCH, Coordinator
from protocol.participating import Participant
from protocol.test_log_5_replays import experienced
from protocol.values import ALICE, BOB, COORDINATOR, P0, P1, SINK, offsets
from support.control_envelopes import EXAMPLES

from headgate.control_protocol import message_encoding
from headgate.control_protocol.event_codec import NUMBER_MAX, envelope_to_form
from headgate.control_protocol.events import Envelope, LogRecord
from headgate.control_protocol.identifiers import ControlOffset, Epoch, Sender, TransactionNumber
from headgate.control_protocol.machine_io import Heard, Stop
from headgate.control_protocol.machine_io import Heard as ParticipantHeard
from headgate.control_protocol.machine_io import Stop as ParticipantStop
from headgate.control_protocol.message_encoding import Skipped
from headgate.control_protocol.multipart_status import Assembler
from headgate.coordinator.phases import Phase

TEXTS = ["", "\0", "\n\x1b[2J", "../..", "/", "x" * 5_000, "\u202e", "source", "a"]
NUMBERS = [0, 1, 2, 7, 11, 2**31 - 1, 2**31, NUMBER_MAX, NUMBER_MAX + 1, -1, 2**63 - 1, -(2**63)]
PHASES = [
    *(Phase.FOLLOWING, Phase.RECOVERING, Phase.CLAIMING, Phase.STARTING, Phase.OPEN),
    *(Phase.PREPARING, Phase.CLOSING, Phase.COLLECTING, Phase.COMMITTING, Phase.SETTLING),
]


def odd(value: Any, dice: random.Random) -> Any:
    """The same form with some of what is in it at a bound, gone, or there twice."""
    if dice.random() < 0.7 and isinstance(value, dict | list):
        if isinstance(value, dict):
            return {name: odd(inside, dice) for name, inside in value.items()}
        items = [odd(item, dice) for item in value]
        return dice.choice((items, items, items, items * 2, []))
    if dice.random() < 0.75:
        return value
    match value:
        case bool() | None:
            return value
        case int():
            return dice.choice(NUMBERS)
        case str():
            return dice.choice(TEXTS)
    return value


def forged(dice: random.Random, place: int, epoch: int) -> LogRecord | None:
    """What comes out of the codec of such an event, if anything does."""
    said = Envelope(
        sink=SINK,
        epoch=Epoch(dice.choice((epoch, epoch, epoch, epoch - 1, epoch + 1, NUMBER_MAX))),
        transaction=TransactionNumber(dice.choice((0, 1, 1, 2, 3, NUMBER_MAX))),
        sender=dice.choice((ALICE, BOB, COORDINATOR, Sender("", ""), Sender("m\n", "x" * 999))),
        sequence=dice.choice(NUMBERS[:8]),
        time_ms=dice.choice(NUMBERS),
        event=EXAMPLES[dice.choice(sorted(EXAMPLES))],
    )
    name, form = envelope_to_form(said)
    body = ("version", "sink", "epoch", "transaction", "member", "incarnation", "sequence")
    mutated = {key: form[key] if key in body else odd(form[key], dice) for key in form}
    try:
        message = message_encoding._EVENTS.serialize(name, mutated)
    except (ValueError, OverflowError, TypeError):  # not even Avro bears it
        return None
    read = message_encoding.decode_envelope(message)
    if isinstance(read, Skipped):
        return None
    whole = Assembler().add_and_pop_if_whole(read)
    return LogRecord(ControlOffset(place), whole) if whole else None


@pytest.mark.parametrize("phase", PHASES)
def test_no_event_makes_a_coordinator_fail(phase: Phase) -> None:
    """It may stop by a name, follow, or recover."""
    dice = random.Random(phase.value)
    heard = 0
    for _ in range(60):
        coordinator = experienced(phase) if phase is Phase.COMMITTING else Coordinator.at(phase)
        for _ in range(12):
            record = forged(dice, coordinator.next_offset, EPOCH)
            if record is None:
                continue
            heard += 1
            coordinator.next_offset += 1
            coordinator.given(Heard(record))
            if any(isinstance(action, Stop) for action in coordinator.actions):
                break
            coordinator.waits(dice.choice((0, 1, 200)))
    assert heard > 100


def test_no_event_makes_a_participant_fail() -> None:
    dice = random.Random("participant")
    heard = 0
    for _ in range(300):
        participant = Participant.writing(offsets(10, 20))
        participant.owns(P0, P1)
        for _ in range(12):
            record = forged(dice, participant.next_offset, 1)
            if record is None:
                continue
            heard += 1
            participant.next_offset += 1
            participant.given(ParticipantHeard(record))
            if any(isinstance(action, ParticipantStop) for action in participant.actions):
                break
            participant.waits(dice.choice((0, 1, 200)))
    assert heard > 1_000
