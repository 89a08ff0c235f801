"""CREATE-1 to CREATE-4, ROUTE-4, SCHEMA-2 to SCHEMA-4: tables that routes name are asked for, made,
refused and evolved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.following import deciding, secondary
from protocol.participating import SETTINGS as PARTICIPANT
from protocol.participating import Participant, claimed, started
from protocol.values import ALICE, BOB, P0, P1, SINK, TABLE, offsets, proposal, view

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.errors import MissingRights
from headgate.control_protocol.events import (
    AckCommit,
    Answer,
    Destination,
    Proposal,
    Tables,
    TableStart,
)
from headgate.control_protocol.identifiers import ControlOffset, Sender, TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import BatchNeeds, Changed, TableNeed, Want
from headgate.control_protocol.schema_evolution import Refusal
from headgate.coordinator.inputs_and_actions import (
    CallFailed,
    ChangeTables,
    EvolveTable,
    TablesChanged,
)
from headgate.coordinator.phases import Phase
from headgate.coordinator.schema_changes import GATHERING_MS, WANTS_MAX
from headgate.coordinator.state import Timer
from headgate.coordinator.table_suspension import suspend_or_forget_tables
from headgate.participant.inputs_and_actions import BatchEnded, ReadEndOffsets
from headgate.participant.schema_proposals import ANSWERS_MAX, REFUSED_MS, WAIT_MS

ID = Struct((Column("id", "long"),))
TIP = Struct((Column("tip", "double"),))
ORDERS, CLICKS = "lake.orders", "lake.clicks"
ASIDE = "lake.trips_quarantine"

# ------------------------------------------------------------------------------- the participant


def need(
    table: str,
    first: dict[TopicPartition, int],
    uuid: str = "",
    columns: Struct = ID,
) -> TableNeed:
    return TableNeed(Destination(table, uuid), columns, Offsets(first), 1, table.title())


def in_need(*needs: TableNeed) -> Participant:
    """A batch over 10 to 100 and 20 to 100 has met these needs."""
    participant = Participant.writing(offsets(10, 20))
    meets(participant, *needs)
    return participant


def looks(participant: Participant, end: int) -> None:
    if not participant.all(ReadEndOffsets):
        participant.waits(PARTICIPANT.end_offset_interval_ms)
    participant.source_ends({P0: end, P1: end})


def meets(participant: Participant, *needs: TableNeed, end: int = 100) -> None:
    looks(participant, end)
    first = Offsets()
    for each in needs:
        first = first.minimum_per_partition(each.first)
    found = BatchNeeds(participant.batch.number, first=first, records=3, tables=needs)
    participant.given(BatchEnded(found))


def proposed(participant: Participant) -> list[Proposal]:
    return [draft.event for draft in participant.unheard if isinstance(draft.event, Proposal)]


def answer(participant: Participant, *numbers: int, tables: tuple[TableStart, ...] = ()) -> Tables:
    return Tables(tuple(Answer(participant.state.sender, n) for n in numbers), tables)


def made(table: str, uuid: str = "uuid-new", schema_id: int = 0) -> TableStart:
    return TableStart(table, uuid, schema_id, 0, f"s3://{table}/data/x/1")


def refused(table: str, why: str = "no such column") -> TableStart:
    return TableStart(table, "", 0, 0, "", refused=(Refusal((), why),))


def test_create_1_each_table_is_proposed_by_itself_and_nothing_of_the_batch_counts() -> None:
    participant = in_need(need(ORDERS, {P0: 12}), need(CLICKS, {P1: 30}, "uuid-c", TIP))
    said = proposed(participant)
    assert [(p.number, p.table, p.uuid, p.raw) for p in said] == [
        (1, ORDERS, "", "Lake.Orders"),
        (2, CLICKS, "uuid-c", "Lake.Clicks"),
    ]
    assert [p.columns for p in said] == [ID, TIP]
    assert not participant.state.work.has_unannounced_ranges


def test_schema_2_the_batch_waits_for_all_of_them_and_is_told_of_what_was_answered() -> None:
    participant = in_need(need(ORDERS, {P0: 12}), need(CLICKS, {P1: 30}))
    participant.hears_itself()
    participant.hears(answer(participant, 1, tables=(made(ORDERS),)), transaction=1)
    looks(participant, 100)
    assert not participant.submitted
    participant.hears(answer(participant, 2, tables=(made(CLICKS),)), transaction=1)
    looks(participant, 100)
    (batch,) = participant.submitted
    assert [start.table for start in batch.changed_tables] == [ORDERS, CLICKS]


def test_create_3_what_was_refused_is_remembered_for_a_while_only() -> None:
    participant = in_need(need(ORDERS, {P0: 12}))
    participant.hears(answer(participant, 1, tables=(refused(ORDERS),)), transaction=1)
    looks(participant, 100)
    (batch,) = participant.submitted
    assert batch.changed_tables == (refused(ORDERS),)
    participant.given(BatchEnded(BatchNeeds(batch.number, tables=(need(CLICKS, {P0: 12}),))))
    participant.hears(answer(participant, 2, tables=(made(CLICKS),)), transaction=1)
    participant.now_ms += REFUSED_MS
    looks(participant, 200)
    (batch,) = participant.submitted
    assert [start.table for start in batch.changed_tables] == [CLICKS]


def test_log_6_what_is_told_of_tables_is_bounded() -> None:
    participant = in_need(need(ORDERS, {P0: 12}))
    wild = tuple(made(f"lake.t{n}") for n in range(ANSWERS_MAX + 5))
    participant.hears(answer(participant, 1, tables=wild), transaction=1)
    assert len(participant.state.needs.answers) == ANSWERS_MAX


def test_epoch_3_what_was_told_goes_with_its_epoch() -> None:
    participant = in_need(need(ORDERS, {P0: 12}))
    participant.hears(answer(participant, 1, tables=(made(ORDERS),)), transaction=1)
    assert participant.state.needs.answers
    participant.start(1, offsets(10, 20), epoch=2)
    assert not participant.state.needs.answers
    assert not participant.state.needs.open


def test_schema_4_what_lies_before_the_first_record_of_any_table_is_written() -> None:
    participant = in_need(need(ORDERS, {P0: 12, P1: 40}), need(CLICKS, {P1: 30}))
    participant.waits(WAIT_MS)
    participant.source_ends({P0: 100, P1: 100})
    participant.end(1)
    participant.source_ends({P0: 100, P1: 100})
    (batch,) = participant.submitted
    assert batch.ranges == {P0: OffsetRange(10, 12), P1: OffsetRange(20, 30)}


def test_schema_4_a_status_says_which_tables_it_waits_for() -> None:
    participant = in_need(need(ORDERS, {P0: 12}), need(CLICKS, {P0: 13}, "uuid-c", TIP))
    participant.end(1)
    participant.source_ends({P0: 100, P1: 100})
    participant.batch_written()
    assert participant.status.failure == f"waits for table {ORDERS} (+id); {CLICKS}: +tip"
    assert participant.status.unknown >= {P0}
    assert claimed(participant.status)[P0] == (10, 12)


def test_schema_2_what_is_asked_for_again_joins_what_waits() -> None:
    participant = in_need(need(ORDERS, {P0: 12}))
    participant.hears_itself()
    participant.waits(WAIT_MS)
    participant.source_ends({P0: 500, P1: 500})
    number = participant.batch.number
    more = need(ORDERS, {P1: 25}, columns=TIP)
    participant.given(BatchEnded(BatchNeeds(number, tables=(more,))))
    (said,) = proposed(participant)
    assert (said.number, said.first) == (2, Offsets({P0: 12, P1: 25}))
    assert {column.name for column in said.columns.fields} == {"id", "tip"}
    assert len(participant.state.needs.open) == 1


@pytest.mark.parametrize("said_by", ["settlement", "start"])
def test_suspend_2_nothing_waits_for_a_table_that_is_suspended_since(said_by: str) -> None:
    """Nobody would ever answer: its records, and all behind them, would wait for ever."""
    participant = in_need(need(ORDERS, {P0: 12}, "uuid-o", TIP), need(CLICKS, {P1: 30}))
    participant.hears_itself()
    suspended = {ORDERS: "HG-103 forbidden"}
    place = participant.next_offset
    start = replace(started(2, offsets(10, 20), 1, place), suspended=suspended)
    ack = AckCommit(ControlOffset(place), offsets(10, 20), suspended=suspended)
    said = {"settlement": ack, "start": start}[said_by]
    participant.hears(said, transaction=2)
    assert [each.proposal.table for each in participant.state.needs.open] == [CLICKS]
    participant.waits(WAIT_MS)
    participant.source_ends({P0: 100, P1: 100})
    (batch,) = participant.submitted
    assert batch.ranges == {P0: OffsetRange(10, 100), P1: OffsetRange(20, 30)}
    assert batch.suspended == suspended


# ------------------------------------------------------------------------------- the coordinator


def asks(
    number: int, table: str = ORDERS, uuid: str = "", column: Column = ID.fields[0]
) -> Proposal:
    return replace(proposal(number, column, uuid=uuid), table=table, raw=table.upper())


def opened(*proposals: tuple[Sender, Proposal]) -> Coordinator:
    """A ledger's coordinator with a quarantine, that has heard these."""
    coordinator = Coordinator(view(deciding(EPOCH - 1, 4)), SETTINGS)
    coordinator.follow(secondary(ASIDE))
    identity = replace(coordinator.state.identity, routed=True)
    coordinator.state = replace(coordinator.state, identity=identity)
    coordinator.until(Phase.OPEN)
    for sender, said in proposals:
        coordinator.hears(said, sender, transaction=1)
    coordinator.waits(GATHERING_MS)
    return coordinator


def changes(coordinator: Coordinator, *said: Changed) -> None:
    coordinator.pending = None
    coordinator.given(TablesChanged(said))


def there(table: str = ORDERS, **more: object) -> Changed:
    found = Changed(table, "uuid-new", 3, 1, f"s3://{table}/data", ("made",))
    return replace(found, **more)  # type: ignore[arg-type]


def tables_said(coordinator: Coordinator) -> Tables:
    (tables,) = coordinator.said
    assert isinstance(tables, Tables)
    return tables


def test_schema_3_one_call_serves_all_tables_and_whoever_asks_for_them() -> None:
    pax = Column("pax", "int")
    coordinator = opened(
        (ALICE, asks(1)), (ALICE, asks(2, CLICKS, "uuid-c")), (BOB, asks(1, column=pax))
    )
    assert not coordinator.wants(EvolveTable)
    assert coordinator.only(ChangeTables).wants == (
        Want(Destination(ORDERS), Struct((*ID.fields, pax)), ORDERS.upper()),
        Want(Destination(CLICKS, "uuid-c"), ID, CLICKS.upper()),
    )
    changes(coordinator, there(), there(CLICKS, uuid="uuid-c", refused=(Refusal(("x",), "no"),)))
    tables = tables_said(coordinator)
    assert set(tables.answers) == {Answer(ALICE, 1), Answer(ALICE, 2), Answer(BOB, 1)}
    orders, clicks = tables.tables
    prefix = f"s3://{ORDERS}/data/headgate/{SINK}/{EPOCH}-c1/1"
    assert orders == TableStart(ORDERS, "uuid-new", 3, 1, prefix)
    assert clicks.refused == (Refusal(("x",), "no"),)
    coordinator.hears_itself()
    assert coordinator.phase is Phase.OPEN
    assert coordinator.term.changes.proposals == ()


def test_create_3_a_table_that_is_not_made_is_an_answer_too() -> None:
    coordinator = opened((ALICE, asks(1)))
    changes(coordinator, Changed(ORDERS, why="no column day"))
    assert tables_said(coordinator).tables == (refused(ORDERS, "no column day"),)


def test_route_4_one_refusal_is_for_all_names_of_contents() -> None:
    coordinator = opened((ALICE, asks(1)))
    changes(coordinator, Changed(ORDERS, why="too many", any_other=True))
    told = tables_said(coordinator).tables
    assert told == (refused(ORDERS, "too many"), refused("", "too many"))


def test_schema_8_what_nobody_knows_is_asked_for_again_and_the_rest_is_answered() -> None:
    coordinator = opened((ALICE, asks(1)), (ALICE, asks(2, CLICKS)))
    changes(coordinator, there(), Changed(CLICKS, failure="no answer in time"))
    assert tables_said(coordinator).answers == (Answer(ALICE, 1),)
    coordinator.hears_itself()
    assert coordinator.phase is Phase.OPEN
    coordinator.waits(SETTINGS.retry_backoff_ms)
    assert [want.at.table for want in coordinator.only(ChangeTables).wants] == [CLICKS]


def test_suspend_2_nothing_is_asked_for_of_a_table_that_is_suspended_since() -> None:
    coordinator = opened((ALICE, asks(1, uuid="uuid-o")), (ALICE, asks(2, CLICKS)))
    changes(coordinator, *(Changed(name, failure="HG-103 no") for name in (ORDERS, CLICKS)))
    for left in ([CLICKS], []):
        state, _ = suspend_or_forget_tables(
            coordinator.state, {ORDERS if left else CLICKS: MissingRights("no")}, 0
        )
        coordinator.state = state
        coordinator.waits(SETTINGS.retry_backoff_max_ms)
        assert [w.at.table for each in coordinator.all(ChangeTables) for w in each.wants] == left
        if left:
            changes(coordinator, Changed(CLICKS, failure="HG-103 no"))
    assert coordinator.phase is Phase.OPEN
    assert Timer.CHANGES not in coordinator.state.deadlines


def test_schema_4_commits_go_on_while_no_table_can_be_made() -> None:
    coordinator = opened((ALICE, asks(1)))
    changes(coordinator, Changed(ORDERS, failure="no catalog"))
    assert coordinator.phase is Phase.OPEN
    coordinator.waits(SETTINGS.retry_backoff_max_ms)
    coordinator.given(CallFailed("no catalog"))
    assert coordinator.phase is Phase.OPEN
    assert len(coordinator.term.changes.proposals) == 1


def test_ledger_1_the_ledger_and_the_quarantine_are_nobodys_to_change() -> None:
    coordinator = opened((ALICE, asks(1, TABLE, "uuid-1")), (ALICE, asks(2, ASIDE)))
    assert coordinator.term.changes.proposals == ()
    assert not coordinator.wants(ChangeTables)


def test_commit_1_a_known_table_is_written_under_its_new_schema() -> None:
    coordinator = opened((ALICE, asks(1, ORDERS, "uuid-new")))
    known = replace(view(None, uuid="uuid-new"), table=ORDERS)
    secondaries = {**coordinator.term.delivery.secondaries, ORDERS: known}
    term = replace(
        coordinator.term, delivery=replace(coordinator.term.delivery, secondaries=secondaries)
    )
    coordinator.state = replace(coordinator.state, term=term)
    changes(coordinator, there())
    assert coordinator.term.delivery.secondaries[ORDERS].schema_id == 3


def test_log_6_what_is_asked_for_at_once_is_bounded() -> None:
    many = WANTS_MAX + 3
    coordinator = opened(*((ALICE, asks(n, f"lake.t{n}")) for n in range(1, many + 1)))
    wants = coordinator.only(ChangeTables).wants
    assert len(wants) == WANTS_MAX
    changes(coordinator, *(there(want.at.table) for want in wants))
    assert len(tables_said(coordinator).answers) == WANTS_MAX
    coordinator.hears_itself()
    assert len(coordinator.term.changes.proposals) == 3
    coordinator.waits(0)
    assert len(coordinator.only(ChangeTables).wants) == 3
