"""SCHEMA-1 to SCHEMA-8: records that need columns wait for them, and nothing is claimed without its
value."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator, with_foreign_commit
from protocol.participating import SETTINGS as PARTICIPANT
from protocol.participating import Participant, claimed, started
from protocol.values import ALICE, BOB, COORDINATOR, P0, P1, RIVAL, TABLE, offsets, proposal, view

from headgate.control_protocol.columns import Column, ListOf, Struct
from headgate.control_protocol.events import Answer, Proposal, Tables, TableStart, WriteStatus
from headgate.control_protocol.identifiers import Sender, TopicPartition
from headgate.control_protocol.machine_io import Append
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import BatchNeeds, BatchWritten, EvolvedTable, PartitionResult
from headgate.control_protocol.schema_evolution import COLUMNS_MAX, Refusal
from headgate.coordinator.inputs_and_actions import (
    CallFailed,
    CommitTable,
    EvolveTable,
    TableEvolved,
)
from headgate.coordinator.phases import Phase
from headgate.coordinator.schema_changes import GATHERING_MS, REFUSED_MAX
from headgate.coordinator.state import Timer
from headgate.participant.inputs_and_actions import BatchEnded, ReadEndOffsets
from headgate.participant.schema_proposals import WAIT_MS

TIP = Struct((Column("tip", "double"),))
PAX = Struct((Column("pax", "long"),))

# ------------------------------------------------------------------------------- the participant


def in_need(
    first: dict[TopicPartition, int] | None = None, begin: tuple[int, int] = (10, 20)
) -> Participant:
    """Ends of two partitions are known, the batch over them has met records that need ``tip``."""
    participant = Participant.writing(offsets(*begin))
    needs(participant, TIP, first if first is not None else {P0: 12})
    return participant


def needs(participant: Participant, columns: Struct, first: dict[TopicPartition, int]) -> None:
    looks(participant, {P0: 100, P1: 100})
    number = participant.batch.number
    participant.given(BatchEnded(BatchNeeds(number, columns, Offsets(first), 3)))


def looks(participant: Participant, ends: dict[TopicPartition, int]) -> None:
    if not participant.all(ReadEndOffsets):
        participant.waits(PARTICIPANT.end_offset_interval_ms)
    participant.source_ends(ends)


def answer(participant: Participant, number: int = 1, schema_id: int = 5) -> Tables:
    start = TableStart(TABLE, "uuid-1", schema_id, 0, "elsewhere", refused=(Refusal(("x",), "no"),))
    return Tables((Answer(participant.state.sender, number),), (start,))


def proposed(participant: Participant) -> Proposal:
    (draft,) = [d for d in participant.unheard if isinstance(d.event, Proposal)]
    assert isinstance(draft.event, Proposal)
    return draft.event


def test_schema_2_a_need_is_proposed_and_nothing_of_the_batch_counts() -> None:
    participant = in_need()
    said = proposed(participant)
    assert (said.table, said.columns, said.first) == (TABLE, TIP, Offsets({P0: 12}))
    assert participant.state.run.batch is None
    assert not participant.state.work.has_unannounced_ranges


def test_schema_2_no_batch_is_begun_while_the_answer_may_come_soon() -> None:
    participant = in_need()
    looks(participant, {P0: 500, P1: 500})
    assert not participant.submitted


def test_schema_2_a_proposal_is_said_again_until_it_is_heard() -> None:
    participant = in_need()
    first = proposed(participant)
    participant.append_fails()
    participant.waits(participant.state.settings.retry_backoff_ms)
    assert proposed(participant) == first
    participant.hears_itself()
    participant.waits(20_000_000)
    assert not [d for d in participant.unheard if isinstance(d.event, Proposal)]


def test_schema_2_a_new_epoch_asks_again() -> None:
    participant = in_need()
    participant.hears_itself()
    participant.start(1, offsets(10, 20), epoch=2)
    assert not participant.state.needs.open
    needs(participant, TIP, {P0: 12})
    assert proposed(participant).number == 2


def test_schema_3_the_answer_names_the_schema_and_the_batch_is_done_again_in_the_same_folder() -> (
    None
):
    participant = in_need()
    before = participant.state.term.writing
    assert before is not None
    participant.hears(answer(participant), transaction=1)
    looks(participant, {P0: 100, P1: 100})
    (batch,) = participant.submitted
    assert batch.table.schema_id == 5
    assert batch.table.file_prefix == before.table.file_prefix
    assert batch.table.refused == (Refusal(("x",), "no"),)


@pytest.mark.parametrize("number", [0, 2])
def test_schema_3_the_answer_to_another_proposal_answers_nothing(number: int) -> None:
    participant = in_need()
    participant.hears(answer(participant, number), transaction=1)
    assert participant.state.needs.open
    others = Tables((Answer(BOB, 1),), answer(participant).tables)
    participant.hears(others, transaction=1)
    assert participant.state.needs.open


def test_schema_3_an_answer_that_is_heard_again_changes_nothing() -> None:
    participant = in_need()
    participant.hears(answer(participant), transaction=1)
    state = participant.state
    participant.hears(answer(participant, schema_id=3), transaction=1)
    assert participant.state.term.writing == state.term.writing


def test_schema_3_a_start_under_another_schema_answers_too() -> None:
    participant = in_need()
    participant.end(1)
    start = started(2, offsets(10, 20), 1, settled_to=11)
    participant.hears(replace(start, tables=answer(participant).tables), transaction=2)
    assert not participant.state.needs.open


def test_schema_4_end_before_the_answer_claims_what_was_written_and_names_the_rest_unknown() -> (
    None
):
    participant = Participant.writing(offsets(10, 20))
    participant.writes({P0: 12, P1: 120})
    participant.hears_itself()
    needs_more(participant, {P0: 12})
    participant.end(1)
    participant.source_ends({P0: 500, P1: 500})
    assert participant.batch.ranges == {P1: OffsetRange(118, 168)}
    participant.batch_written()
    assert P0 in participant.status.unknown
    assert participant.status.failure == f"waits for {TABLE}: +tip"
    assert claimed(participant.status) == {P0: (10, 12), P1: (20, 168)}


def test_schema_4_who_owns_no_waiting_partition_any_more_waits_for_nothing() -> None:
    """Its new owner meets the same records; the catalog may refuse the column for hours."""
    participant = in_need()
    participant.hears_itself()
    participant.owns(P1)
    assert not participant.state.needs.open
    looks(participant, {P1: 70})
    participant.end(1)
    participant.batch_written()
    assert participant.status.failure is None
    assert claimed(participant.status) == {P1: (20, 70)}


def test_schema_4_who_owns_one_of_the_waiting_partitions_waits_on() -> None:
    participant = in_need({P0: 12, P1: 25})
    participant.owns(P1)
    assert [need.proposal.columns for need in participant.state.needs.open] == [TIP]


def test_schema_4_an_answer_under_way_writes_what_lies_before_the_records_that_wait() -> None:
    participant = Participant.writing(offsets(10, 20))
    participant.end(1)
    participant.source_ends({P0: 30, P1: 40})
    participant.given(BatchEnded(BatchNeeds(participant.batch.number, TIP, Offsets({P0: 12}), 3)))
    assert not [said for said in participant.said if isinstance(said, WriteStatus)]
    participant.source_ends({P0: 300, P1: 400})
    assert participant.batch.ranges == {P0: OffsetRange(10, 12), P1: OffsetRange(20, 40)}
    participant.batch_written()
    assert claimed(participant.status) == {P0: (10, 12), P1: (20, 40)}
    assert participant.status.unknown == {P0}


def test_schema_3_fields_that_keep_coming_hold_up_no_batch_that_is_done_again() -> None:
    """Each look shows a record with one more field: a batch up to it would never be written."""
    participant = Participant.writing(offsets(0, 0))
    written = [0]
    for number in range(1, 6):
        looks(participant, {P0: written[-1] + 100, P1: 0})
        first = Offsets({P0: written[-1] + 99})
        participant.given(BatchEnded(BatchNeeds(participant.batch.number, TIP, first, 1)))
        participant.hears(answer(participant, number), transaction=1)
        participant.source_ends({P0: written[-1] + 190, P1: 50})
        assert participant.batch.ranges == {P0: OffsetRange(written[-1], written[-1] + 100)}
        participant.batch_written()
        assert not participant.state.needs.again
        written.append(written[-1] + 100)


def test_schema_3_a_partition_that_is_read_no_more_does_not_hold_up_the_others() -> None:
    """Its part of the batch would never be done again."""
    participant = Participant.writing(offsets(0, 0))
    looks(participant, {P0: 60, P1: 60})
    participant.given(BatchEnded(BatchNeeds(participant.batch.number, TIP, Offsets({P0: 9}), 1)))
    participant.hears(answer(participant, 1), transaction=1)
    participant.source_ends({})
    participant.end(1)
    participant.source_ends({})
    participant.hears_itself()
    participant.start(2, Offsets({P0: 0}), settled_to=11)
    looks(participant, {P0: 500})
    assert participant.batch.ranges == {P0: OffsetRange(0, 50)}
    participant.batch_written()
    looks(participant, {P0: 500})
    assert participant.batch.ranges == {P0: OffsetRange(50, 150)}


def test_schema_3_a_batch_that_is_done_again_does_not_wait_for_the_end_of_the_transaction() -> None:
    participant = Participant.writing(offsets(0, 0))
    participant.end(1)
    participant.source_ends({P0: 10, P1: 0})
    participant.given(BatchEnded(BatchNeeds(participant.batch.number, TIP, Offsets({P0: 0}), 1)))
    participant.source_ends({P0: 20, P1: 0})
    participant.hears_itself()
    start = started(2, offsets(0, 0), 1, settled_to=11)
    participant.hears(start, transaction=2)
    participant.hears(answer(participant, 1), transaction=2)
    participant.source_ends({P0: 30, P1: 0})
    assert participant.batch.ranges == {P0: OffsetRange(0, 10)}


def needs_more(participant: Participant, first: dict[TopicPartition, int]) -> None:
    looks(participant, {P0: 200, P1: 200})
    participant.given(BatchEnded(BatchNeeds(participant.batch.number, TIP, Offsets(first), 3)))


def test_schema_4_without_an_answer_what_lies_before_the_records_that_wait_is_written() -> None:
    participant = in_need({P0: 12, P1: 20})
    participant.waits(WAIT_MS)
    participant.source_ends({P0: 500, P1: 500})
    assert not participant.submitted
    participant.end(1)
    participant.source_ends({P0: 500, P1: 500})
    (batch,) = participant.submitted
    assert batch.ranges == {P0: OffsetRange(10, 12)}


def test_schema_4_further_needs_join_those_that_wait() -> None:
    participant = in_need({P0: 12})
    participant.unheard = []
    participant.waits(WAIT_MS)
    participant.source_ends({P0: 500, P1: 500})
    number = participant.batch.number
    participant.given(BatchEnded(BatchNeeds(number, PAX, Offsets({P1: 30}), 1)))
    said = proposed(participant)
    assert said.number == 2
    assert {column.name for column in said.columns.fields} == {"tip", "pax"}
    assert said.first == Offsets({P0: 12, P1: 30})
    participant.hears(answer(participant, 1), transaction=1)
    assert participant.state.needs.open
    participant.hears(answer(participant, 2), transaction=1)
    assert not participant.state.needs.open


@pytest.mark.parametrize(("more", "asked_for"), [(1, COLUMNS_MAX), (2, COLUMNS_MAX - 1)])
def test_schema_2_needs_that_join_ask_for_no_more_than_any_table_has_room_for(
    more: int, asked_for: int
) -> None:
    participant = Participant.writing(offsets(10, 20))
    many = tuple(Column(f"c{n}", "long") for n in range(COLUMNS_MAX + 1))
    needs(participant, Struct(many[: COLUMNS_MAX - 1]), {P0: 12})
    participant.unheard = []
    participant.waits(WAIT_MS)
    participant.source_ends({P0: 500, P1: 500})
    columns = Struct(many[COLUMNS_MAX - 1 :][:more])
    number = participant.batch.number
    participant.given(BatchEnded(BatchNeeds(number, columns, Offsets({P1: 30}), 1)))
    said = proposed(participant)
    assert said.columns == Struct(many[:asked_for])
    assert said.first == Offsets({P0: 12, P1: 30})


def test_schema_4_what_waits_for_columns_is_no_reason_to_end_a_transaction() -> None:
    participant = in_need()
    participant.waits(20_000_000)
    assert participant.presence.buffered_records == 0


def test_schema_6_fields_that_become_no_column_are_told_of_once() -> None:
    participant = Participant.writing(offsets(10, 20))
    for told in (True, False):
        looks(participant, {P0: 100 if told else 200, P1: 100 if told else 200})
        results = {p: PartitionResult(r, len(r), 1) for p, r in participant.batch.ranges.items()}
        written = BatchWritten(participant.batch.number, results, ignored={"old": 4})
        participant.given(BatchEnded(written))
        assert ("old (4 records)" in str(participant.actions)) is told


def test_schema_6_of_too_many_fields_the_newest_are_remembered_and_the_same_in_every_process() -> (
    None
):
    participant = Participant.writing(offsets(10, 20))
    for at, fields in ((100, range(1_000)), (200, range(1_000, 1_004))):
        looks(participant, {P0: at, P1: at})
        results = {p: PartitionResult(r, len(r), 1) for p, r in participant.batch.ranges.items()}
        ignored = {f"f{number:04}": 1 for number in fields}
        participant.given(
            BatchEnded(BatchWritten(participant.batch.number, results, ignored=ignored))
        )
    assert participant.state.needs.ignored == {f"f{number:04}" for number in range(4, 1_004)}


# ------------------------------------------------------------------------------- the coordinator


def asked(*senders: Sender) -> Coordinator:
    coordinator = Coordinator.at(Phase.OPEN)
    for sender in senders or (ALICE,):
        coordinator.hears(proposal(1), sender, transaction=1)
    return coordinator


def test_schema_3_proposals_gather_for_a_moment_and_one_update_serves_them_all() -> None:
    coordinator = asked(ALICE)
    coordinator.waits(GATHERING_MS // 2)
    assert not coordinator.wants(EvolveTable)
    coordinator.hears(proposal(1, Column("pax", "long")), BOB, transaction=1)
    coordinator.waits(GATHERING_MS // 2)
    wanted = coordinator.only(EvolveTable)
    assert {column.name for column in wanted.columns.fields} == {"tip", "pax"}
    coordinator.evolves()
    (tables,) = coordinator.said
    assert isinstance(tables, Tables)
    assert tables.answers == (Answer(ALICE, 1), Answer(BOB, 1))
    assert tables.tables[0].schema_id == 1


def test_schema_3_the_answer_is_said_until_it_is_heard_and_then_end_comes_soon() -> None:
    coordinator = asked()
    coordinator.waits(GATHERING_MS)
    coordinator.evolves()
    said = coordinator.said
    coordinator.given(CallFailed("no confirmation"))
    coordinator.waits(SETTINGS.retry_backoff_max_ms)
    assert coordinator.said == said
    coordinator.hears_itself()
    assert coordinator.phase is Phase.OPEN
    assert (
        coordinator.state.deadlines[Timer.END] <= coordinator.now_ms + SETTINGS.rebalance_delay_ms
    )


def test_schema_3_proposals_that_keep_coming_do_not_hold_back_the_end_that_comes_soon() -> None:
    """One came during each update: nothing was committed any more, whatever the interval."""
    coordinator = asked()
    coordinator.waits(GATHERING_MS)
    for number in (2, 3):
        coordinator.evolves()
        tables = coordinator.only(Append)
        transaction = coordinator.term.progress.number
        coordinator.hears(proposal(number), ALICE, transaction=transaction)
        coordinator.hears_itself(tables)
        coordinator.waits(SETTINGS.rebalance_delay_ms)
        assert coordinator.phase is Phase.PREPARING
        coordinator.until(Phase.OPEN)
        coordinator.waits(0)
        assert coordinator.wants(EvolveTable), "it follows the settlement"


def test_schema_3_starts_and_commits_after_it_are_of_the_new_schema() -> None:
    coordinator = asked()
    coordinator.waits(GATHERING_MS)
    coordinator.evolves(Refusal(("gone",), "its column was dropped"))
    coordinator.until(Phase.OPEN)
    coordinator.until(Phase.CLOSING)
    start = coordinator.said[1]
    assert start.tables[0].schema_id == 1  # type: ignore[union-attr]
    assert start.tables[0].refused == (Refusal(("gone",), "its column was dropped"),)  # type: ignore[union-attr]


def test_schema_3_a_proposal_that_is_said_again_is_answered_once() -> None:
    coordinator = asked(ALICE)
    (said,) = coordinator.heard[-1:]
    again = said.envelope.sequence
    coordinator.hears(proposal(1), ALICE, transaction=1, sequence=again)
    coordinator.hears(proposal(1), ALICE, transaction=1)  # asked again, while it waits
    assert len(coordinator.term.changes.proposals) == 1
    coordinator.waits(GATHERING_MS)
    coordinator.until(Phase.OPEN)
    coordinator.hears(proposal(1), ALICE, transaction=1, sequence=again)
    assert coordinator.term.changes.proposals == ()


def test_schema_3_a_proposal_for_another_table_or_of_another_epoch_is_nobodys() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(proposal(1, uuid="uuid-other"), ALICE, transaction=1)
    coordinator.hears(proposal(1), ALICE, transaction=1, epoch=EPOCH - 1)
    assert coordinator.term.changes.proposals == ()


def test_a_sink_that_takes_up_no_columns_passes_proposals_over() -> None:
    """SCHEMA-1: its participants propose nothing, so that somebody else has said it."""
    coordinator = Coordinator.at(Phase.OPEN)
    identity = replace(coordinator.state.identity, evolves=False)
    coordinator.state = replace(coordinator.state, identity=identity)
    coordinator.hears(proposal(1), ALICE, transaction=1)
    assert coordinator.term.changes.proposals == ()
    coordinator.waits(GATHERING_MS)
    assert coordinator.phase is Phase.OPEN


def test_schema_3_a_proposal_that_comes_while_a_transaction_closes_waits_for_the_next() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(proposal(1), ALICE, transaction=1)
    coordinator.waits(GATHERING_MS)
    assert not coordinator.wants(EvolveTable)
    coordinator.until(Phase.OPEN)
    coordinator.waits(0)
    assert coordinator.wants(EvolveTable)


def test_schema_4_commits_go_on_while_the_table_cannot_be_changed() -> None:
    coordinator = asked()
    coordinator.waits(GATHERING_MS)
    for _ in range(3):
        coordinator.given(CallFailed("the catalog refuses it"))
        assert coordinator.phase is Phase.OPEN
        coordinator.waits(SETTINGS.retry_backoff_max_ms)
        assert coordinator.wants(EvolveTable)
    coordinator.given(CallFailed("the catalog refuses it"))
    coordinator.state = coordinator.state.with_deadline(Timer.END, coordinator.now_ms)
    coordinator.waits(1)
    assert coordinator.phase is Phase.PREPARING


def test_schema_8_an_unknown_outcome_is_asked_for_again_of_the_table_as_it_is() -> None:
    coordinator = asked()
    coordinator.waits(GATHERING_MS)
    wanted = coordinator.only(EvolveTable)
    coordinator.given(CallFailed("no answer in time"))
    coordinator.waits(SETTINGS.retry_backoff_max_ms)
    assert coordinator.only(EvolveTable).columns == wanted.columns
    coordinator.evolves()
    assert isinstance(coordinator.said[0], Tables)


def test_schema_3_a_table_that_others_have_claimed_meanwhile_is_read_again() -> None:
    coordinator = asked()
    coordinator.waits(GATHERING_MS)
    coordinator.given(TableEvolved(EvolvedTable(replace(coordinator.table, tag=777))))
    assert coordinator.phase is Phase.RECOVERING


def test_commit_1_a_foreign_commit_meanwhile_does_not_disturb() -> None:
    coordinator = asked()
    coordinator.waits(GATHERING_MS)
    moved = replace(with_foreign_commit(coordinator.table), schema_id=4)
    coordinator.given(TableEvolved(EvolvedTable(moved)))
    assert coordinator.said[0].tables[0].schema_id == 4  # type: ignore[union-attr]


def test_schema_2_refusals_are_bounded() -> None:
    coordinator = asked()
    coordinator.waits(GATHERING_MS)
    wild = tuple(Refusal((f"f{n}",), "no") for n in range(REFUSED_MAX + 1))
    coordinator.evolves(*wild)
    (refused,) = coordinator.said[0].tables[0].refused  # type: ignore[union-attr]
    assert refused == Refusal((), "too many fields were refused to list them")
    assert refused.path == ()


def test_epoch_3_a_rival_that_answers_proposals_is_a_rival() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(Tables((), ()), RIVAL, epoch=EPOCH + 1, transaction=1)
    assert coordinator.phase is Phase.FOLLOWING


def test_log_6_tables_of_a_transaction_that_was_never_opened_are_somebody_elses() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(Tables((), ()), COORDINATOR, transaction=9)
    assert coordinator.phase is Phase.RECOVERING


def test_schema_3_nested_columns_travel_whole() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    stops = Column("stops", ListOf(Column("", Struct((Column("zone", "string"),)))))
    coordinator.hears(proposal(1, stops), ALICE, transaction=1)
    coordinator.waits(GATHERING_MS)
    assert coordinator.only(EvolveTable).columns == Struct((stops,))
    assert not coordinator.wants(CommitTable)
    assert view().schema_id == 0
