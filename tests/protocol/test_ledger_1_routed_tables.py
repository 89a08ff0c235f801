"""LEDGER-1: tables that no START names are known by the statuses that name them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.following import PRIMARY, deciding, pending, secondary
from protocol.values import ALICE, BOB, P0, P1, SINK, TABLE, data_file, folder, offsets, view

from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import (
    HeadgateError,
    SecondaryForeign,
)
from headgate.control_protocol.events import Settlement, TableStatus, WriteStatus, WrittenRange
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Lineage, TableView
from headgate.coordinator.inputs_and_actions import (
    CallFailed,
    CommitTable,
    SecondariesRead,
    StageManifests,
)
from headgate.coordinator.phase_steps import build_start_event
from headgate.coordinator.phases import Phase

ORDERS, UUID = "lake.orders", "uuid-orders"
ASIDE = "lake.trips_quarantine"


def table(uuid: str = UUID, lineage: Lineage = Lineage.FRESH) -> TableView:
    fresh = replace(view(None, uuid=uuid), table=ORDERS, location=f"s3://{ORDERS}")
    return replace(fresh, lineage=lineage)


def collecting(*pending_commits: PendingCommit) -> Coordinator:
    """A ledger's coordinator that knows its quarantine, and is about to judge."""
    made = Coordinator(view(deciding(EPOCH - 1, 4, *pending_commits)), SETTINGS)
    made.follow(secondary(ASIDE))
    made.state = replace(made.state, identity=replace(made.state.identity, routed=True))
    made.until(Phase.COLLECTING)
    return made


def knowing() -> Coordinator:
    """It has read the routed table in this epoch."""
    made = collecting()
    secondaries = {**made.term.delivery.secondaries, ORDERS: table()}
    made.state = replace(
        made.state,
        term=replace(made.term, delivery=replace(made.term.delivery, secondaries=secondaries)),
    )
    return made


def announces(
    made: Coordinator,
    rows: int = 3,
    *,
    uuid: str = UUID,
    at: str = ORDERS,
    number: int = 1,
    begin: int = 10,
) -> None:
    """A status of three records that were routed to one table; their file lies below ``at``."""
    path = f"s3://{at}/data/headgate/{SINK}/{EPOCH}-c1/1/{number}.parquet"
    tables = (TableStatus(ORDERS, (data_file(path, rows),), uuid, 2),)
    claims = {
        P0: WrittenRange(OffsetRange(begin, begin + 3), 3),
        P1: WrittenRange(OffsetRange(20, 20)),
    }
    made.hears(WriteStatus(number, claims, tables), ALICE, transaction=1)
    made.waits(0)


def reads(made: Coordinator, *tables: TableView) -> None:
    made.pending = None
    views = {found.table: found for found in tables}
    made.looks(read=SecondariesRead(views))


def settlement(made: Coordinator) -> Settlement:
    assert made.term.progress.settlement is not None
    return made.term.progress.settlement


def stopped(made: Coordinator) -> HeadgateError:
    assert made.phase is Phase.STOPPED
    assert made.error is not None
    return made.error


def test_an_unknown_table_is_read_before_its_status_is_judged() -> None:
    made = collecting()
    announces(made)
    assert made.reads_tables == (ORDERS,)
    made.waits(SETTINGS.commit_timeout_ms)
    assert not made.actions, "asked once"
    reads(made, table())
    (draft,) = made.only(StageManifests).drafts
    assert (draft.table.table, draft.table.uuid) == (ORDERS, UUID)
    assert settlement(made).offsets == offsets(13, 20)


def test_a_known_one_is_not_read_again() -> None:
    made = knowing()
    announces(made)
    assert not made.reads_secondaries
    assert made.wants(StageManifests)


def test_a_table_whose_owner_moved_its_data_is_read_again_and_its_files_are_in() -> None:
    """Else every status with files of it would be refused whole, for as long as the epoch lasts."""
    made = knowing()
    announces(made, at="elsewhere")
    assert made.reads_tables == (ORDERS,)
    reads(made, replace(table(), data_location="s3://elsewhere/data"))
    assert made.wants(StageManifests)
    assert settlement(made).offsets == offsets(13, 20)


def test_who_has_not_seen_yet_that_it_moved_writes_on_where_it_was() -> None:
    made = knowing()
    announces(made, at="elsewhere")
    reads(made, replace(table(), data_location="s3://elsewhere/data"))
    made.until(Phase.OPEN)
    made.until(Phase.COLLECTING)
    announces(made, number=2, begin=13)
    assert not made.reads_secondaries
    assert made.wants(StageManifests)
    assert settlement(made).offsets == offsets(16, 20)


def test_files_that_are_nowhere_below_its_data_are_refused_after_one_look() -> None:
    made = knowing()
    announces(made, at="elsewhere")
    reads(made, table())
    assert "outside the prefixes" in settlement(made).reason
    assert settlement(made).offsets == offsets(10, 20)


def test_where_it_cannot_be_asked_it_is_asked_again() -> None:
    made = collecting()
    announces(made)
    made.given(CallFailed("no catalog"))
    made.waits(SETTINGS.retry_backoff_max_ms)
    assert made.reads_tables == (ORDERS,)


def test_a_table_that_is_named_while_others_are_asked_again_is_asked_for_as_well() -> None:
    """Else its status would be refused: it cannot be read, as nobody tried to."""
    made = collecting()
    announces(made)
    made.given(CallFailed("no answer"))
    clicks = replace(table("uuid-clicks"), table="lake.clicks", location="s3://lake.clicks")
    path = f"s3://lake.clicks/data/headgate/{SINK}/{EPOCH}-c1/1/2.parquet"
    of_clicks = (TableStatus("lake.clicks", (data_file(path, 2),), "uuid-clicks", 2),)
    claims = {P1: WrittenRange(OffsetRange(20, 22), 2)}
    made.hears(WriteStatus(1, claims, of_clicks), BOB, transaction=1)
    made.waits(SETTINGS.retry_backoff_ms)
    assert made.reads_tables == ("lake.clicks", ORDERS)
    reads(made, table(), clicks)
    assert settlement(made).offsets == offsets(13, 22)
    assert settlement(made).reason == ""


@pytest.mark.parametrize("found", [(), (table(uuid="uuid-another"),)])
def test_files_of_a_table_that_is_gone_or_another_are_refused_whole(
    found: tuple[TableView, ...],
) -> None:
    made = collecting()
    announces(made)
    reads(made, *found)
    assert settlement(made).offsets == offsets(10, 20)
    assert ORDERS in settlement(made).reason
    assert not made.wants(CommitTable)
    assert not made.wants(StageManifests)


def test_rows_over_all_tables_add_up_to_the_claims() -> None:
    made = collecting()
    announces(made, rows=2)
    reads(made, table())
    assert "add up" in settlement(made).reason


def test_table_appears_twice_in_a_status_and_is_refused_whole() -> None:
    """No participant says so: of two entries only one would be found, and the other's rows lost."""
    made = collecting()
    base = f"s3://{ORDERS}/data/headgate/{SINK}/{EPOCH}-c1/1"
    tables = tuple(
        TableStatus(ORDERS, (data_file(f"{base}/{n}.parquet", rows),), UUID, n)
        for n, rows in ((1, 1), (2, 2))
    )
    claims = {P0: WrittenRange(OffsetRange(10, 13), 3), P1: WrittenRange(OffsetRange(20, 20))}
    made.hears(WriteStatus(1, claims, tables), ALICE, transaction=1)
    made.waits(0)
    reads(made, table())
    assert f"two tables are called {ORDERS}" in settlement(made).reason
    assert settlement(made).offsets == offsets(10, 20)


def test_table_appears_twice_in_a_transaction_and_is_drafted_once() -> None:
    """Files of two statuses, under two schemas: one draft, and one pending commit for each
    partition spec."""
    made = collecting()
    base = f"s3://{ORDERS}/data/headgate/{SINK}/{EPOCH}-c1/1"
    for number, (at, begin, end) in enumerate(((P0, 10, 13), (P1, 20, 22)), start=1):
        file = data_file(f"{base}/{number}.parquet", end - begin)
        claims = {at: WrittenRange(OffsetRange(begin, end), end - begin)}
        said = TableStatus(ORDERS, (file,), UUID, number)
        made.hears(WriteStatus(number, claims, (said,)), ALICE, transaction=1)
    made.waits(0)
    reads(made, table())
    (draft,) = made.only(StageManifests).drafts
    assert [file.records for file in draft.files] == [3, 2]
    assert settlement(made).offsets == offsets(13, 22)


def test_the_ledger_takes_no_rows() -> None:
    made = collecting()
    files = (data_file(f"{folder(EPOCH, 1)}/f.parquet", 3),)
    claims = {P0: WrittenRange(OffsetRange(10, 13), 3), P1: WrittenRange(OffsetRange(20, 20))}
    said = WriteStatus(1, claims, (TableStatus(TABLE, files),))
    made.hears(said, ALICE, transaction=1)
    made.waits(0)
    assert f"files of {TABLE}, which takes no rows" in settlement(made).reason


def test_start_says_the_folder_and_names_no_routed_table() -> None:
    made = collecting()
    announces(made)
    reads(made, table())
    made.until(Phase.OPEN)
    start = build_start_event(made.state, first=False)
    assert start.folder == f"headgate/{SINK}/{EPOCH}-c1/2"
    assert [named.table for named in start.tables] == [TABLE, ASIDE]


def test_a_table_of_another_primary_stops_the_sink_by_name() -> None:
    """It is the ledger that was re-created, or set back: no trouble of one table."""
    made = collecting()
    announces(made)
    reads(made, replace(secondary(ASIDE, primary="uuid-lost"), table=ORDERS, uuid=UUID))
    assert type(stopped(made)) is SecondaryForeign
    assert ORDERS in stopped(made).message


def test_a_table_that_a_newer_coordinator_delivered_makes_it_read_the_lead() -> None:
    """Who slept through another's claim is not the one to accuse the table (seed 22857)."""
    made = collecting()
    announces(made)
    reads(made, replace(secondary(ASIDE, EPOCH + 1, 1), table=ORDERS, uuid=UUID))
    assert made.phase is Phase.RECOVERING
    made.reads(view(deciding(EPOCH + 1, 1)))
    made.until(Phase.OPEN)
    assert made.term.epoch == EPOCH + 2


def test_a_table_that_was_delivered_more_than_the_primary_ever_decided_stops_the_sink() -> None:
    made = collecting()
    announces(made)
    ahead = replace(secondary(ASIDE, EPOCH + 1, 1), table=ORDERS, uuid=UUID)
    reads(made, ahead)
    for _ in range(2):
        made.reads()
        assert ORDERS in made.reads_tables
        made.follows(ahead)
    assert type(stopped(made)) is SecondaryForeign
    assert ORDERS in stopped(made).message


def test_a_claim_carries_on_what_is_pending_to_a_table_that_cannot_be_read() -> None:
    """One bad table holds up no start."""
    pending_commit = replace(pending(ASIDE, EPOCH - 1, 4), table=ORDERS, secondary=UUID)
    made = collecting(pending_commit)
    assert pending_commit in made.term.delivery.pending
    assert made.term.epoch == EPOCH
    assert made.term.primary.view.uuid == PRIMARY
