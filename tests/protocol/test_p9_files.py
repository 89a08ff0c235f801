"""P9: nobody deletes announced files; all lie under data/headgate/<sink>/<epoch>-<incarnation>/."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.participating import Participant
from protocol.values import ALICE, COORDINATOR, LOCATION, P0, P1, SINK, offsets, status, view

from headgate.control_protocol.events import AckCommit, StartCommit
from headgate.control_protocol.identifiers import TransactionNumber
from headgate.coordinator import actions as coordinator_actions
from headgate.coordinator.actions import CommitTable, ReadTable
from headgate.coordinator.speech import prefixes
from headgate.coordinator.transitions import Phase
from headgate.participant import actions as participant_actions

AGEING = replace(SETTINGS, claim_age_max_ms=100_000)


def test_no_machine_can_ask_for_a_deletion() -> None:
    """Whoever adds an action that touches files must come by here.

    ``TidyDrafts`` deletes manifests that nobody decided on (D2), and no data file; ``StrikeOff``
    key files of debts that a read shows as paid (D7), which no snapshot refers to.
    """
    wanted = get_args(coordinator_actions.Action) + get_args(participant_actions.Action)

    assert {kind.__name__ for kind in wanted} == {
        "Append",
        "AskEnds",
        "ChangeTables",
        "CommitTable",
        "CopyOffsets",
        "DescribeFollowers",
        "DescribeSources",
        "DraftManifests",
        "EvolveTable",
        "PayDebts",
        "ReadTable",
        "Stop",
        "StrikeOff",
        "Submit",
        "Tell",
        "TidyDrafts",
    }


def test_hc42_the_prefix_names_sink_epoch_incarnation_and_transaction() -> None:
    coordinator = Coordinator.at(Phase.STARTING)
    (start,) = coordinator.said
    assert isinstance(start, StartCommit)

    folder = f"{EPOCH}-{COORDINATOR.incarnation}/1"
    assert start.tables[0].file_prefix == f"{LOCATION}/data/headgate/{SINK}/{folder}"


def test_dropped_work_asks_for_nothing() -> None:
    participant = Participant.writing(offsets(10, 20))
    participant.writes({P0: 90, P1: 40})
    participant.ack(1, offsets(11, 20), settled_to=participant.next_offset)

    kinds = {type(action).__name__ for action in participant.actions}
    assert kinds <= {"CopyOffsets", "AskEnds"}


def test_f75_files_that_waited_too_long_are_given_up_and_not_committed() -> None:
    """Collected at last: somebody's orphan clean-up may have been there first."""
    coordinator = collected()
    coordinator.waits(AGEING.claim_age_max_ms + 1)

    (settlement,) = coordinator.said
    assert isinstance(settlement, AckCommit)
    assert "too old" in settlement.reason
    assert settlement.offsets == offsets(10, 20)
    assert not coordinator.wants(CommitTable)


def test_f75_a_status_that_comes_after_days_brings_no_files_into_a_young_transaction() -> None:
    """Its ranges still fit, for nobody else had the partition (simulation, seed 194)."""
    coordinator = Coordinator.at(Phase.COLLECTING, AGEING)
    coordinator.waits(AGEING.claim_age_max_ms + 1)
    coordinator.until(Phase.OPEN)
    coordinator.until(Phase.COLLECTING)
    late = status(1, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1))
    coordinator.hears(late, ALICE, transaction=1)
    coordinator.waits(1)

    (settlement,) = coordinator.said
    assert isinstance(settlement, AckCommit)
    assert "too old" in settlement.reason
    assert not coordinator.wants(CommitTable)


def test_the_least_age_that_a_sink_file_may_say_leaves_a_late_status_its_turn() -> None:
    """One round too late, and both rounds at their time-outs (simulation, seeds 3686 and 9136)."""
    coordinator = judged_a_round_late(rounds=4)
    assert coordinator.wants(CommitTable)

    coordinator = judged_a_round_late(rounds=2)
    (settlement,) = coordinator.said
    assert isinstance(settlement, AckCommit)
    assert "too old" in settlement.reason


def judged_a_round_late(rounds: int) -> Coordinator:
    """The files' time is so many intervals with their time-outs; of P1 nobody says anything."""
    round_ms = SETTINGS.commit_interval_ms + SETTINGS.commit_timeout_ms
    settings = replace(SETTINGS, claim_age_max_ms=rounds * round_ms)
    coordinator = Coordinator.at(Phase.COLLECTING, settings)
    for _ in range(2):  # files of 2 are issued as the statuses of 1 are awaited
        coordinator.waits(SETTINGS.commit_timeout_ms)
        coordinator.until(Phase.OPEN)
        coordinator.until(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    coordinator.until(Phase.OPEN)
    late = status(1, {P0: (10, 15)}, written_in=(EPOCH, 2))
    coordinator.hears(late, ALICE, transaction=2)
    coordinator.until(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    return coordinator


def test_f75_a_commit_that_never_gets_an_answer_is_given_up_by_a_new_claim() -> None:
    coordinator = collected()
    coordinator.waits(1)
    assert coordinator.wants(CommitTable)
    coordinator.unsure()
    coordinator.waits(AGEING.claim_age_max_ms + 1)
    assert coordinator.wants(ReadTable)
    coordinator.reads()

    assert coordinator.phase is Phase.RECOVERING
    assert not coordinator.wants(CommitTable)


def collected() -> Coordinator:
    coordinator = Coordinator.at(Phase.COLLECTING, AGEING)
    whole = status(1, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1))
    coordinator.hears(whole, ALICE, transaction=1)
    return coordinator


def test_the_prefix_lies_where_the_table_wants_its_data() -> None:
    coordinator = Coordinator.at(Phase.STARTING)
    elsewhere = replace(view(), data_location="s3://elsewhere/trips")
    issued = prefixes(coordinator.state, elsewhere)
    folder = f"s3://elsewhere/trips/headgate/{SINK}/{EPOCH}-{COORDINATOR.incarnation}/1"
    assert issued.of(TransactionNumber(1)) == folder
