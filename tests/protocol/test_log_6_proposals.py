"""LOG-6: what anybody may propose takes bounded memory, and its answer can always be said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, Coordinator
from protocol.participating import started
from protocol.test_create_tables import asks, changes, opened, there
from protocol.test_schema_evolution import in_need
from protocol.test_schema_evolution import proposed as proposed_by
from protocol.values import ALICE, COORDINATOR, SINK, offsets, proposal

from headgate.control_protocol import message_encoding
from headgate.control_protocol.columns import Column
from headgate.control_protocol.event_codec import NAME_CHARACTERS_MAX, SENDER_CHARACTERS_MAX
from headgate.control_protocol.events import Envelope, Event, Proposal, Tables
from headgate.control_protocol.identifiers import Epoch, Sender, TransactionNumber
from headgate.control_protocol.schema_evolution import Refusal
from headgate.coordinator import schema_changes
from headgate.coordinator.inputs_and_actions import EvolveTable
from headgate.coordinator.phases import Phase
from headgate.coordinator.schema_changes import GATHERING_MS, PROPOSALS_BYTES_MAX

LONG = "n" * SENDER_CHARACTERS_MAX


def envelope(event: Event, sender: Sender = COORDINATOR) -> Envelope:
    return Envelope(SINK, Epoch(EPOCH), TransactionNumber(1), sender, 1, 0, event)


def somebody(number: int) -> Sender:
    return Sender(f"{number}-{LONG}"[:SENDER_CHARACTERS_MAX], LONG)


def held(coordinator: Coordinator) -> list[int]:
    return [each.proposal.number for each in coordinator.term.changes.proposals]


def test_proposals_that_wait_take_bounded_memory_and_the_newest_are_kept() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    large = Column("x" * 800_000, "long")
    count = PROPOSALS_BYTES_MAX // 800_000 + 10
    for number in range(1, count + 1):
        coordinator.hears(proposal(number, large), ALICE, transaction=1)
    numbers = held(coordinator)
    assert numbers == list(range(count - len(numbers) + 1, count + 1))
    assert len(numbers) * 800_000 <= PROPOSALS_BYTES_MAX
    assert (len(numbers) + 1) * 802_500 > PROPOSALS_BYTES_MAX


def test_many_small_proposals_are_bounded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_changes, "PROPOSALS_BYTES_MAX", 100_000)
    coordinator = Coordinator.at(Phase.COLLECTING)
    for number in range(1, 101):
        coordinator.hears(proposal(number), ALICE, transaction=1)
    assert 30 < len(held(coordinator)) <= 50
    assert held(coordinator)[-1] == 100


def test_what_was_forgotten_is_asked_again_with_the_next_start_under_a_new_number() -> None:
    """And only with that: who waits says it once a transaction."""
    participant = in_need()
    first = proposed_by(participant)
    (before,) = [draft for draft in participant.unheard if isinstance(draft.event, Proposal)]
    participant.hears_itself()
    participant.hears(started(2, offsets(10, 20), 1, settled_to=11), transaction=2)
    participant.waits(participant.state.settings.presence_interval_ms)
    participant.waits(participant.state.settings.presence_interval_ms)
    assert proposed_by(participant) == first
    (again,) = [draft for draft in participant.unheard if isinstance(draft.event, Proposal)]
    assert again.sequence > before.sequence
    participant.hears_itself()
    participant.waits(20_000_000)
    assert not [draft for draft in participant.unheard if isinstance(draft.event, Proposal)]


def test_the_answer_to_many_fits_into_a_message_and_others_are_answered_next() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    for number in range(1_500):
        coordinator.hears(proposal(1), somebody(number), transaction=1)
    coordinator.waits(GATHERING_MS)
    answered = set()
    while coordinator.wants(EvolveTable):
        coordinator.evolves()
        (tables,) = coordinator.said
        assert isinstance(tables, Tables)
        message_encoding.encode_envelope(envelope(tables))
        answered |= set(tables.answers)
        coordinator.hears_itself()
        coordinator.waits(0)
    assert len(answered) == 1_500
    assert coordinator.term.changes.proposals == ()


def test_refusals_that_are_long_are_not_named_one_by_one() -> None:
    """START bears them as well, for as long as the epoch lasts."""
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(proposal(1), ALICE, transaction=1)
    coordinator.waits(GATHERING_MS)
    coordinator.evolves(*(Refusal(("x" * 300_000, str(n)), "no") for n in range(4)))
    (tables,) = coordinator.said
    message_encoding.encode_envelope(envelope(tables))
    assert [refusal.path for refusal in coordinator.term.changes.refused] == [()]


def test_what_becomes_of_many_tables_is_told_in_messages_that_fit() -> None:
    names = [f"lake.t{number}" for number in range(150)]
    coordinator = opened(*((ALICE, asks(n, name)) for n, name in enumerate(names, 1)))
    wild = tuple(Refusal(("y" * 180, str(n)), "no") for n in range(190))
    told: dict[str, int] = {}
    for _ in names:
        if not coordinator.actions:
            break
        wants = coordinator.actions[0].wants  # type: ignore[union-attr]
        changes(coordinator, *(there(want.at.table, refused=wild) for want in wants))
        (tables,) = coordinator.said
        assert isinstance(tables, Tables)
        message_encoding.encode_envelope(envelope(tables))
        told |= {start.table: len(start.refused) for start in tables.tables}
        coordinator.hears_itself()
        coordinator.waits(0)
    assert told == dict.fromkeys(names, 190)
    assert coordinator.term.changes.proposals == ()


def test_a_reason_is_told_shortly() -> None:
    coordinator = opened((ALICE, asks(1)))
    changes(coordinator, there(uuid="", why="z" * 1_000_000))
    (tables,) = coordinator.said
    message_encoding.encode_envelope(envelope(tables))


def test_who_asks_once_more_is_answered_once_more() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    at = coordinator.hears(proposal(1), ALICE, transaction=1)
    coordinator.waits(GATHERING_MS)
    coordinator.evolves()
    coordinator.hears_itself()
    coordinator.hears(proposal(1), ALICE, transaction=1, sequence=at)
    assert held(coordinator) == []
    coordinator.hears(proposal(1), ALICE, transaction=1)
    assert held(coordinator) == [1]


@pytest.mark.parametrize("sender", [Sender(LONG + "n", ""), Sender("", LONG + "n")])
def test_nobody_has_so_long_a_name(sender: Sender) -> None:
    with pytest.raises(ValueError, match="a sender of more than"):
        message_encoding.encode_envelope(envelope(proposal(1), sender))


@pytest.mark.parametrize("field", ["table", "raw"])
def test_no_table_has_so_long_a_name(field: str) -> None:
    said = replace(proposal(1), **{field: "t" * (NAME_CHARACTERS_MAX + 1)})
    with pytest.raises(ValueError, match="a table's name of more than"):
        message_encoding.encode_envelope(envelope(said))


def test_a_name_in_its_bounds_is_heard() -> None:
    said = replace(proposal(1), table="t" * NAME_CHARACTERS_MAX)
    assert message_encoding.decode_envelope(
        message_encoding.encode_envelope(envelope(said, somebody(1)))
    ) == envelope(said, somebody(1))
