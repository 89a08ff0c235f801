"""Anybody can deliver what was staged for a secondary table, once: the contract of its port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from contract.delta_table_world import DeltaWorld, rows
from contract.fake_table_world import FakeWorld
from contract.iceberg_table_world import NAME, IcebergWorld
from contract.test_sink_table import World, on_postgres
from deltalake import Field, write_deltalake
from deltalake.schema import PrimitiveType

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.errors import TableChanged, TableMissing, Unreachable
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Refused,
    SecondaryTable,
    Staging,
    TableView,
    Unknown,
)
from headgate.control_protocol.testing.contract.world import record, require_landed
from headgate.tables.concurrent_secondary_tables import SecondaryTables
from headgate.tables.iceberg.pending_manifests import find_undecided_manifests
from headgate.tables.staged_file_lists import KEPT_MS, StagedFileLists
from headgate.tables.unstaged_secondary_table import FileListSecondaryTable, FixedColumns


class DeltaSecondaryWorld(DeltaWorld):
    """A Delta table with drafts of ours, which are kept until the next delivery."""

    kept_ms = 0

    def open(self, sink: str = "sink") -> SecondaryTable:  # type: ignore[override]
        table = super().open(sink)
        place = self.place
        drafts = StagedFileLists(
            place.storage, place.location, SinkName(sink), kept_ms=self.kept_ms
        )
        return FileListSecondaryTable(table, FixedColumns(table), drafts)

    def expire_all(self) -> None:
        self.table().create_checkpoint()


@pytest.fixture(
    params=[
        pytest.param(lambda _, folder: FakeWorld(folder), id="fake"),
        pytest.param(lambda _, folder: IcebergWorld(folder), id="sqlite"),
        pytest.param(lambda _, folder: DeltaSecondaryWorld(folder), id="delta"),
        pytest.param(on_postgres, id="postgres", marks=pytest.mark.integration),
    ]
)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world: World = request.param(request, tmp_path)
    yield world
    world.close()


def stage(
    world: World, table: SecondaryTable, number: int, *files: int, epoch: int = 1
) -> PendingCommit:
    """What transaction ``number`` would owe: a file for each number."""
    draft = Staging(
        table.read(),
        TransactionId(Epoch(epoch), TransactionNumber(number)),
        Sender("member", f"incarnation-{epoch}"),
        tuple(world.write_file(file) for file in files),
        since_ms=77,
    )
    (pending_commit,) = table.stage(draft)
    return pending_commit


def open_table(world: World) -> SecondaryTable:
    return world.open()  # type: ignore[return-value]


def delivery_of(pending_commit: PendingCommit) -> CommitRecord:
    return replace(
        record(pending_commit.transaction.epoch, pending_commit.transaction.number),
        records=pending_commit.rows,
        primary="uuid-lead",
    )


def delivers(
    table: SecondaryTable, *pending_commits: PendingCommit, base: TableView | None = None
) -> CommitOutcome:
    return table.commit(
        CommitAttempt(
            base or table.read(), delivery_of(pending_commits[-1]), pending_commits=pending_commits
        )
    )


def test_pending_2_what_is_drafted_is_in_no_snapshot(world: World) -> None:
    table = open_table(world)
    before = table.read()
    pending_commit = stage(world, table, 1, 10, 11)
    assert table.read() == before
    assert world.visible_file_numbers() == []
    assert (pending_commit.secondary, pending_commit.table, pending_commit.since_ms) == (
        before.uuid,
        before.table,
        77,
    )
    assert pending_commit.rows
    assert pending_commit.manifest.startswith(before.location)


def test_pending_5_another_process_delivers_it_later_on_whatever_the_table_is_then(
    world: World,
) -> None:
    pending_commit = stage(world, open_table(world), 1, 10, 11)
    world.append_foreign(7)
    world.compact()
    view = require_landed(delivers(open_table(world), pending_commit))
    assert world.visible_file_numbers() == [7, 10, 11]
    assert view.record == delivery_of(pending_commit)
    assert open_table(world).read() == view


def test_pending_5_several_pending_commits_go_in_one_call(world: World) -> None:
    table = open_table(world)
    pending_commits = [stage(world, table, number, number) for number in (1, 2, 3)]
    require_landed(delivers(table, *pending_commits))
    assert world.visible_file_numbers() == [1, 2, 3]
    assert open_table(world).read().record == delivery_of(pending_commits[-1])


def test_pending_5_two_deliver_the_same_and_one_is_refused(world: World) -> None:
    one, other = open_table(world), open_table(world)
    pending_commit = stage(world, one, 1, 10)
    stale = other.read()
    require_landed(delivers(one, pending_commit))
    assert isinstance(delivers(other, pending_commit, base=stale), Refused)
    assert world.visible_file_numbers() == [10]


def test_pending_9_an_empty_pending_commit_moves_the_tag_and_fences_what_comes_late(
    world: World,
) -> None:
    table, zombie = open_table(world), open_table(world)
    pending_commit = stage(world, zombie, 1, 10)
    stale = zombie.read()
    claim = replace(
        pending_commit, transaction=TransactionId(Epoch(2), TransactionNumber(0)), manifest=""
    )
    require_landed(delivers(table, claim))
    assert isinstance(delivers(zombie, pending_commit, base=stale), Refused)
    assert world.visible_file_numbers() == []


@pytest.mark.parametrize("did_land", [True, False])
def test_pending_7_a_lost_answer_is_unknown_and_the_secondary_tells(
    world: World, did_land: bool
) -> None:
    table = open_table(world)
    pending_commit = stage(world, table, 1, 10)
    world.lose_next_answer(landed=did_land)
    assert isinstance(delivers(table, pending_commit), Unknown)
    found = table.read().record
    assert (found is not None and found.transaction == pending_commit.transaction) is did_land
    if not did_land:
        require_landed(delivers(table, pending_commit))
    assert world.visible_file_numbers() == [10]


def test_what_was_delivered_can_be_committed_upon_compacted_and_expired(world: World) -> None:
    table = open_table(world)
    require_landed(delivers(table, stage(world, table, 1, 10)))
    later = stage(world, table, 2, 20)
    world.compact()
    world.expire_all()
    require_landed(delivers(table, later))
    assert world.visible_file_numbers() == [10, 20]
    assert table.read().record == delivery_of(later)


def test_a_table_created_anew_gets_no_draft(world: World) -> None:
    table = open_table(world)
    before = table.read()
    file = world.write_file(10)
    world.recreate()
    transaction = TransactionId(Epoch(1), TransactionNumber(1))
    with pytest.raises(Unreachable):
        table.stage(Staging(before, transaction, Sender("member", "1"), (file,)))


def test_a_manifest_that_is_gone_is_unknown_and_changes_nothing(world: World) -> None:
    table = open_table(world)
    pending_commit = stage(world, table, 1, 10)
    gone = replace(pending_commit, manifest=pending_commit.manifest + ".gone")
    assert isinstance(delivers(table, gone), Unknown)
    assert table.read().record is None
    require_landed(delivers(table, pending_commit))


# ------------------------------------------------------------------------------- storage, real only


@pytest.fixture
def real(tmp_path: Path) -> Iterator[IcebergWorld]:
    world = IcebergWorld(tmp_path)
    yield world
    world.close()


def loose(world: IcebergWorld, before: int, *pending: PendingCommit) -> list[str]:
    manifests = frozenset(pending_commit.manifest for pending_commit in pending)
    return find_undecided_manifests(world.table(), SinkName("sink"), Epoch(before), manifests)


def test_pending_2_only_what_an_older_epoch_drafted_and_nobody_decided_is_cleared_away(
    real: IcebergWorld,
) -> None:
    table = open_table(real)
    settled, dead, pending = (stage(real, table, number, number) for number in (1, 2, 3))
    young = stage(real, table, 1, 4, epoch=2)
    require_landed(delivers(table, settled))
    assert loose(real, 1) == []
    assert loose(real, 2, pending) == [dead.manifest]
    table.delete_undecided_manifests(Epoch(2), frozenset({pending.manifest}))
    require_landed(delivers(table, pending))
    require_landed(delivers(table, young))
    assert real.visible_file_numbers() == [1, 3, 4]
    assert loose(real, 9) == []


def test_pending_3_what_is_pending_survives_the_expiry_of_all_snapshots(real: IcebergWorld) -> None:
    table = open_table(real)
    require_landed(delivers(table, stage(real, table, 1, 10)))
    pending = stage(real, table, 2, 20)
    for number in (7, 8):
        real.append_foreign(number)
    real.compact()
    real.expire_all()
    real.lose_history()
    require_landed(delivers(open_table(real), pending))
    assert real.visible_file_numbers() == [7, 8, 10, 20]


def test_a_delivery_counts_what_its_manifests_hold(real: IcebergWorld) -> None:
    table = open_table(real)
    require_landed(delivers(table, stage(real, table, 1, 10, 11), stage(real, table, 2, 20)))
    snapshot = real.table().current_snapshot()
    assert snapshot
    assert snapshot.summary
    summary = snapshot.summary.additional_properties
    assert (summary["added-data-files"], summary["added-records"]) == ("3", "9")
    assert summary["total-records"] == "9"
    manifests = snapshot.manifests(real.table().io)
    assert sorted((m.added_files_count, m.added_rows_count) for m in manifests) == [(1, 3), (2, 6)]
    assert {m.sequence_number for m in manifests} == {snapshot.sequence_number}


# ---------------------------------------------------------------------------- kinds with our drafts


def test_pending_2_what_an_older_epoch_drafted_and_nobody_is_pending_is_cleared_away(
    tmp_path: Path,
) -> None:
    world = DeltaSecondaryWorld(tmp_path)
    table = world.open()
    delivered_first, dead, pending = (stage(world, table, number, number) for number in (1, 2, 3))
    young = stage(world, table, 1, 4, epoch=2)
    require_landed(delivers(table, delivered_first))
    table.delete_undecided_manifests(Epoch(1), frozenset())
    assert len(drafts_in(world)) == 4
    table.delete_undecided_manifests(Epoch(2), frozenset({pending.manifest}))
    assert drafts_in(world) == {delivered_first.manifest, pending.manifest, young.manifest}
    require_landed(delivers(world.open(), pending))
    require_landed(delivers(table, young))
    assert world.visible_file_numbers() == [1, 3, 4]
    assert dead.manifest not in drafts_in(world)


def test_drafts_go_with_the_delivery_behind_theirs(tmp_path: Path) -> None:
    world = DeltaSecondaryWorld(tmp_path)
    table = world.open()
    pending_commits = [stage(world, table, number, number) for number in (1, 2, 3)]
    require_landed(delivers(table, pending_commits[0]))
    assert drafts_in(world) == {pending_commit.manifest for pending_commit in pending_commits}
    require_landed(delivers(table, pending_commits[1], pending_commits[2]))
    assert drafts_in(world) == {pending_commits[1].manifest, pending_commits[2].manifest}


def test_drafts_are_kept_for_a_table_that_loses_its_newest_deliveries(tmp_path: Path) -> None:
    """By whoever delivers to the next ones, and by the next epoch."""
    world = DeltaSecondaryWorld(tmp_path)
    world.kept_ms = KEPT_MS
    table = world.open()
    pending_commits = [stage(world, table, number, number) for number in (1, 2, 3)]
    for pending_commit in pending_commits:
        require_landed(delivers(table, pending_commit))
    table.delete_undecided_manifests(Epoch(2), frozenset())
    assert drafts_in(world) == {pending_commit.manifest for pending_commit in pending_commits}


@pytest.mark.parametrize("partition_by", [(), ("number",)])
@pytest.mark.parametrize("log_kept", [True, False])
def test_files_of_columns_that_the_table_had_are_delivered_by_a_process_that_never_saw_them(
    tmp_path: Path, partition_by: tuple[str, ...], log_kept: bool
) -> None:
    world = DeltaSecondaryWorld(tmp_path, partition_by=partition_by)
    pending_commit = stage(world, world.open(), 1, 10)
    world.table().alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])
    if not log_kept:
        world.forget_log_before_head()
    require_landed(delivers(world.open(), pending_commit))
    assert world.visible_file_numbers() == [10]
    (added,) = pa.table(world.table().get_add_actions(flatten=True)).to_pylist()
    assert (added["min.row"], added["max.row"], added["null_count.row"]) == (0, 2, 0)
    assert added.get("partition.number", 10) == 10


def test_files_that_do_not_show_the_partition_columns_are_refused_once_the_log_has_forgotten_them(
    tmp_path: Path,
) -> None:
    """Another column may have been the table's partition column when they were written."""
    world = DeltaSecondaryWorld(tmp_path, partition_by=("number",))
    pending_commit = stage(world, world.open(), 1, 10)
    write_deltalake(
        world.uri, rows(1), mode="overwrite", partition_by=["row"], schema_mode="overwrite"
    )
    world.forget_log_before_head()
    with pytest.raises(TableChanged, match="other columns than the table has now") as raised:
        delivers(world.open(), pending_commit)
    assert "undo the change" in raised.value.hint


def drafts_in(world: DeltaWorld) -> set[str]:
    found = (world.uri / "metadata").rglob("*.json")
    return {f"file://{path}" for path in found}


# ---------------------------------------------------------------------------------- several at once


class Held:
    """A secondary table whose commit waits until it is let go."""

    def __init__(self, table: SecondaryTable) -> None:
        self._table = table
        self.let_go = threading.Event()
        self.read, self.stage, self.delete_undecided_manifests, self.close = (
            table.read,
            table.stage,
            table.delete_undecided_manifests,
            table.close,
        )

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        self.let_go.wait(30)
        return self._table.commit(attempt)


def test_pending_7_one_that_hangs_holds_up_no_other_and_ends_by_itself(tmp_path: Path) -> None:
    worlds = {"lake.one": FakeWorld(tmp_path), "lake.two": FakeWorld(tmp_path)}
    for name, world in worlds.items():
        world.rename(name)
    held = Held(open_table(worlds["lake.one"]))
    told: list[str] = []
    secondaries = SecondaryTables(
        lambda name: held if name == "lake.one" else open_table(worlds[name]),  # type: ignore[return-value, arg-type]
        lambda: told.append("told"),
    )
    views = secondaries.try_read_views(tuple(worlds))
    assert told == ["told"]
    pending_commits = [stage(world, open_table(world), 1, 10) for world in worlds.values()]
    deliveries = [
        CommitAttempt(
            views[pending_commit.table],
            delivery_of(pending_commit),
            pending_commits=(pending_commit,),
        )
        for pending_commit in pending_commits
    ]
    outcomes = secondaries.deliver(deliveries, 100)
    assert isinstance(outcomes["lake.one"], Unknown)
    assert isinstance(outcomes["lake.two"], Landed)
    assert secondaries.try_read_views(tuple(worlds)).keys() == {"lake.two"}, (
        "it is asked when it is free"
    )
    held.let_go.set()
    while "lake.one" not in secondaries.try_read_views(tuple(worlds)):
        pass
    assert worlds["lake.one"].visible_file_numbers() == [10]
    assert len(told) == 2
    secondaries.close()


def test_ledger_2_what_is_not_listed_is_gone_if_it_cannot_be_read_either(tmp_path: Path) -> None:
    worlds = {name: FakeWorld(tmp_path) for name in ("lake.one", "lake.two", "else.where")}
    for name, world in worlds.items():
        world.rename(name)
    read: list[str] = []

    def open_(name: str) -> SecondaryTable:
        read.append(name)
        return open_table(worlds[name])

    secondaries = SecondaryTables(
        open_,
        threads=False,
        required=(),
        listed={"lake": ["one"], "else": []}.__getitem__,
    )
    worlds["lake.two"].drop()
    gone = secondaries.find_missing_tables(tuple(worlds))
    assert gone.keys() == {"lake.two"}
    assert gone["lake.two"].code == "HG-102"
    assert sorted(read) == ["else.where", "lake.two"]
    assert secondaries.find_missing_tables(("lake.one",)) == {}
    secondaries.close()


def test_one_that_is_missing_is_named(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path)
    world.drop()
    secondaries = SecondaryTables(lambda _: open_table(world), threads=False)
    with pytest.raises(TableMissing):
        secondaries.try_read_views((NAME,))
    secondaries.close()
