"""NOTICE is for people: no machine heeds it, whoever says or repeats it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, Coordinator
from protocol.participating import Participant
from protocol.values import ALICE, COORDINATOR, P0, RIVAL

from headgate.control_protocol.events import Notice, NoticeKind
from headgate.control_protocol.identifiers import Sender
from headgate.control_protocol.offsets import Offsets
from headgate.coordinator.phases import Phase

SAID = [Notice(kind, "HG-207", "orders/0: not JSON", actor="eve") for kind in NoticeKind]


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.OPEN, Phase.COLLECTING])
@pytest.mark.parametrize("sender", [COORDINATOR, RIVAL])
@pytest.mark.parametrize("epoch", [0, EPOCH])
def test_a_coordinator_heeds_no_notice(
    phase: Phase, sender: Sender, epoch: int, said: Notice
) -> None:
    coordinator = Coordinator.at(phase)
    before = coordinator.state
    assert before.term is not None
    coordinator.hears(said, sender, epoch=epoch)
    after = coordinator.state
    assert coordinator.actions == ()
    assert after.term is not None
    term = replace(
        after.term, progress=replace(after.term.progress, heard_to=before.term.progress.heard_to)
    )
    assert replace(after, term=term, watch=before.watch) == before


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("sender", [COORDINATOR, ALICE])
def test_a_participant_heeds_no_notice(sender: Sender, said: Notice) -> None:
    participant = Participant.writing(Offsets({P0: 5}))
    before = participant.state
    participant.hears(said, sender, epoch=0)
    assert replace(participant.state, deadlines=before.deadlines) == before
