"""ORPHAN-1: what is deleted as an orphan is referred to by nobody, and can be committed by
nobody."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.local_catalog import local_catalog
from support.maintained import COLUMNS, SINK, Maintained, settings

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.errors import MaintenanceUnfit
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    TransactionId,
    TransactionNumber,
    tag_name,
)
from headgate.control_protocol.ports import CommitAttempt, Landed, Staging
from headgate.tables.iceberg.maintenance.compaction_plan import sink_data_folder
from headgate.tables.iceberg.maintenance.files_to_delete import Condemned
from headgate.tables.iceberg.maintenance.orphan_files import (
    SKEW_MS,
    Ages,
    Orphans,
    OrphanSearch,
    PrimaryTags,
    TagMove,
)
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import (
    CREATED_MS,
    TableDeclaration,
    create_table_if_missing,
)

HOUR_MS = 3_600_000
AGES = Ages(after_ms=3 * HOUR_MS, claim_max_ms=HOUR_MS)
OLD_S = 2 * 24 * 3_600

Make = Callable[..., Maintained]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    local = local_catalog(tmp_path)

    def made(**table: Any) -> Maintained:
        return Maintained(local.catalog, settings(tmp_path), **table)

    yield made
    local.catalog.close()


@pytest.fixture
def sink(make: Make) -> Maintained:
    return make()


def orphans(sink: Maintained, **more: Any) -> Orphans:
    return Orphans(sink.catalog, SINK, "db.trips", "db.trips", AGES, **more)


def aged(files: Any, seconds: float = OLD_S) -> list[Path]:
    """The files, as if they had been written so long ago."""
    paths = [Path(file.path.removeprefix("file://")) for file in files]
    for path in paths:
        os.utime(path, (time.time() - seconds, time.time() - seconds))
    return paths


def names(found: OrphanSearch) -> list[str]:
    return [Path(path).name for path in found.files]


def test_dropped_work_goes_and_what_is_live_stays(sink: Maintained) -> None:
    dropped = aged(sink.write_files(5))
    sink.next_offset = 0
    sink.commits(2)
    aged_live = [*sink.live()]
    for path in aged_live:
        os.utime(path, (1, 1))

    search = orphans(sink)
    found = search.find_orphans()

    assert names(found) == [path.name for path in dropped]
    assert search.delete_orphans(found) == 1
    assert set(sink.live()) == set(aged_live) == sink.stored_files()
    sink.assert_whole()


def test_a_dry_run_deletes_nothing(sink: Maintained) -> None:
    aged(sink.write_files(5), seconds=2 * OLD_S)
    aged(sink.write_files(5))
    sink.next_offset = 0
    sink.commit()
    one = sink.round(dry_run=True)

    one.remove_orphans()

    assert (one.done.orphans, one.done.young_orphans) == (1, 1), "three days, say the settings"
    assert len(sink.stored_files()) == 3


def test_young_files_stay_and_are_counted(sink: Maintained) -> None:
    aged(sink.write_files(5), seconds=2 * 3_600)
    sink.next_offset = 0
    sink.commit()

    found = orphans(sink).find_orphans()

    assert (found.files, found.young) == ((), 1)


def test_what_the_tag_has_not_outlived_stays_however_old(sink: Maintained) -> None:
    """A coordinator that sleeps since its last commit may still commit it when it wakes."""
    files = sink.write_files(5)
    attempt = CommitAttempt(sink.view, sink._record(5), files)
    aged(
        attempt.files, seconds=AGES.claim_max_ms / 1000
    )  # younger than TOKEN-1 asks, at the commit
    week_ms = 7 * 24 * HOUR_MS
    search = orphans(sink, wall_ms=lambda: int(time.time() * 1000) + week_ms)

    assert search.find_orphans().files == ()
    assert isinstance(sink.sink.commit(attempt), Landed)
    sink.assert_whole()


def test_files_that_the_tag_has_outlived_no_sleeper_can_commit(sink: Maintained) -> None:
    files = sink.write_files(5)
    attempt = CommitAttempt(sink.view, sink._record(5), files)
    aged(attempt.files, seconds=(AGES.claim_max_ms + SKEW_MS) / 1000 + 60)
    sink.next_offset = 0
    sink.commit()
    search = orphans(sink, wall_ms=lambda: int(time.time() * 1000) + 7 * 24 * HOUR_MS)

    assert len(search.find_orphans().files) == 1
    assert not isinstance(sink.sink.commit(attempt), Landed)


def dated(files: Any, at_ms: int) -> None:
    """The files, as if they had been written at that moment."""
    for file in files:
        os.utime(file.path.removeprefix("file://"), ns=(at_ms * 1_000_000, at_ms * 1_000_000))


def limit_ms(sink: Maintained, snapshot_id: int | None = None) -> int:
    """The moment before which no file can be committed any more, by a tag on that snapshot."""
    snapshot = sink.table.metadata.snapshot_by_id(snapshot_id or sink.view.tag or 0)
    assert snapshot is not None
    return snapshot.timestamp_ms - AGES.claim_max_ms - SKEW_MS


def a_week_later_ms() -> int:
    return int(time.time() * 1000) + 7 * 24 * HOUR_MS


def test_clocks_may_differ_by_the_skew_and_no_more(sink: Maintained) -> None:
    dropped = sink.write_files(5)
    sink.next_offset = 0
    sink.commit()
    search = orphans(sink, wall_ms=a_week_later_ms)

    dated(dropped, limit_ms(sink))
    assert search.find_orphans().files == ()
    dated(dropped, limit_ms(sink) - 1)
    assert len(search.find_orphans().files) == 1


def test_what_the_tag_of_another_branch_has_not_outlived_stays(sink: Maintained) -> None:
    """The sink's configuration names one branch; a sleeper may still commit to the one before."""
    before = sink.view.tag
    assert before is not None
    sink.table.manage_snapshots().create_tag(before, tag_name(SINK, "dev")).commit()
    sink.view = sink.sink.read()
    dropped = sink.write_files(5)
    sink.next_offset = 0
    sink.commit()
    assert limit_ms(sink, before) < limit_ms(sink)
    search = orphans(sink, wall_ms=a_week_later_ms)

    dated(dropped, limit_ms(sink, before))
    assert search.find_orphans().files == ()
    dated(dropped, limit_ms(sink, before) - 1)
    assert len(search.find_orphans().files) == 1


@pytest.mark.parametrize("later_ms", [-HOUR_MS, HOUR_MS])
def test_of_the_tables_tag_and_that_of_the_table_that_decides_the_older_one_counts(
    sink: Maintained, later_ms: int
) -> None:
    dropped = sink.write_files(5)
    sink.next_offset = 0
    sink.commit()
    moved_ms = limit_ms(sink) + AGES.claim_max_ms + SKEW_MS + later_ms
    deciding = PrimaryTags(sink.view.uuid, [TagMove(moved_ms, None)])
    search = orphans(sink, wall_ms=a_week_later_ms, deciding=lambda: deciding)
    oldest_ms = limit_ms(sink) + min(0, later_ms)

    dated(dropped, oldest_ms)
    assert search.find_orphans().files == ()
    dated(dropped, oldest_ms - 1)
    assert len(search.find_orphans().files) == 1


@pytest.mark.parametrize("ahead_ms", [-60_000, 0, SKEW_MS - 1])
def test_files_of_a_renamed_table_stay_where_a_new_one_was_made_in_its_place(
    make: Make, ahead_ms: int
) -> None:
    """A catalog gives the new table the old one's location: below it lie the files of both. The
    store's clock may be ahead of the one that the table was created by."""
    sink = make()
    sink.commits(3)
    archived = sorted(sink.stored_files())
    created_ms = int((time.time() - OLD_S) * 1000)
    for path in archived:
        os.utime(path, ns=((created_ms + ahead_ms) * 1_000_000,) * 2)
    sink.catalog.rename_table("db.trips", "db.trips_2025")
    created = {CREATED_MS: str(created_ms)}
    create_table_if_missing(sink.catalog, "db.trips", TableDeclaration(COLUMNS, properties=created))
    sink.sink = IcebergTable(sink.catalog, "db.trips", SINK, threads=False)
    sink.view = sink.sink.read()
    sink._commit(())
    dropped = sink.write_files(5)
    sink.next_offset -= 5
    sink.commit()
    assert sink.table.location() == sink.catalog.load_table("db.trips_2025").location()
    later_ms = int(time.time() * 1000) + 7 * 24 * HOUR_MS

    found = orphans(sink, wall_ms=lambda: later_ms).find_orphans()

    assert (found.earlier, found.young) == (len(archived), len(dropped))
    assert found.files == ()
    archive = sink.catalog.load_table("db.trips_2025").scan().to_arrow()
    assert archive.num_rows == 3 * 5


def test_snapshots_on_any_branch_or_tag_keep_their_files(sink: Maintained) -> None:
    sink.commits(4)
    table = sink.table
    head = table.metadata.current_snapshot_id
    assert head is not None
    table.manage_snapshots().create_tag(head, "release").create_branch(head, "dev").commit()
    sink.view = sink.sink.read()
    before = sink.stored_files()
    for path in before:
        os.utime(path, (1, 1))
    sink.round().compact()

    assert orphans(sink).find_orphans().files == ()
    assert before <= sink.stored_files()


def test_what_is_pending_stays_with_its_drafts_and_goes_when_nobody_is(make: Make) -> None:
    """As a quarantine: its rows are decided by the primary table, and not delivered yet."""
    primary = make()
    files = primary.write_files(5)
    primary.next_offset = 0
    secondary = IcebergTable(primary.catalog, "db.trips", SINK, threads=False)
    record = primary._record(0)
    draft = Staging(secondary.read(), record.transaction, record.coordinator, files, 0)
    pending_commits = secondary.stage(draft)
    aged(files)
    manifest = Path(pending_commits[0].manifest.removeprefix("file://"))
    os.utime(manifest, (1, 1))

    assert len(orphans(primary).find_orphans().files) == 2, "as long as nobody has decided it"
    owe(primary, pending_commits=pending_commits)
    assert orphans(primary).find_orphans().files == ()
    owe(primary, expired=pending_commits)
    assert orphans(primary).find_orphans().files == (), "a person may want them"
    owe(primary)
    search = orphans(primary)
    found = search.find_orphans()
    assert len(found.files) == 2
    assert search.delete_orphans(found) == 2
    assert not manifest.exists()


def test_key_2_key_files_that_are_pending_stay_with_their_drafts(make: Make) -> None:
    primary = make()
    table = primary.catalog.load_table("db.trips")
    path = f"{sink_data_folder(table, SINK)}/1-a/1/some-keys.parquet"
    table.io.new_output(path).create().close()
    keys = (WrittenFile(path, 3, 10, FileKind.KEYS),)
    aged(keys)
    primary.next_offset = 0
    secondary = IcebergTable(primary.catalog, "db.trips", SINK, threads=False)
    record = primary._record(0)
    pending_commits = secondary.stage(
        Staging(secondary.read(), record.transaction, record.coordinator, keys)
    )
    os.utime(Path(pending_commits[0].manifest.removeprefix("file://")), (1, 1))

    assert len(orphans(primary).find_orphans().files) == 2, "as long as nobody has decided it"
    owe(primary, pending_commits=pending_commits)
    assert orphans(primary).find_orphans().files == ()
    owe(primary)
    assert "some-keys.parquet" in names(orphans(primary).find_orphans())


def test_pending_7_key_files_that_were_delivered_and_acknowledged_are_not_awaited(
    make: Make,
) -> None:
    """The primary table's record names them until its next decision, which may be long in
    coming."""
    primary = make()
    primary.next_offset = 0
    create_table_if_missing(primary.catalog, "db.keyed", TableDeclaration({"id": "long"}))
    secondary = IcebergTable(primary.catalog, "db.keyed", SINK, threads=False)
    record = replace(primary._record(0), primary=primary.view.uuid)
    older = TransactionId(Epoch(0), TransactionNumber(0))
    claim = replace(record, transaction=older)
    assert isinstance(secondary.commit(CommitAttempt(secondary.read(), claim)), Landed)
    table = primary.catalog.load_table("db.keyed")
    path = f"{sink_data_folder(table, SINK)}/1-a/1/some-keys.parquet"
    table.io.new_output(path).create().close()
    keys = (WrittenFile(path, 3, 10, FileKind.KEYS),)
    pending_commits = secondary.stage(
        Staging(secondary.read(), record.transaction, record.coordinator, keys)
    )
    owe(primary, pending_commits=pending_commits)
    secondary.delete_delivered_key_files(pending_commits)
    search = Orphans(primary.catalog, SINK, "db.trips", "db.keyed", AGES)
    with pytest.raises(FileNotFoundError):
        search.find_orphans()

    assert isinstance(secondary.commit(CommitAttempt(secondary.read(), record)), Landed)
    assert search.find_orphans().files == ()


def owe(
    primary: Maintained,
    *,
    pending_commits: tuple[PendingCommit, ...] = (),
    expired: tuple[PendingCommit, ...] = (),
) -> CommitRecord:
    primary.number += 1
    record = replace(primary._record(0), pending_commits=pending_commits, expired=expired)
    outcome = primary.sink.commit(CommitAttempt(primary.view, record))
    assert isinstance(outcome, Landed)
    primary.view = outcome.view
    return record


def test_what_cannot_be_read_of_pending_commits_leaves_everything(sink: Maintained) -> None:
    record = sink._record(0)
    missing = f"{sink.table.metadata.location}/metadata/headgate/trips/1-x/1-s0.avro"
    uuid = str(sink.table.metadata.table_uuid)
    pending_commit = PendingCommit(
        record.transaction, record.coordinator, uuid, "db.trips", missing
    )
    aged(sink.write_files(5))
    owe(sink, pending_commits=(pending_commit,))

    with pytest.raises(FileNotFoundError):
        orphans(sink).find_orphans()


def test_files_of_other_sinks_and_of_strangers_are_not_looked_at(sink: Maintained) -> None:
    folder = Path(sink.table.metadata.location.removeprefix("file://")) / "data"
    strange = [folder / "headgate/trips2/1-x/1/a.parquet", folder / "day=1/b.parquet"]
    for path in strange:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        os.utime(path, (1, 1))
    sink.commit()

    assert orphans(sink).find_orphans().files == ()


def test_a_table_without_the_tag_is_left_alone(sink: Maintained) -> None:
    aged(sink.write_files(5))
    sink.table.manage_snapshots().remove_tag("headgate-trips").commit()

    found = orphans(sink).find_orphans()

    assert (found.files, found.why) == ((), "db.trips or db.trips has no tag of this sink")


def test_clocks_that_are_out_of_step_prove_nothing(sink: Maintained) -> None:
    aged(sink.write_files(5))
    sink.next_offset = 0
    sink.commit()

    found = orphans(sink, wall_ms=lambda: int(time.time() * 1000) - HOUR_MS).find_orphans()

    assert (found.files, found.why[:5]) == ((), "a tag")


@pytest.mark.parametrize(
    ("properties", "beside", "why"),
    [
        ({"gc.enabled": "false"}, "", "has gc.enabled=false"),
        ({}, "inside", "shares its location"),
        ({}, "around", "shares its location"),
    ],
)
def test_where_files_of_others_may_be_nothing_is_looked_for(
    make: Make, properties: dict[str, str], beside: str, why: str
) -> None:
    sink = make()
    with sink.table.transaction() as transaction:
        transaction.set_properties(properties)
    location = sink.table.metadata.location
    places = {"": (), "inside": (f"{location}/more",), "around": (location.rpartition("/")[0],)}

    found = orphans(sink, beside=places[beside]).find_orphans()

    assert why in found.why
    assert found.files == ()


@pytest.mark.parametrize("inside", [True, False])
def test_orphans_are_found_where_the_tables_data_were_before_its_owner_moved_them(
    sink: Maintained, *, inside: bool
) -> None:
    """Outside of the table's location others may be: that folder is named, and left alone."""
    before = sink.write_files(5)
    location = sink.table.metadata.location
    path = f"{location}/elsewhere" if inside else "file:///tmp/shared"
    with sink.table.transaction() as transaction:
        transaction.set_properties({"write.data.path": path})
    aged(before)

    found = orphans(sink).find_orphans()

    assert set(found.files) == {file.path for file in before}
    assert found.elsewhere == ("" if inside else f"{path}/headgate/trips")


def test_who_refers_to_a_condemned_file_in_time_keeps_it(sink: Maintained) -> None:
    files = sink.write_files(5)
    aged(files)
    sink.next_offset = 0
    sink.commit()
    search = orphans(sink)
    found = search.find_orphans()
    sink.table.add_files([files[0].path], check_duplicate_files=False)

    assert search.delete_orphans(found) == 0
    assert len(sink.live()) == 2


def test_a_file_that_its_store_does_not_delete_is_not_counted(
    sink: Maintained, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, gone = aged(sink.write_files(5)), aged(sink.write_files(5))
    sink.next_offset = 0
    sink.commit()
    search = orphans(sink)
    found = search.find_orphans()
    assert len(found.files) == 2
    files = type(sink.catalog.load_table("db.trips").io)
    delete = files.delete

    def refuse_one(io: Any, location: str) -> None:
        if location.endswith(kept[0].name):
            raise PermissionError("not allowed")
        delete(io, location)

    monkeypatch.setattr(files, "delete", refuse_one)

    assert search.delete_orphans(found) == 1
    assert kept[0].exists()
    assert not gone[0].exists()


def test_locations_are_compared_whatever_their_scheme() -> None:
    from headgate.tables.iceberg.maintenance.orphan_files import _comparable_name

    below = "headgate/trips/1-life/7/a.parquet"
    assert (
        len({_comparable_name(f"{at}/{below}", SINK) for at in ("file:/w/data", "file:///w/data")})
        == 1
    )
    assert _comparable_name("s3a://b/w/metadata/x.avro", SINK) == "s3a://b/w/metadata/x.avro"


def test_no_setting_deletes_what_may_still_be_committed(tmp_path: Path) -> None:
    with pytest.raises(MaintenanceUnfit, match="HG-147"):
        settings(tmp_path, "orphans_after_ms = 3600000\n")


# ------------------------------------------------------------------------- mutants, planted here


def test_planted_forgotten_drafts_lose_what_is_pending(
    sink: Maintained, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sink.write_files(5)
    sink.next_offset = 0
    record = sink._record(0)
    draft = Staging(sink.sink.read(), record.transaction, record.coordinator, files, 0)
    pending_commits = sink.sink.stage(draft)
    aged(files)
    owe(sink, pending_commits=pending_commits)
    assert orphans(sink).find_orphans().files == ()

    monkeypatch.setattr(
        "headgate.tables.iceberg.maintenance.orphan_files._paths_of_pending_and_expired",
        lambda *_: (),
    )

    assert names(orphans(sink).find_orphans()) == [Path(files[0].path).name]


def test_planted_deleting_without_reading_again_loses_rows(
    sink: Maintained, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sink.write_files(5)
    aged(files)
    sink.next_offset = 0
    sink.commit()
    search = orphans(sink)
    found = search.find_orphans()
    sink.table.add_files([files[0].path], check_duplicate_files=False)
    monkeypatch.setattr(Condemned, "_spare_referenced", lambda *_: None)

    assert search.delete_orphans(found) == 1
    with pytest.raises(FileNotFoundError):
        sink.offsets()


def test_planted_without_the_tag_a_sleeper_commits_what_is_gone(
    sink: Maintained, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sink.write_files(5)
    attempt = CommitAttempt(sink.view, sink._record(5), files)
    aged(files, seconds=AGES.claim_max_ms / 1000)
    now_ms = int(time.time() * 1000) + 7 * 24 * HOUR_MS
    monkeypatch.setattr(
        "headgate.tables.iceberg.maintenance.orphan_files._last_moves_of_sink_tags",
        lambda *_: [TagMove(now_ms, None)],
    )
    search = orphans(sink, wall_ms=lambda: now_ms)

    assert search.delete_orphans(search.find_orphans()) == 1
    assert isinstance(sink.sink.commit(attempt), Landed)
    with pytest.raises(FileNotFoundError):
        sink.offsets()
