"""What a person deleted comes back by no command, unless somebody says that it was a mistake."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyroaring import BitMap64
from unit.operations.filled_table import SCHEMA, SINK, TOPIC, FilledTable
from unit.operations.many_tables.test_replay_quarantined import GOOD
from unit.operations.many_tables.test_rewrite_expired_commits import expires
from unit.operations.routed_shop import (
    AT,
    CLICKS,
    ORDERS,
    Shop,
    Source,
    expire_all_but_refs,
    shop_settings,
)

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import UNNAMED, offset_metadata_of_table
from headgate.control_protocol.errors import DeletedBack, DeletedMeanwhile, TableMissing
from headgate.control_protocol.identifiers import Sender, TopicId, TopicPartition, tag_name
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Landed, TopicState
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.coordinator.driver import StartAt
from headgate.coordinator.settings import RollbackPolicy, TagMissingPolicy
from headgate.coordinator.state import Identity
from headgate.operations.audit.table_records import bitmap_of_ranges
from headgate.operations.control import delete_rows, rollback, set_offsets
from headgate.operations.control import resolve_stop as accept
from headgate.operations.control.delete_rows import Deleted, RowDeletion, carry_out_deletion
from headgate.operations.control.resolve_stop import ClaimedSink, resolve_stop
from headgate.operations.many_tables.replay_quarantined import ReplayedTable, replay_tables
from headgate.operations.many_tables.rewrite_expired_commits import (
    RewrittenTable,
    rewrite_expired_commits_of_tables,
)
from headgate.tables.iceberg.history import read_history
from headgate.tables.iceberg.table import IcebergTable


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told, and nobody waits for a good moment; the brokers are not there."""
    monkeypatch.setattr(delete_rows, "try_announce_command", lambda *_: None)
    monkeypatch.setattr(delete_rows, "waiter_for_calm_after_commit", lambda *_: lambda: None)
    for module in (rollback, set_offsets):
        monkeypatch.setattr(module, "require_no_running_participants", lambda _: None)


@pytest.fixture
def shop(catalog: Catalog, tmp_path: Path, told: list[str]) -> Shop:
    assert not told
    return Shop(catalog, shop_settings(tmp_path))


def deleted(
    settings: SinkSettings, where: str | None, aside: str | None = None, *tables: str
) -> list[Deleted]:
    return list(carry_out_deletion(settings, RowDeletion(where, aside, tables)))


def offsets(shop: Shop, name: str = CLICKS) -> list[int]:
    found: list[int] = shop.catalog.load_table(name).scan().to_arrow()["offset"].to_pylist()
    return sorted(found)


# ----------------------------------------------------------------------------------- the quarantine


@pytest.fixture
def diverted(shop: Shop) -> Shop:
    """Records 3 and 5 are in the quarantine, and meant for a table that is open again."""
    shop.commits({ORDERS: [0, 1], CLICKS: [2]})
    shop.diverts({CLICKS: {3: GOOD, 5: GOOD}}, {ORDERS: [4]})
    shop.commits({CLICKS: [6]})
    return shop


def test_a_quarantined_record_that_was_deleted_is_not_replayed(diverted: Shop) -> None:
    deleted(diverted.settings, None, "offset = 3")
    assert replay_tables(diverted.settings, [CLICKS]) == (ReplayedTable(CLICKS, 1),)
    assert offsets(diverted) == [2, 5, 6]


def test_neither_when_another_engine_deleted_it(diverted: Shop) -> None:
    diverted.catalog.load_table(diverted.settings.quarantine.table).delete("offset = 3")
    assert replay_tables(diverted.settings, []) == (ReplayedTable(CLICKS, 1),)
    assert offsets(diverted) == [2, 5, 6]


def test_what_was_replayed_and_then_deleted_from_the_table_is_not_replayed_again(
    diverted: Shop,
) -> None:
    replay_tables(diverted.settings, [CLICKS])
    deleted(diverted.settings, "offset = 3", None, CLICKS)
    assert replay_tables(diverted.settings, [CLICKS]) == (ReplayedTable(CLICKS),)
    assert offsets(diverted) == [2, 5, 6]


def test_what_others_put_into_the_quarantine_beyond_its_offsets_is_no_record_of_the_sink(
    diverted: Shop,
) -> None:
    aside = diverted.catalog.load_table(diverted.settings.quarantine.table)
    rows = aside.scan().to_arrow().to_pylist()
    rows[0]["offset"] = 99
    columns = aside.schema().as_arrow()
    aside.append(type(aside.scan().to_arrow()).from_pylist(rows[:1], schema=columns))
    assert replay_tables(diverted.settings, [CLICKS]) == (ReplayedTable(CLICKS, 2),)


def test_a_deletion_while_records_are_replayed_is_told(
    diverted: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call covers two tables: the rows are named, so that they can be deleted there too."""
    commit, first = IcebergTable.commit, [True]

    def meanwhile(self: IcebergTable, attempt: CommitAttempt) -> CommitOutcome:
        if attempt.record.gives_back_missed_rows and first:
            first.clear()
            deleted(diverted.settings, None, "offset = 3")
        return commit(self, attempt)

    monkeypatch.setattr(IcebergTable, "commit", meanwhile)
    with pytest.raises(
        DeletedMeanwhile, match=r"1 record .*rows of db.clicks now: shop/0 offset 3"
    ):
        replay_tables(diverted.settings, [CLICKS])
    deleted(diverted.settings, "offset = 3", None, CLICKS)
    assert offsets(diverted) == [2, 5, 6]


# -------------------------------------------------------------------------------------- expired
# rows


@pytest.fixture
def late(shop: Shop) -> Shop:
    """Rows 3 and 4 expired, and came after all; row 5 expired, and did not come."""
    shop.commits({ORDERS: [0, 1], CLICKS: [2]})
    pending_commits = shop.decides({CLICKS: [3, 4]})
    delivery = shop.delivery(CLICKS, pending_commits)
    expires(shop, pending_commits, delivered=False)
    assert isinstance(shop.table(CLICKS).commit(delivery), Landed)
    (other,) = shop.decides({CLICKS: [5]})
    expires(shop, [other])
    return shop


def compact(shop: Shop) -> None:
    table = shop.catalog.load_table(CLICKS)
    table.overwrite(table.scan().to_arrow())


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("engine", [False, True])
def test_a_row_that_expired_came_and_was_deleted_is_not_written_again(
    late: Shop, *, engine: bool, compacted: bool
) -> None:
    if engine:
        late.catalog.load_table(CLICKS).delete("offset = 3")
    else:
        deleted(late.settings, "offset = 3", None, CLICKS)
    if compacted:
        compact(late)
    assert rewrite_expired_commits_of_tables(late.settings, [CLICKS]) == (
        RewrittenTable(CLICKS, 1, there=1, deleted=1),
    )
    assert offsets(late) == [2, 4, 5]


def test_all_rows_of_a_expired_pending_commit_were_deleted_and_stay_so(late: Shop) -> None:
    deleted(late.settings, "offset in (3, 4)", None, CLICKS)
    compact(late)
    assert rewrite_expired_commits_of_tables(late.settings, [CLICKS]) == (
        RewrittenTable(CLICKS, 1, deleted=2),
    )
    assert offsets(late) == [2, 5]


def test_where_no_snapshot_tells_whether_rows_came_nothing_is_written_again(late: Shop) -> None:
    deleted(late.settings, "offset in (3, 4)", None, CLICKS)
    compact(late)
    late.commits({CLICKS: [6]})
    expire_all_but_refs(late.catalog, CLICKS)
    with pytest.raises(DeletedBack, match="has expired with older snapshots"):
        rewrite_expired_commits_of_tables(late.settings, [CLICKS])
    assert offsets(late) == [2, 6]


def test_a_deletion_tells_of_rows_that_expired_and_were_not_looked_at(late: Shop) -> None:
    (done,) = deleted(late.settings, "offset = 3", None, CLICKS)
    assert (done.rows, done.expired) == (1, 3)
    rewrite_expired_commits_of_tables(late.settings, [CLICKS])
    (done,) = deleted(late.settings, "offset = 5", None, CLICKS)
    assert (done.rows, done.expired) == (1, 0)


def test_an_older_commit_that_is_left_tells_that_rows_never_came(shop: Shop) -> None:
    shop.commits({ORDERS: [0], CLICKS: [1]})
    shop.commits({CLICKS: [2]})
    oldest = shop.catalog.load_table(CLICKS).snapshots()[0].snapshot_id
    expires(shop, shop.decides({CLICKS: [3]}))
    shop.catalog.load_table(CLICKS).maintenance.expire_snapshots().by_id(oldest).commit()
    assert rewrite_expired_commits_of_tables(shop.settings, [CLICKS]) == (
        RewrittenTable(CLICKS, 1),
    )
    assert offsets(shop) == [1, 2, 3]


# ------------------------------------------------------------------- going back, and reading again


class Log:
    """The source still holds everything."""

    def describe(self) -> dict[str, TopicState]:
        log = OffsetRange(0, 20)
        return {TOPIC: TopicState(TopicId("topic-id-1"), {0: log, 1: log})}

    def offsets_at(self, _: int) -> Offsets:
        return Offsets()


@pytest.fixture
def filled_sink(
    filled: FilledTable, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> FilledTable:
    for module in (rollback, set_offsets, accept):
        monkeypatch.setattr(module, "open_reachable_source_topics", lambda _: nullcontext(Log()))
    filled.good_start()
    assert settings.table.identifier == "db.trips"
    return filled


def test_the_table_lists_the_offsets_of_deleted_records(
    filled_sink: FilledTable, settings: SinkSettings
) -> None:
    deleted(settings, "offset = 3")
    deleted(settings, "offset in (4, 8) and partition = 0")
    listed = read_history(filled_sink.table.refresh(), SINK, "main").deleted
    assert (listed.rows, listed.unidentified_row_count) == (4, 0)
    known = {at.partition: bitmap_of_ranges(found) for at, found in listed.offsets.items()}
    assert known == {0: BitMap64([3, 4, 8]), 1: BitMap64([3])}


@pytest.mark.parametrize("drop_foreign", [False, True])
def test_a_rollback_to_before_a_deletion_is_refused(
    filled_sink: FilledTable, settings: SinkSettings, *, drop_foreign: bool
) -> None:
    deleted(settings, "offset = 3 and partition = 0")
    filled_sink.table.refresh()
    filled_sink.write(1, 3, {0: 11, 1: 10}, [(0, 10)])
    with pytest.raises(DeletedBack, match=r"1 row that people deleted .* would be back"):
        rollback.plan_rollback(settings, "1.2", drop_foreign=drop_foreign)
    with pytest.raises(DeletedBack):
        rollback.plan_rollback(settings, "1.2", drop_foreign=drop_foreign, look_only=True)
    mistake = rollback.plan_rollback(settings, "1.2", drop_foreign=True, deleted_back=True)
    assert mistake.dropped == ("1.3",)


def test_so_it_is_when_the_deletion_has_expired(
    filled_sink: FilledTable, settings: SinkSettings, catalog: Catalog
) -> None:
    """The target is kept by a tag; nothing that is left leads from the head to it."""
    target = filled_sink.table.refresh().current_snapshot()
    assert target is not None
    filled_sink.table.manage_snapshots().create_tag(target.snapshot_id, "kept").commit()
    deleted(settings, "offset = 3 and partition = 0")
    filled_sink.table.refresh()
    filled_sink.write(1, 3, {0: 11, 1: 10}, [(0, 10)])
    expire_all_but_refs(catalog, "db.trips")
    with pytest.raises(DeletedBack, match="up to 1 row that people deleted"):
        rollback.plan_rollback(settings, "kept", drop_foreign=True)


def test_offsets_are_not_set_back_over_deleted_records(
    filled_sink: FilledTable, settings: SinkSettings
) -> None:
    deleted(settings, "offset = 3 and partition = 0")
    with pytest.raises(DeletedBack, match=r"1 record whose rows people deleted .* read again"):
        set_offsets.plan_offset_moves(settings, [f"{TOPIC}/0=3"])
    moves = set_offsets.plan_offset_moves(settings, [f"{TOPIC}/0=4", f"{TOPIC}/1=0"]).moves
    assert [move.end for move in moves] == [4, 0], "what was deleted lies before, or elsewhere"
    assert set_offsets.plan_offset_moves(settings, [f"{TOPIC}/0=12"]).moves
    assert set_offsets.plan_offset_moves(settings, [f"{TOPIC}/0=0"], deleted_back=True).moves


@pytest.mark.parametrize("name", ["db.aside", UNNAMED])
def test_a_quarantine_that_no_start_has_made_yet_has_no_deletions(
    filled_sink: FilledTable, settings: SinkSettings, name: str
) -> None:
    """A record of version 1 gives its quarantine no name."""
    aside = replace(settings.quarantine, policy=Disposal.QUARANTINE, table="db.aside")
    kept = replace(settings, quarantine=aside)
    assert set_offsets.plan_offset_moves(kept, [f"{TOPIC}/0=3"]).moves
    filled_sink.table.refresh()
    filled_sink.commit(filled_sink.record(1, 3, {0: 12, 1: 10}, secondaries={name: "uuid"}))
    with pytest.raises(TableMissing, match=r"db\.aside"):
        set_offsets.plan_offset_moves(kept, [f"{TOPIC}/0=3"])


def test_of_deletions_that_were_only_counted_nothing_tells(
    filled_sink: FilledTable, settings: SinkSettings
) -> None:
    """By an older version, or from a table whose rows do not say of which record they are."""
    with filled_sink.table.refresh().transaction() as change:
        change.set_properties({"headgate.trips.deleted-rows": "2"})
    with pytest.raises(DeletedBack, match="some of 2 records"):
        set_offsets.plan_offset_moves(settings, [f"{TOPIC}/0=9"])
    assert set_offsets.plan_offset_moves(settings, [f"{TOPIC}/0=11"]).moves


def test_a_rollback_by_others_is_not_followed_over_deleted_records(
    filled_sink: FilledTable, settings: SinkSettings
) -> None:
    """The source would bring them back."""
    first = filled_sink.table.refresh().snapshots()[1].snapshot_id
    deleted(settings, "offset = 7 and partition = 0")
    filled_sink.table.refresh().manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(DeletedBack, match="1 record"):
        accept.resolve_stop_of_sink(settings, ["HG-201=follow-table"])
    assert accept.resolve_stop_of_sink(settings, ["HG-201=follow-table"], deleted_back=True)


@pytest.mark.parametrize("tagged", [True, False])
def test_no_policy_of_a_start_follows_a_table_over_deleted_records(
    filled_sink: FilledTable, settings: SinkSettings, catalog: Catalog, *, tagged: bool
) -> None:
    table = IcebergTable(catalog, "db.trips", SINK)
    first = filled_sink.table.refresh().snapshots()[1].snapshot_id
    deleted(settings, "offset = 7 and partition = 0")
    manage = filled_sink.table.refresh().manage_snapshots()
    (manage if tagged else manage.remove_tag(tag_name(SINK))).rollback_to_snapshot(first).commit()
    follow = replace(
        settings.coordinator,
        on_rollback=RollbackPolicy.FOLLOW_TABLE,
        on_tag_missing=TagMissingPolicy.FOLLOW_TABLE,
    )
    identity = Identity(SINK, settings.source.group_id, Sender("member", "life"))
    world = ClaimedSink(identity, table, Log(), StartAt("earliest"))
    with pytest.raises(DeletedBack, match=r"1 record .*take the policy out of the sink file"):
        resolve_stop(world, follow, {})
    word = replace(world, identity=replace(identity, deleted_back=True))
    assert resolve_stop(word, follow, {}) == []


def test_a_table_that_is_gone_took_the_list_of_its_deletions_along(
    filled_sink: FilledTable,
    settings: SinkSettings,
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether records of deleted rows would come back is not known: a person has to say so."""
    note = offset_metadata_of_table(str(filled_sink.table.metadata.table_uuid), SINK)
    monkeypatch.setattr(Log, "committed_offset_metadata", lambda _: note, raising=False)
    catalog.drop_table("db.trips")
    catalog.create_table("db.trips", SCHEMA)
    with pytest.raises(DeletedBack, match=r"the table that knew .* is gone"):
        accept.resolve_stop_of_sink(settings, ["HG-202=restart"])
    assert accept.resolve_stop_of_sink(settings, ["HG-202=restart"], deleted_back=True)


def test_routed_tables_and_the_quarantine_are_looked_at_too(
    diverted: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (rollback, set_offsets):
        monkeypatch.setattr(module, "open_reachable_source_topics", lambda _: nullcontext(Source()))
    monkeypatch.setattr(Source, "offsets_at", lambda *_: Offsets(), raising=False)
    settings = diverted.settings
    deleted(settings, None, "offset = 5")
    with pytest.raises(DeletedBack, match="quarantine: 1 record"):
        set_offsets.plan_offset_moves(settings, ["shop/0=5"])
    deleted(settings, "offset = 6", None, CLICKS)
    with pytest.raises(DeletedBack, match=f"{CLICKS}: 1 record"):
        set_offsets.plan_offset_moves(settings, ["shop/0=6"])
    with pytest.raises(DeletedBack, match=f"{CLICKS}: 1 record"):
        rollback.plan_rollback(settings, "1.2", drop_foreign=True)
    assert TopicPartition("shop", 0) == AT
