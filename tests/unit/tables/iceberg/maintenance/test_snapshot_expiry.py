"""RETENTION-1, over a catalog that checks as little as a server: no file goes that is in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from integration.iceberg.sink_commits import SINK, SinkOnTable, record
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate, SetSnapshotRefUpdate
from support.local_catalog import LocalCatalog, local_catalog
from support.server_checks import ServerChecks

from headgate.control_protocol.ports import CommitAttempt, Landed
from headgate.tables.iceberg.maintenance import files_to_delete, snapshot_expiry, snapshot_removal
from headgate.tables.iceberg.maintenance.files_of_expired_snapshots import (
    find_files_only_reachable_from,
)
from headgate.tables.iceberg.maintenance.snapshot_expiry import SnapshotExpiry
from headgate.tables.iceberg.table import IcebergTable
from headgate.testing.node import Killed

KEEP, DUE = 3, 4
ASKED = {
    "history.expire.max-snapshot-age-ms": "1",
    "history.expire.min-snapshots-to-keep": str(KEEP),
    "commit.manifest.min-count-to-merge": "3",
}

Send = Callable[[], CommitTableResponse]


@pytest.fixture
def local(tmp_path: Path) -> LocalCatalog:
    return local_catalog(tmp_path)


@pytest.fixture
def server(local: LocalCatalog, monkeypatch: pytest.MonkeyPatch) -> ServerChecks:
    monkeypatch.setattr(snapshot_expiry, "DUE_MIN", DUE)
    return ServerChecks(local.catalog)


@pytest.fixture
def sink(server: ServerChecks, request: pytest.FixtureRequest) -> SinkOnTable:
    """Its next commit makes snapshots due: expiry is about to happen."""
    asked = {**ASKED, **getattr(request, "param", {})}
    sink = SinkOnTable.claimed(server, {"id": "long"}, properties=asked)  # type: ignore[arg-type]
    for number in range(KEEP + DUE - 2):
        sink.commit(rows(number))
    assert not server.removals
    return sink


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def referred(table: Table) -> set[str]:
    paths = set()
    for snapshot in table.snapshots():
        paths.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            paths.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            paths |= {entry.data_file.file_path for entry in entries}
    return paths


def missing(sink: SinkOnTable) -> list[str]:
    table = sink.load()
    return [path for path in referred(table) if not table.io.new_input(path).exists()]


def orphans(sink: SinkOnTable) -> set[str]:
    table = sink.load()
    there = Path(table.location().removeprefix("file://")).rglob("*")
    files = {f"file://{path}" for path in there if path.suffix in (".avro", ".parquet")}
    return files - referred(table)


def ids_under(sink: SinkOnTable, ref: str) -> list[int]:
    scanned = sink.load().scan().use_ref(ref).to_arrow()
    return sorted(scanned["id"].to_pylist())


def tag(sink: SinkOnTable, position: int, name: str = "just-now") -> None:
    table = sink.load()
    table.manage_snapshots().create_tag(table.snapshots()[position].snapshot_id, name).commit()


def count(sink: SinkOnTable) -> int:
    return len(sink.load().snapshots())


def test_what_is_due_goes_and_storage_holds_what_is_referred_to(
    sink: SinkOnTable, server: ServerChecks
) -> None:
    sink.commit(rows(90))

    assert server.removals == 1
    assert count(sink) == KEEP
    assert missing(sink) == []
    assert orphans(sink) == set()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("history.expire.max-snapshot-age-ms", "5d"),
        ("gc.enabled", "yes please"),
        ("write.metadata.delete-after-commit.enabled", "maybe"),
    ],
)
@pytest.mark.filterwarnings("ignore:Failed to delete old metadata")  # the catalog's own
def test_a_property_that_cannot_be_read_pauses_the_upkeep_and_ends_no_commit(
    sink: SinkOnTable, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    with sink.load().transaction() as change:
        change.set_properties({name: value})
    sink.commit(rows(90))
    sink.commit(rows(91))
    assert ids_under(sink, "main")[-2:] == [90, 91]
    assert caplog.text.count("db.t: not cleaned up for now: ValueError") == 1


@pytest.mark.parametrize("sink", [{}, {"format-version": "3"}], indirect=True, ids=["v2", "v3"])
def test_a_tag_that_was_set_meanwhile_keeps_its_files(
    sink: SinkOnTable, server: ServerChecks, caplog: pytest.LogCaptureFixture
) -> None:
    def around(send: Send) -> CommitTableResponse:
        tag(sink, 2)
        return send()

    server.around = around
    sink.commit(rows(90))

    assert ids_under(sink, "just-now") == [0, 1]
    assert missing(sink) == []
    assert "just-now was set on snapshot" in caplog.text
    sink.view = sink.table.read()
    for number in range(91, 91 + 3 * DUE):
        sink.commit(rows(number))
    assert ids_under(sink, "just-now") == [0, 1]
    assert missing(sink) == []
    assert ids_under(sink, "main")[-1] == 90 + 3 * DUE


def test_a_branch_that_was_made_meanwhile_keeps_its_retention(
    sink: SinkOnTable, server: ServerChecks
) -> None:
    def around(send: Send) -> CommitTableResponse:
        due = sink.load().snapshots()[1].snapshot_id
        branch = SetSnapshotRefUpdate(  # type: ignore[call-arg]
            ref_name="audit", type="branch", snapshot_id=due, min_snapshots_to_keep=7
        )
        sink.catalog.commit_table(sink.load(), (), (branch,))
        return send()

    server.around = around
    sink.commit(rows(90))

    ref: SnapshotRef = sink.load().metadata.refs["audit"]
    assert (ref.snapshot_ref_type, ref.min_snapshots_to_keep) == ("branch", 7)
    assert ids_under(sink, "audit") == [0]
    assert missing(sink) == []


def test_a_tag_taken_along_by_a_removal_without_an_answer_is_set_again(
    sink: SinkOnTable, server: ServerChecks
) -> None:
    def around(send: Send) -> CommitTableResponse:
        tag(sink, 2)
        send()
        sink.load().append(rows(70))
        raise ConnectionError("the answer was lost")

    server.around = around
    sink.commit(rows(90))

    assert ids_under(sink, "just-now") == [0, 1]
    assert missing(sink) == []


@pytest.mark.parametrize("kept", [1, 100])
def test_it_is_said_when_nobody_can_tell_any_more_what_a_removal_took_along(
    sink: SinkOnTable, server: ServerChecks, caplog: pytest.LogCaptureFixture, kept: int
) -> None:
    """The answer came late, and the log of the table's versions is short."""

    def around(send: Send) -> CommitTableResponse:
        with sink.load().transaction() as change:
            change.set_properties({"write.metadata.previous-versions-max": str(kept)})
        send()
        sink.load().append(rows(70))
        raise ConnectionError("the answer was lost")

    server.around = around
    sink.commit(rows(90))

    assert ("does not tell any more" in caplog.text) == (kept == 1)
    assert missing(sink) == []


@pytest.mark.parametrize("deposed", [False, True])
def test_a_tag_taken_along_by_a_removal_that_lands_late_is_set_again(
    sink: SinkOnTable, server: ServerChecks, *, deposed: bool
) -> None:
    """Also by one who never commits again (seed 28820 of the simulation)."""
    late: list[Send] = []

    def around(send: Send) -> CommitTableResponse:
        late.append(send)
        raise ConnectionError("nobody knows")

    server.around = around
    sink.commit(rows(90))
    tag(sink, 2)
    late[0]()
    assert "just-now" not in sink.load().metadata.refs
    if deposed:
        sink.table.close()
    else:
        sink.view = sink.table.read()
        sink.commit(rows(91))

    assert ids_under(sink, "just-now") == [0, 1]
    assert missing(sink) == []


def test_a_tag_taken_along_is_lost_if_the_process_is_killed_then_and_no_file_is(
    sink: SinkOnTable, server: ServerChecks
) -> None:
    """No later coordinator knows of it (seed 605120 of the simulation)."""

    def around(send: Send) -> CommitTableResponse:
        tag(sink, 2)
        kept.update(referred(sink.load()))
        send()
        raise Killed

    kept: set[str] = set()
    server.around = around
    with pytest.raises(Killed):
        sink.commit(rows(90))
    io = sink.load().io
    assert all(io.new_input(path).exists() for path in kept)
    sink.table = IcebergTable(server, "db.t", SINK, threads=False)  # type: ignore[arg-type]
    sink.view = sink.table.read()
    for number in range(91, 91 + 3 * DUE):
        sink.commit(rows(number))

    assert server.removals > 1
    assert "just-now" not in sink.load().metadata.refs
    assert missing(sink) == []


@pytest.mark.parametrize("what", ["a data file", "a manifest", "storage does not answer"])
def test_a_tag_is_not_set_again_on_files_that_an_orphan_clean_up_has_met(
    sink: SinkOnTable,
    server: ServerChecks,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """Who sleeps between the removal and what follows it is overtaken (seed 2011820)."""

    def around(send: Send) -> CommitTableResponse:
        tag(sink, 2)
        table = sink.load()
        (manifest, *_) = table.snapshots()[2].manifests(table.io)
        (entry, *_) = manifest.fetch_manifest_entry(table.io)
        response = send()
        if what == "storage does not answer":
            monkeypatch.setattr(snapshot_removal, "has_all_files", silent)
        else:
            path = manifest.manifest_path if "manifest" in what else entry.data_file.file_path
            table.io.delete(path)
        return response

    def silent(*_: object) -> bool:
        raise TimeoutError

    server.around = around
    sink.commit(rows(90))

    assert "just-now" not in sink.load().metadata.refs
    assert "of its files some are gone too" in caplog.text


@pytest.mark.parametrize("tagged", [False, True])
def test_a_removal_that_may_land_when_nobody_looks_any_more_endangers_a_tag(
    sink: SinkOnTable, server: ServerChecks, caplog: pytest.LogCaptureFixture, *, tagged: bool
) -> None:
    """A tag that is new does not stop it (seed 223200 of the simulation): it is named in time."""

    def around(_: Send) -> CommitTableResponse:
        raise ConnectionError("nobody knows")

    server.around = around
    sink.commit(rows(90))
    tag(sink, 2 if tagged else -1)
    sink.table.close()

    assert ("just-now stands since" in caplog.text) == tagged


def test_a_removal_whose_refs_have_moved_endangers_nothing(
    sink: SinkOnTable, server: ServerChecks, caplog: pytest.LogCaptureFixture
) -> None:
    def around(_: Send) -> CommitTableResponse:
        raise ConnectionError("nobody knows")

    server.around = around
    sink.commit(rows(90))
    tag(sink, 2)
    sink.load().append(rows(70))  # main has moved: the removal requires that it has not
    sink.table.close()

    assert "stands since" not in caplog.text


def test_files_are_left_when_others_changed_the_table_meanwhile(
    sink: SinkOnTable, server: ServerChecks
) -> None:
    """Any change: what it means for the files is not known."""

    def around(send: Send) -> CommitTableResponse:
        with sink.load().transaction() as change:
            change.set_properties({"comment": "changed"})
        return send()

    server.around = around
    sink.commit(rows(90))

    assert count(sink) == KEEP
    assert orphans(sink)
    assert missing(sink) == []


def test_nothing_is_sent_when_the_table_moved_while_its_files_were_read(
    sink: SinkOnTable, server: ServerChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*arguments: object) -> list[str]:
        tag(sink, 2)
        return right(*arguments)  # type: ignore[arg-type]

    right = snapshot_expiry.find_files_only_reachable_from
    monkeypatch.setattr(snapshot_expiry, "find_files_only_reachable_from", read)
    sink.commit(rows(90))

    assert server.removals == 0
    assert ids_under(sink, "just-now") == [0, 1]


def test_a_change_that_concerns_no_file_holds_a_removal_up_and_no_more(
    sink: SinkOnTable, server: ServerChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*arguments: object) -> list[str]:
        with sink.load().transaction() as change:
            change.set_properties({"comment": "changed"})
        return right(*arguments)  # type: ignore[arg-type]

    right = snapshot_expiry.find_files_only_reachable_from
    monkeypatch.setattr(snapshot_expiry, "find_files_only_reachable_from", read)
    sink.commit(rows(90))

    assert server.removals == 1
    assert count(sink) == KEEP
    assert orphans(sink) == set()
    assert missing(sink) == []


def test_a_table_that_never_rests_is_left_for_the_next_commit(
    sink: SinkOnTable, server: ServerChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each removal finds that others were faster; what is due goes when they are quiet."""

    def overtaken(*arguments: object) -> bool:
        with sink.load().transaction() as change:
            change.set_properties({"comment": str(len(tried))})
        tried.append(1)
        return right(*arguments)  # type: ignore[arg-type]

    tried: list[int] = []
    right = snapshot_removal.SnapshotRemoval.try_removal_and_prove_exact
    monkeypatch.setattr(snapshot_removal.SnapshotRemoval, "try_removal_and_prove_exact", overtaken)
    sink.commit(rows(90))
    assert (len(tried), server.removals) == (5, 0)
    monkeypatch.setattr(snapshot_removal.SnapshotRemoval, "try_removal_and_prove_exact", right)
    sink.view = sink.table.read()
    sink.commit(rows(91))
    assert server.removals == 1
    assert missing(sink) == []
    assert orphans(sink) == set()


def test_a_tag_that_cannot_be_set_again_is_named(
    sink: SinkOnTable,
    server: ServerChecks,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing of it is lost yet: its files are kept, and somebody can set it by hand."""

    def around(send: Send) -> CommitTableResponse:
        tag(sink, 2)
        kept.update(referred(sink.load()))
        response = send()
        monkeypatch.setattr(server, "commit_table", refuse)
        return response

    def refuse(*_: object) -> CommitTableResponse:
        refused.append(1)
        raise ConnectionError("the catalog is away")

    kept: set[str] = set()
    refused: list[int] = []
    server.around = around
    sink.commit(rows(90))

    assert len(refused) == 5
    assert "just-now was set on snapshot" in caplog.text
    assert "is gone; its files are kept" in caplog.text
    io = sink.load().io
    assert all(io.new_input(path).exists() for path in kept)


def test_partition_statistics_go_with_their_snapshots(
    sink: SinkOnTable, server: ServerChecks
) -> None:
    """Servers forget other statistics with a snapshot, these not."""
    table = sink.load()
    due, last = table.snapshots()[1].snapshot_id, table.snapshots()[-1].snapshot_id
    for snapshot_id in (due, last):
        file = PartitionStatisticsFile(
            snapshot_id=snapshot_id, statistics_path=f"s{snapshot_id}", file_size_in_bytes=1
        )
        update = SetPartitionStatisticsUpdate(partition_statistics=file)
        sink.catalog.commit_table(table, (), (update,))
    sink.view = sink.table.read()
    sink.commit(rows(90))
    assert server.removals == 1
    left = [file.snapshot_id for file in sink.load().metadata.partition_statistics]
    assert left == [last]


@pytest.mark.parametrize("when", ["before-reading-back", "in-the-middle"])
def test_files_of_snapshots_that_are_back_stay(
    sink: SinkOnTable, server: ServerChecks, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """An operator registers the version of the table from before the removal."""
    location = sink.load().metadata_location
    held: list[str] = []

    def around(send: Send) -> CommitTableResponse:
        held.append(sink.load().metadata_location)
        response = send()
        if when == "before-reading-back":
            put_back()
        return response

    def put_back() -> None:
        sink.catalog.drop_table("db.t")
        sink.catalog.register_table("db.t", held[0])

    def clock() -> float:
        """The process sleeps after it has read back."""
        clocked.append(0.0)
        return 0.0 if len(clocked) < 2 else 1_000.0

    clocked: list[float] = []
    if when == "in-the-middle":
        monkeypatch.setattr(files_to_delete, "boottime_s", clock)
    server.around = around
    sink.commit(rows(90))
    if when == "in-the-middle":
        monkeypatch.undo()
        monkeypatch.setattr(snapshot_expiry, "DUE_MIN", 10**6)
        put_back()
        sink.view = sink.table.read()
        sink.commit(rows(91))

    assert location != held[0]
    assert count(sink) > KEEP
    assert missing(sink) == []
    assert ids_under(sink, "main")[-1] == 90 if when == "before-reading-back" else 91


def test_a_file_that_somebody_refers_to_again_stays(
    sink: SinkOnTable, server: ServerChecks
) -> None:
    """Compaction replaced it; a writer that took its time adds it once more."""
    table = sink.load()
    replaced = [task.file.file_path for task in table.scan().plan_files()]
    table.overwrite(rows(50))
    sink.view = sink.table.read()

    def around(send: Send) -> CommitTableResponse:
        response = send()
        sink.load().add_files(replaced[:1], check_duplicate_files=False)
        return response

    server.around = around
    outcome = sink.table.commit(sink.attempt(rows(90)))

    assert isinstance(outcome, Landed)
    assert server.around is None
    assert replaced[0] in referred(sink.load())
    assert missing(sink) == []
    assert not any(sink.load().io.new_input(path).exists() for path in replaced[1:])


def test_a_zombies_removal_is_refused_by_the_server(
    sink: SinkOnTable, server: ServerChecks
) -> None:
    def around(send: Send) -> CommitTableResponse:
        heir = IcebergTable(server, "db.t", SINK, threads=False)  # type: ignore[arg-type]
        assert isinstance(heir.commit(CommitAttempt(heir.read(), record(2, 0))), Landed)
        return send()

    server.around = around
    sink.commit(rows(90))

    assert missing(sink) == []
    assert orphans(sink) == set()


def test_what_two_snapshots_share_goes_with_the_second(sink: SinkOnTable) -> None:
    """A ref that was set again stands on a snapshot that shares its manifest list with another."""
    table = sink.load()
    first = table.snapshots()[1]
    copy = first.model_copy(update={"snapshot_id": 7})
    files = [
        StatisticsFile(
            snapshot_id=snapshot_id,
            statistics_path=path,
            file_size_in_bytes=1,
            file_footer_size_in_bytes=1,
            blob_metadata=[],
        )
        for snapshot_id, path in ((first.snapshot_id, "one"), (7, "both"), (9, "kept"))
    ]
    files.append(files[1].model_copy(update={"snapshot_id": first.snapshot_id}))
    table.metadata = table.metadata.model_copy(
        update={"snapshots": [*table.snapshots(), copy], "statistics": files}
    )
    alone = find_files_only_reachable_from(table, [first], 20.0)
    assert first.manifest_list not in alone
    assert [path for path in alone if "/" not in path] == ["one"]
    together = find_files_only_reachable_from(table, [first, copy], 20.0)
    assert first.manifest_list in together
    assert [path for path in together if "/" not in path] == ["both", "one"]


def test_a_file_that_somebody_refers_to_again_while_it_is_judged_stays(
    sink: SinkOnTable, server: ServerChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal is judged again by the newer version of the table, and so are its files."""
    table = sink.load()
    replaced = [task.file.file_path for task in table.scan().plan_files()]
    table.overwrite(rows(50))
    sink.view = sink.table.read()

    def read(*arguments: object) -> list[str]:
        found = right(*arguments)  # type: ignore[arg-type]
        if not read_once:
            read_once.append(1)
            sink.load().add_files(replaced[:1], check_duplicate_files=False)
        return found

    read_once: list[int] = []
    right = snapshot_expiry.find_files_only_reachable_from
    monkeypatch.setattr(snapshot_expiry, "find_files_only_reachable_from", read)
    sink.commit(rows(90))

    assert server.removals == 1
    assert replaced[0] in referred(sink.load())
    assert missing(sink) == []
    assert not any(sink.load().io.new_input(path).exists() for path in replaced[1:])


def test_statistics_that_went_with_their_snapshots_do_not_keep_their_files(
    sink: SinkOnTable, server: ServerChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the table changed while its files were read."""
    table = sink.load()
    there = Path(table.location().removeprefix("file://")) / "metadata" / "partitions.avro"
    there.touch()
    due = table.snapshots()[1].snapshot_id
    path = f"file://{there}"
    file = PartitionStatisticsFile(snapshot_id=due, statistics_path=path, file_size_in_bytes=1)
    update = SetPartitionStatisticsUpdate(partition_statistics=file)
    sink.catalog.commit_table(table, (), (update,))
    sink.view = sink.table.read()

    def read(*arguments: object) -> list[str]:
        found = right(*arguments)  # type: ignore[arg-type]
        with sink.load().transaction() as change:
            change.set_properties({"comment": "changed"})
        return found

    right = snapshot_expiry.find_files_only_reachable_from
    monkeypatch.setattr(snapshot_expiry, "find_files_only_reachable_from", read)
    sink.commit(rows(90))
    assert server.removals == 1
    assert not there.exists()


def test_a_table_made_anew_while_files_were_read_loses_none(
    sink: SinkOnTable, server: ServerChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may lie where the old one's lay."""

    def read(*arguments: object) -> list[str]:
        found = right(*arguments)  # type: ignore[arg-type]
        schema = sink.load().schema()
        sink.catalog.drop_table("db.t")
        sink.catalog.create_table("db.t", schema)
        return found

    right = snapshot_expiry.find_files_only_reachable_from
    monkeypatch.setattr(snapshot_expiry, "find_files_only_reachable_from", read)
    before = {path for path in referred(sink.load()) if path.endswith(".parquet")}
    io = sink.load().io
    sink.commit(rows(90))
    assert server.removals == 0
    assert all(io.new_input(path).exists() for path in before)


@pytest.mark.parametrize("asked", [True, False])
def test_only_metadata_files_that_fell_out_of_the_log_go_and_only_where_that_is_asked(
    server: ServerChecks, *, asked: bool
) -> None:
    properties = {
        "write.metadata.delete-after-commit.enabled": str(asked).lower(),
        "write.metadata.previous-versions-max": "2",
    }
    sink = SinkOnTable.claimed(server, {"id": "long"}, properties=properties)  # type: ignore[arg-type]
    for number in range(4):
        sink.commit(rows(number))
    table = sink.load()
    folder = Path(table.location().removeprefix("file://")) / "metadata"
    there = {f"file://{path}" for path in folder.glob("*.json")}
    named = {entry.metadata_file for entry in table.metadata.metadata_log}
    needed = {*named, table.metadata_location}
    assert there == needed if asked else there > needed


def test_what_storage_refuses_waits_and_the_commit_has_landed(
    sink: SinkOnTable, server: ServerChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not tried again at every commit, which it would hold up each time."""

    def refused(*_: object) -> list[str]:
        tried.append(1)
        raise OSError("storage is away")

    tried: list[int] = []
    right = snapshot_expiry.find_files_only_reachable_from
    monkeypatch.setattr(snapshot_expiry, "find_files_only_reachable_from", refused)
    for number in range(90, 93):
        sink.commit(rows(number))
    assert len(tried) == 1
    monkeypatch.setattr(snapshot_expiry, "find_files_only_reachable_from", right)
    sink.commit(rows(93))
    assert server.removals == 0
    monkeypatch.setattr(snapshot_expiry, "_PAUSE_S", 0.0)
    sink.table._upkeep._rest_until_s = 0.0
    sink.commit(rows(94))
    assert server.removals == 1
    assert missing(sink) == []


def test_a_history_that_a_sink_has_no_time_to_read_expires_where_nobody_waits(
    sink: SinkOnTable, server: ServerChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_expiry, "_READING_MAX_S", -1.0)
    sink.commit(rows(90))
    assert server.removals == 0
    upkeep = SnapshotExpiry(server, threads=False)  # type: ignore[arg-type]
    assert upkeep.expire_now(sink.load()) >= DUE
    assert missing(sink) == []


def test_nothing_is_removed_while_a_removal_may_still_land(
    sink: SinkOnTable, server: ServerChecks
) -> None:
    """Until the tag has moved on, so that the one in doubt never will."""
    late: list[Send] = []

    def around(send: Send) -> CommitTableResponse:
        late.append(send)
        raise ConnectionError("nobody knows")

    server.around = around
    sink.commit(rows(90))
    assert server.removals == 1
    doubted = sink.table._upkeep._doubted
    assert doubted is not None
    sink.table._upkeep._maintain_table(sink.load())
    assert sink.table._upkeep._doubted is doubted
    assert server.removals == 1
    sink.commit(rows(91))
    assert server.removals == 2
    assert sink.table._upkeep._doubted is None
    assert missing(sink) == []
