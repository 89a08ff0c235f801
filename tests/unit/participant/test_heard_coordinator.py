"""A participant's guess and the coordinator's judgement are the same sum."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from protocol.values import ALICE, P0, P1, SINK, TABLE, folder, offsets, status

from headgate.control_protocol.identifiers import ControlOffset, Epoch, TransactionNumber
from headgate.control_protocol.machine_io import OutgoingEvent
from headgate.control_protocol.offsets import Offsets
from headgate.coordinator.file_admission import Prefixes
from headgate.coordinator.state import HeardStatus
from headgate.coordinator.status_validation import AdmissionCriteria, validate_statuses
from headgate.participant.batches import empty_written_range
from headgate.participant.heard_coordinator import apply_settlement, enter_epoch
from headgate.participant.settings import ParticipantSettings
from headgate.participant.state import Announced, Ownership, OwnStatus, State, Term, Work

BOTH = frozenset({P0, P1})
RANGES = st.tuples(st.integers(0, 8), st.integers(0, 4)).map(lambda r: (r[0], r[0] + r[1]))
CLAIMS = st.dictionaries(st.sampled_from([P0, P1]), RANGES, min_size=1)


def pending(claims: list[dict]) -> tuple[OwnStatus, ...]:  # type: ignore[type-arg]
    own = []
    for number, claimed in enumerate(claims, start=1):
        said = status(number, claimed)
        draft = OutgoingEvent(Epoch(1), TransactionNumber(1), said, number)
        own.append(OwnStatus(draft, said, ControlOffset(100 + number)))
    return tuple(own)


def participant(own: tuple[OwnStatus, ...], at: Offsets) -> State:
    state = State(
        SINK, ALICE, ParticipantSettings(), term=Term(Epoch(1)), said=Announced(pending=own)
    )
    owned = {p: Ownership(1, ControlOffset(1), empty_written_range(at[p])) for p in at}
    return replace(state, work=Work(owned))


@given(st.lists(CLAIMS, max_size=8), st.integers(0, 9))
def test_chained_positions_are_what_the_coordinators_judge_will_say(
    claims: list[dict],
    settled_before: int,  # type: ignore[type-arg]
) -> None:
    """Whatever of the own statuses L covers: the rest, judged on C, gives the next C."""
    own, c = pending(claims), offsets(3, 5)
    settled_to = ControlOffset(101 + settled_before)
    after = apply_settlement(participant(own, c), c, settled_to)

    late = [o for o in own if o.offset is not None and o.offset >= settled_to]
    heard = [
        HeardStatus(o.offset or ControlOffset(0), ALICE, TransactionNumber(1), o.status)
        for o in late
    ]
    prefixes = Prefixes(folder(1, 1).rsplit("/", 1)[0], TransactionNumber(9))
    assert after.positions == dict(
        validate_statuses(heard, AdmissionCriteria(c, BOTH, TABLE, prefixes)).offsets
    )
    assert after.said.pending == tuple(late)


@given(st.lists(CLAIMS, max_size=8), st.lists(st.integers(95, 115), max_size=6))
def test_settlements_in_any_order_end_where_the_newest_does(
    claims: list[dict],
    places: list[int],  # type: ignore[type-arg]
) -> None:
    """Delayed and repeated ones say nothing: C is a function of L."""
    own = pending(claims)
    state = participant(own, offsets(3, 5))
    for place in places:
        state = apply_settlement(state, offsets(place, place + 1), ControlOffset(place))
    newest = max(places, default=0)
    alone = apply_settlement(
        participant(own, offsets(3, 5)), offsets(newest, newest + 1), ControlOffset(newest)
    )

    assert not places or state.positions == alone.positions


@given(st.lists(CLAIMS, max_size=8))
def test_the_same_settlement_twice_is_once(claims: list[dict]) -> None:  # type: ignore[type-arg]
    once = apply_settlement(
        participant(pending(claims), offsets(3, 5)), offsets(4, 5), ControlOffset(103)
    )

    assert apply_settlement(once, offsets(4, 5), ControlOffset(103)) == once


def test_a_higher_epoch_leaves_only_what_the_group_gave() -> None:
    state = participant(pending([{P0: (3, 5)}]), offsets(5, 5))
    work = replace(state.work, failure="disk full", failed=frozenset({P0}))
    term = replace(state.term, settled_to=ControlOffset(99))
    said = replace(state.said, status_number=7)
    state = replace(state, work=work, term=term, said=said)
    after = enter_epoch(state, Epoch(2), ALICE)

    assert after.work.owned.keys() == state.work.owned.keys()
    assert dict(after.positions) == {}
    assert (after.said.pending, after.work.files, after.work.failure) == ((), (), None)
    assert after.term.settled_to == 0
    assert after.said.status_number == 7, "a sender and a number name one status for ever"
