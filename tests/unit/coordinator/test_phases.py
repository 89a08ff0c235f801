"""The table of transitions: nothing leaves it, and every way in it is walked here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.following import (
    ONE,
    OTHER,
    announces,
    delivering,
    drafting,
    following,
    pending,
    secondary,
)
from protocol.values import (
    ALICE,
    COORDINATOR,
    P0,
    RIVAL,
    gain,
    offsets,
    proposal,
    record,
    status,
    topics,
    view,
)

from headgate.control_protocol.errors import StopSink
from headgate.control_protocol.events import EndCommit
from headgate.control_protocol.machine_io import LogTruncated
from headgate.coordinator.inputs_and_actions import LeadershipGained, Stopped
from headgate.coordinator.phase_steps import enter_phase
from headgate.coordinator.phases import TRANSITIONS, Phase
from headgate.coordinator.schema_changes import GATHERING_MS
from headgate.coordinator.settings import OffsetPolicy

Edge = tuple[Phase, Phase]
LEADING = [p for p in Phase if p not in (Phase.FOLLOWING, Phase.STOPPED)]
WITH_A_TERM = [p for p in LEADING if p not in (Phase.RECOVERING, Phase.CLAIMING)]
EDGES = {(before, after) for before, afters in TRANSITIONS.items() for after in afters}


def at(phase: Phase) -> Coordinator:
    if phase in (Phase.DRAFTING, Phase.DELIVERING):
        return drafting() if phase is Phase.DRAFTING else delivering()
    if phase is Phase.EVOLVING:
        return evolving()
    if phase is not Phase.COMMITTING:
        return Coordinator.at(phase)
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(status(1, {P0: (10, 15)}, written_in=(EPOCH, 1)), ALICE, transaction=1)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    return coordinator


def evolving() -> Coordinator:
    """A participant's proposal has waited for others long enough."""
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(proposal(1), ALICE, transaction=1)
    coordinator.waits(GATHERING_MS)
    return coordinator


def evolved() -> Coordinator:
    coordinator = evolving()
    coordinator.until(Phase.OPEN)
    return coordinator


def quiet() -> Coordinator:
    """A round with a commit and one without."""
    coordinator = at(Phase.COMMITTING)
    coordinator.until(Phase.SETTLING)
    coordinator.until(Phase.COLLECTING)
    coordinator.until(Phase.SETTLING)
    coordinator.until(Phase.OPEN)
    return coordinator


def owing() -> Coordinator:
    """A round with deliveries, of an epoch whose lead has pending something from the beginning."""
    behind = (secondary(ONE, EPOCH - 1, 2), secondary(OTHER))
    coordinator = following(pending(ONE, EPOCH - 1, 3), secondaries=behind)
    coordinator.until(Phase.COLLECTING)
    announces(coordinator)
    coordinator.until(Phase.OPEN)
    return coordinator


def adopting() -> Coordinator:
    """A claim whose secondary tables carry no record of this primary table."""
    coordinator = following(
        secondaries=(secondary(ONE, primary=None), secondary(OTHER, primary=None))
    )
    coordinator.until(Phase.OPEN)
    return coordinator


def broken(phase: Phase) -> Coordinator:
    coordinator = at(phase)
    coordinator.given(LogTruncated("truncated"))
    return coordinator


def stopped(phase: Phase) -> Coordinator:
    coordinator = at(phase)
    coordinator.given(Stopped(StopSink("no repetition can help")))
    return coordinator


def outranked(phase: Phase) -> Coordinator:
    coordinator = at(phase)
    coordinator.hears(EndCommit(), RIVAL, epoch=EPOCH + 1)
    return coordinator


def claim_outranked() -> Coordinator:
    coordinator = at(Phase.CLAIMING)
    coordinator.refused()
    coordinator.reads(view(record(EPOCH + 1, 0, offsets(10, 20), RIVAL), snapshot=300))
    return coordinator


def claim_overtaken() -> Coordinator:
    coordinator = at(Phase.CLAIMING)
    coordinator.refused()
    coordinator.reads(view(record(EPOCH - 1, 5, offsets(12, 20), RIVAL), snapshot=300))
    return coordinator


def source_lost_offsets() -> Coordinator:
    coordinator = Coordinator.at(
        Phase.PREPARING, replace(SETTINGS, on_offset_out_of_range=OffsetPolicy.EARLIEST)
    )
    coordinator.sources = topics((50, 90), (50, 90))
    coordinator.described()
    return coordinator


WALKS: list[Callable[[], Coordinator]] = [
    quiet,
    owing,
    adopting,
    evolved,
    claim_outranked,
    claim_overtaken,
    source_lost_offsets,
    *[lambda phase=phase: broken(phase) for phase in WITH_A_TERM],
    *[lambda phase=phase: outranked(phase) for phase in WITH_A_TERM],
    *[lambda phase=phase: stopped(phase) for phase in (Phase.FOLLOWING, *LEADING)],
]


def test_every_way_in_the_table_is_walked_and_none_beside_it() -> None:
    walked = {edge for walk in WALKS for edge in walk().walk}

    assert walked - EDGES == set()
    assert EDGES - walked == set()


@pytest.mark.parametrize("before", list(Phase))
def test_the_machine_refuses_any_other_way(before: Phase) -> None:
    state = replace(Coordinator().state, phase=before)
    for after in set(Phase) - TRANSITIONS[before]:
        with pytest.raises(AssertionError, match="illegal transition"):
            enter_phase(state, after)


def test_a_stopped_one_hears_nothing_more() -> None:
    coordinator = stopped(Phase.OPEN)
    state = coordinator.state
    coordinator.hears(gain(P0), ALICE)
    coordinator.hears(EndCommit(), COORDINATOR, epoch=EPOCH + 1)
    coordinator.given(LeadershipGained())
    coordinator.waits(1_000_000)

    assert coordinator.state == state
    assert coordinator.actions == ()


@pytest.mark.parametrize("phase", LEADING)
def test_whatever_comes_in_any_phase_stays_within_the_table(phase: Phase) -> None:
    """Everything a coordinator can be told, twice over, in every phase."""
    for told in range(8):
        coordinator = at(phase)
        for _ in range(2):
            tell(coordinator, told)
        assert set(coordinator.walk) <= EDGES


def tell(coordinator: Coordinator, told: int) -> None:
    match told:
        case 0:
            coordinator.waits(SETTINGS.commit_interval_ms)
        case 1:
            coordinator.given(LeadershipGained())
        case 2:
            coordinator.reads()
        case 3:
            coordinator.described()
        case 4:
            coordinator.unsure()
        case 5:
            coordinator.refused()
        case 6:
            coordinator.hears(gain(P0), ALICE, epoch=EPOCH + 3)
        case _:
            coordinator.given(LogTruncated("truncated"))
