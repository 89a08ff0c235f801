"""LEDGER-2: a table that was filled and is gone is suspended; a new one must be asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.participating import Participant
from protocol.suspension import (
    ASIDE,
    CLICKS,
    ORDERS,
    UUID,
    announces,
    ledgers,
    pending,
    reads,
    table,
)
from protocol.values import ALICE, BOB, P0, SINK, offsets, proposal, record

from headgate.control_protocol.commit_record import Suspended
from headgate.control_protocol.commit_record_codec import (
    filled_properties_to_remove,
    filled_properties_to_set,
    filled_table_property,
    filled_table_uuids,
)
from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.events import Resume, StartCommit, Tables, TableStart
from headgate.control_protocol.machine_io import Stop
from headgate.control_protocol.ports import Changed, CommitAttempt
from headgate.control_protocol.schema_evolution import Refusal
from headgate.coordinator.inputs_and_actions import (
    ChangeTables,
    CommitTable,
    DeliveriesAnswered,
    Look,
    ManifestsStaged,
    TablesChanged,
)
from headgate.coordinator.phase_steps import build_start_event
from headgate.coordinator.phases import Phase
from headgate.coordinator.schema_changes import GATHERING_MS
from headgate.coordinator.table_suspension import commits_of_receiving_tables
from headgate.participant.schema_proposals import forget_proposals_of_suspended_tables
from headgate.participant.state import TableAnswer

GONE = TableMissing("there is no table lake.orders")
DROPPED = Suspended(ORDERS, "HG-102 there is no table lake.orders")


def remembering(
    *pending_commits: object, suspended: tuple[Suspended, ...] = (), **identity: bool
) -> Coordinator:
    """A ledger's coordinator before its claim; the ledger has filled orders in earlier epochs."""
    made = ledgers(*pending_commits, suspended=suspended)  # type: ignore[arg-type]
    made.table = replace(made.table, filled={ORDERS: UUID, CLICKS: f"uuid-{CLICKS}"})
    known = replace(made.state.identity, makes=True, **identity)
    made.state = replace(made.state, identity=known)
    return made


def asking(made: Coordinator) -> Look:
    """Until it has asked for the secondary tables."""
    while not made.reads_secondaries:
        made.goes_on()
    return made.only(Look)


def suspended_by(made: Coordinator) -> dict[str, str]:
    stored = made.table.record
    assert stored is not None
    return {suspended.table: suspended.why for suspended in stored.suspended}


def decision(made: Coordinator) -> CommitAttempt:
    """The next one."""
    while not made.all(CommitTable):
        made.goes_on()
    return made.attempt


def proposes(made: Coordinator, uuid: str = "") -> None:
    asked = replace(proposal(1, uuid=uuid), table=ORDERS, raw="Orders")
    made.hears(asked, ALICE, transaction=1)
    made.waits(GATHERING_MS)
    assert [want.at.table for want in made.only(ChangeTables).wants] == [ORDERS]
    made.pending = None
    words = f"HG-102 {GONE.message}"
    made.given(TablesChanged((Changed(ORDERS, why=words, dropped=True),)))


# ------------------------------------------------------------------------------- what is remembered


def test_ledger_2_the_decision_that_first_owes_rows_to_a_table_remembers_it() -> None:
    decided = replace(
        record(3, 4, offsets(10, 20)),
        secondaries={ASIDE: "uuid-aside"},
        pending_commits=(
            pending(3, 4),
            replace(pending(3, 4, name=CLICKS), manifest=""),
            replace(pending(3, 4), table=ASIDE, secondary="uuid-aside"),
        ),
    )
    filled = filled_properties_to_set(decided, {})
    assert filled == {filled_table_property(SINK, ORDERS): UUID}
    assert filled_table_uuids(SINK, {**filled, "owner": "me"}) == {ORDERS: UUID}
    assert filled_properties_to_set(decided, filled) == {}
    assert (
        filled_properties_to_set(decided, {filled_table_property(SINK, ORDERS): "before"}) == filled
    )


def test_ledger_2_what_is_forgotten_and_filled_again_at_once_is_remembered() -> None:
    name = filled_table_property(SINK, ORDERS)
    assert filled_properties_to_remove(SINK, {ORDERS, CLICKS}, (), {name}) == [name]
    assert filled_properties_to_remove(SINK, {ORDERS}, {name}, {name}) == []


def test_ledger_2_a_thousand_tables_are_remembered_in_a_hundred_bytes_each() -> None:
    names = (f"lake.shop_{number:04}" for number in range(1_000))
    properties = {filled_table_property(SINK, name): "c" * 36 for name in names}
    assert sum(len(name) + len(uuid) for name, uuid in properties.items()) < 100_000


# ----------------------------------------------------------------------------------- between epochs


def test_ledger_2_a_claim_looks_for_what_was_filled_and_suspends_what_is_gone() -> None:
    made = remembering()
    assert asking(made).remembered == {ORDERS, CLICKS}
    reads(made, made.secondaries[ASIDE], troubles={ORDERS: GONE})
    assert f"{ORDERS} is suspended" in made.told
    made.until(Phase.OPEN)
    assert suspended_by(made) == {ORDERS: f"HG-102 {GONE.message}"}
    said = build_start_event(made.state, first=True)
    assert isinstance(said, StartCommit)
    assert said.suspended[ORDERS].startswith("HG-102")


def test_ledger_2_who_is_suspended_is_not_looked_for_again() -> None:
    assert asking(remembering(suspended=(DROPPED,))).remembered == {CLICKS}


def test_ledger_2_a_ledger_that_knows_nothing_of_before_behaves_as_before() -> None:
    made = ledgers()
    assert asking(made).remembered == frozenset()
    made.until(Phase.OPEN)
    assert not made.term.suspensions.suspended


def test_ledger_2_without_a_quarantine_the_sink_stops() -> None:
    made = remembering()
    made.state = replace(made.state, identity=replace(made.state.identity, secondaries=()))
    asking(made)
    reads(made, troubles={ORDERS: GONE})
    assert made.only(Stop).error.code == "HG-102"


# ---------------------------------------------------------------------------------- within an epoch


def test_ledger_2_a_busy_sink_too_looks_now_and_then() -> None:
    made = remembering()
    made.until(Phase.OPEN)
    made.now_ms += SETTINGS.table_check_interval_ms
    made.until(Phase.PREPARING)
    assert asking(made).remembered == {ORDERS, CLICKS}
    reads(made, made.secondaries[ASIDE], troubles={ORDERS: GONE})
    assert made.term.suspensions.suspended.keys() == {ORDERS}
    made.described()
    made.until(Phase.COLLECTING)
    announces(made, at=None)
    made.until(Phase.OPEN)
    assert suspended_by(made).keys() == {ORDERS}
    made.until(Phase.PREPARING)
    assert not made.reads_secondaries


def test_ledger_2_a_table_that_was_filled_is_not_made_anew_but_suspended() -> None:
    made = remembering()
    made.until(Phase.OPEN)
    proposes(made)
    (tables,) = made.said
    assert isinstance(tables, Tables)
    (start,) = tables.tables
    assert start.refused[0].reason == f"HG-102 {GONE.message}"
    assert made.term.suspensions.suspended[ORDERS].why == f"HG-102 {GONE.message}"
    assert "is not made" not in made.told


# ------------------------------------------------------------------------------ a person's decision


def resumed(made: Coordinator) -> Coordinator:
    made.until(Phase.OPEN)
    made.hears(Resume((ORDERS,)), BOB, epoch=EPOCH)
    made.waits(0)
    reads(made, made.secondaries[ASIDE], troubles={ORDERS: GONE})
    return made


def test_ledger_2_resume_lets_it_be_made_anew_and_what_it_was_pending_expires() -> None:
    made = resumed(remembering(pending(EPOCH - 1, 4), suspended=(DROPPED,)))
    assert "is created again" in made.told
    assert not made.term.suspensions.suspended
    made.described()
    made.until(Phase.COLLECTING)
    announces(made, at=None)
    attempt = decision(made)
    assert attempt.forgets == {ORDERS}
    assert attempt.record.suspended == ()
    assert [pending_commit.table for pending_commit in attempt.record.expired] == [ORDERS]
    assert all(pending_commit.table != ORDERS for pending_commit in attempt.record.pending_commits)
    made.until(Phase.OPEN)
    assert made.term.suspensions.forgotten == frozenset()


def test_ledger_2_nothing_is_delivered_to_it_when_there_was_no_decision() -> None:
    made = resumed(remembering(pending(EPOCH - 1, 4), suspended=(DROPPED,)))
    assert made.term.delivery.pending
    assert commits_of_receiving_tables(made.term) == ()


def test_ledger_2_where_nobody_makes_tables_it_stays_suspended() -> None:
    made = remembering(suspended=(DROPPED,))
    made.state = replace(made.state, identity=replace(made.state.identity, makes=False))
    resumed(made)
    assert f"{ORDERS} stays suspended" in made.told


# ---------------------------------------------------------------------------- on_missing = "create"


def test_ledger_2_create_looks_for_nothing_and_suspends_nothing() -> None:
    made = remembering(pending(EPOCH - 1, 4), makes_anew=True)
    assert asking(made).remembered == frozenset()
    reads(made, made.secondaries[ASIDE], troubles={ORDERS: GONE})
    assert "is created again" in made.told
    claim = decision(made)
    assert claim.record.is_claim
    assert claim.forgets == {ORDERS}
    assert [pending_commit.table for pending_commit in claim.record.expired] == [ORDERS]
    assert claim.record.pending_commits == ()
    made.until(Phase.OPEN)
    assert not made.term.suspensions.suspended


def test_ledger_2_create_answers_who_asks_of_the_old_table_to_look_again() -> None:
    made = remembering(makes_anew=True)
    made.until(Phase.OPEN)
    proposes(made, UUID)
    (tables,) = made.said
    assert isinstance(tables, Tables)
    assert tables.tables == (TableStart(ORDERS, "", 0, 0, ""),)
    assert not made.term.suspensions.suspended
    assert made.term.suspensions.forgotten == {ORDERS}


def test_ledger_2_create_refuses_the_files_of_the_old_one_once_it_is_gone() -> None:
    made = remembering(makes_anew=True)
    made.until(Phase.COLLECTING)
    before = made.term.progress.offsets[P0]
    announces(made)
    reads(made, troubles={ORDERS: GONE})
    made.until(Phase.OPEN)
    assert made.term.progress.offsets[P0] == before
    assert not made.term.suspensions.suspended


@pytest.mark.parametrize("makes_anew", [False, True])
def test_ledger_2_one_that_goes_while_manifests_are_drafted(makes_anew: bool) -> None:
    made = remembering(makes_anew=makes_anew)
    made.until(Phase.COLLECTING)
    announces(made)
    reads(made, table())
    made.pending = None
    made.given(ManifestsStaged((), {ORDERS: GONE}))
    assert made.phase is Phase.RECOVERING
    made.until(Phase.OPEN)
    assert (ORDERS in suspended_by(made)) is not makes_anew


def test_ledger_2_create_gives_up_what_cannot_be_delivered_any_more() -> None:
    made = remembering(pending(EPOCH - 1, 4), makes_anew=True)
    made.secondaries[ORDERS] = table()
    made.until(Phase.DELIVERING)
    while made.phase is Phase.DELIVERING and not made.reads_secondaries:
        made.goes_on()
    made.secondaries.pop(ORDERS)
    reads(made, made.secondaries[ASIDE], troubles={ORDERS: GONE})
    assert made.term.suspensions.forgotten == {ORDERS}
    if made.phase is Phase.DELIVERING:
        made.pending = None
        made.given(DeliveriesAnswered({}))
    made.until(Phase.COLLECTING)
    announces(made, at=None)
    assert [pending_commit.table for pending_commit in decision(made).record.expired] == [ORDERS]


@pytest.mark.parametrize("uuid", [UUID, "uuid-anew"])
def test_ledger_2_create_4_one_that_somebody_else_made_in_its_place_is_filled_and_said(
    uuid: str,
) -> None:
    made = remembering()
    made.until(Phase.COLLECTING)
    announces(made)
    reads(made, table(uuid=uuid))
    assert ("not the table that was filled before" in made.told) is (uuid != UUID)
    assert not made.term.suspensions.suspended


def test_ledger_2_a_participant_forgets_the_answer_when_it_hears_who_is_suspended() -> None:
    """Else it would divert records of the table still, long after a person has resumed it."""
    participant = Participant.writing(offsets(10, 20))
    gone = TableStart(ORDERS, "", 0, 0, "", refused=(Refusal((), "HG-102 dropped"),))
    participant.state = replace(
        participant.state,
        needs=replace(
            participant.state.needs,
            answers={ORDERS: TableAnswer(gone, 10**9), CLICKS: TableAnswer(gone, 10**9)},
        ),
    )
    kept = forget_proposals_of_suspended_tables(participant.state, {ORDERS: "HG-102"}).needs.answers
    assert kept.keys() == {CLICKS}
