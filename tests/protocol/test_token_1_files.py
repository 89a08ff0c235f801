"""TOKEN-1: nobody deletes announced files; all lie under
data/headgate/<sink>/<epoch>-<incarnation>/."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.participating import Participant
from protocol.values import (
    ALICE,
    BOB,
    COORDINATOR,
    LOCATION,
    P0,
    P1,
    SINK,
    data_file,
    offsets,
    status,
    view,
)

from headgate.control_protocol.errors import FolderElsewhere
from headgate.control_protocol.events import AckCommit, StartCommit
from headgate.control_protocol.identifiers import TransactionNumber
from headgate.control_protocol.machine_io import LogTruncated
from headgate.coordinator import inputs_and_actions as coordinator_actions
from headgate.coordinator.inputs_and_actions import CommitTable
from headgate.coordinator.phase_steps import epoch_prefixes
from headgate.coordinator.phases import Phase
from headgate.coordinator.state import Timer
from headgate.participant import inputs_and_actions as participant_actions

ELSEWHERE = "s3://elsewhere/trips"
AGEING = replace(SETTINGS, claim_age_max_ms=100_000)


def test_no_machine_can_ask_for_a_deletion() -> None:
    """Whoever adds an action that touches files must come by here.

    ``TidyStagedManifests`` deletes manifests that nobody decided on (PENDING-2), and no data file;
    ``AcknowledgeDelivered`` key files of pending commits that a read shows as delivered
    (PENDING-7), which no snapshot refers to.
    """
    wanted = get_args(coordinator_actions.Action) + get_args(participant_actions.Action)

    assert {kind.__name__ for kind in wanted} == {
        "Append",
        "ReadEndOffsets",
        "ChangeTables",
        "CommitTable",
        "CopyOffsets",
        "Look",
        "StageManifests",
        "EvolveTable",
        "DeliverPendingCommits",
        "Stop",
        "AcknowledgeDelivered",
        "Submit",
        "LogLine",
        "TidyStagedManifests",
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
    assert kinds <= {"CopyOffsets", "ReadEndOffsets"}


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
    assert coordinator.reads_primary
    coordinator.reads()

    assert coordinator.phase is Phase.RECOVERING
    assert not coordinator.wants(CommitTable)


def collected() -> Coordinator:
    coordinator = Coordinator.at(Phase.COLLECTING, AGEING)
    whole = status(1, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1))
    coordinator.hears(whole, ALICE, transaction=1)
    return coordinator


def test_start_names_the_new_folder_once_a_writer_says_that_the_data_has_moved() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    elsewhere = FolderElsewhere("START names a folder that is not below the data")
    said = replace(status(1, {}, unknown={P0, P1}), failure=str(elsewhere))
    coordinator.hears(said, ALICE, transaction=1)
    coordinator.table = replace(coordinator.table, data_location=ELSEWHERE)
    coordinator.until(Phase.OPEN)
    coordinator.until(Phase.PREPARING)
    assert coordinator.reads_primary
    coordinator.reads()
    coordinator.described()
    _, start = coordinator.said
    assert isinstance(start, StartCommit)
    assert start.tables[0].file_prefix.startswith(f"{ELSEWHERE}/headgate/{SINK}/")


def test_another_failure_is_no_reason_to_look() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    said = replace(status(1, {}, unknown={P0, P1}), failure="HG-403 the disk is full")
    coordinator.hears(said, ALICE, transaction=1)
    coordinator.until(Phase.OPEN)
    coordinator.until(Phase.PREPARING)
    assert not coordinator.reads_primary


def test_files_where_the_table_had_its_data_earlier_are_in_as_are_those_where_it_has_it() -> None:
    """Its owner moved it while they were written."""
    coordinator = moved()
    coordinator.described()
    coordinator.until(Phase.COLLECTING)
    before = status(1, {P0: (10, 15)}, written_in=(EPOCH, 2))
    folder = f"{ELSEWHERE}/headgate/{SINK}/{EPOCH}-{COORDINATOR.incarnation}/2"
    after = status(1, {P1: (20, 22)}, files=(data_file(f"{folder}/b.parquet", 2),))
    coordinator.hears(before, ALICE, transaction=2)
    coordinator.hears(after, BOB, transaction=2)
    coordinator.waits(1)
    assert coordinator.attempt.record.offsets == offsets(15, 22)


def test_an_epoch_takes_nothing_from_where_the_data_lay_before_it() -> None:
    coordinator = moved()
    assert coordinator.term.tokens.former_data
    coordinator.given(LogTruncated("the control topic was created again"))
    coordinator.until(Phase.OPEN)
    assert not coordinator.term.tokens.former_data
    assert coordinator.term.primary.view.data_root == ELSEWHERE


def moved() -> Coordinator:
    """A look shows that the table's owner has moved its data."""
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.state = coordinator.state.with_deadline(Timer.LOOK, coordinator.now_ms)
    coordinator.until(Phase.PREPARING)
    coordinator.reads(replace(coordinator.table, data_location=ELSEWHERE))
    return coordinator


def test_the_prefix_lies_where_the_table_wants_its_data() -> None:
    coordinator = Coordinator.at(Phase.STARTING)
    elsewhere = replace(view(), data_location="s3://elsewhere/trips")
    issued = epoch_prefixes(coordinator.state, elsewhere)
    folder = f"s3://elsewhere/trips/headgate/{SINK}/{EPOCH}-{COORDINATOR.incarnation}/1"
    assert issued.folder_of(TransactionNumber(1)) == folder
