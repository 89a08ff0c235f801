"""StagedManifest manifests as snapshots list them, and those that belong to nobody (PENDING-2,
PENDING-5)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from integration.iceberg.sink_commits import SINK, SinkOnTable, record
from pyiceberg.io import InputFile
from pyiceberg.table.update import RemovePartitionSpecsUpdate
from support.iceberg_files import write_files
from support.local_catalog import local_catalog

from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import TableChanged, Unreachable
from headgate.control_protocol.identifiers import Epoch, Sender, TransactionId, TransactionNumber
from headgate.control_protocol.ports import CommitAttempt, Staging
from headgate.tables.iceberg.pending_manifests import (
    find_undecided_manifests,
    read_staged_files,
    read_staged_manifest,
    stage_pending_commits,
)

COLUMNS = {"id": "long", "day": "int"}


@pytest.fixture
def sink(tmp_path: Path) -> SinkOnTable:
    catalog = local_catalog(tmp_path).catalog
    return SinkOnTable.claimed(catalog, COLUMNS, ["day"])


def staged(sink: SinkOnTable, number: int = 1) -> tuple[PendingCommit, ...]:
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "day": pa.array([3, 4], pa.int32())})
    transaction = TransactionId(Epoch(1), TransactionNumber(number))
    files = write_files(sink.load(), rows)
    staging = Staging(sink.view, transaction, Sender("member", "life"), files, 0)
    return stage_pending_commits(sink.load(), SINK, staging)


def test_a_manifest_is_listed_under_its_own_spec(sink: SinkOnTable) -> None:
    """Summaries save readers work, where the column of each partition field is still there."""
    with sink.load().update_spec() as spec:
        spec.add_identity("id")
    (pending_commit,) = staged(sink)
    current = sink.load().metadata.default_spec_id
    assert current > 0
    found = read_staged_manifest(sink.load(), pending_commit, 77)
    assert found.manifest.partition_spec_id == current
    assert [file.spec_id for file in found.files] == [current] * 2
    assert [
        file.spec_id for file in read_staged_files(sink.load().io, pending_commit.manifest)
    ] == [current] * 2
    summary, _ = found.manifest.partitions
    assert (summary.lower_bound, summary.upper_bound) == (b"\x03\0\0\0", b"\x04\0\0\0")


def test_a_manifest_is_listed_when_its_partition_column_is_gone(sink: SinkOnTable) -> None:
    (pending_commit,) = staged(sink)
    with sink.load().update_spec() as spec:
        spec.remove_field("day")
    with sink.load().update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("day")
    found = read_staged_manifest(sink.load(), pending_commit, 77)
    assert not found.manifest.partitions
    assert found.manifest.added_rows_count == 2


def test_hg208_a_manifest_whose_partition_spec_was_removed_is_named(sink: SinkOnTable) -> None:
    """No snapshot used it any more, and somebody's expiry cleans such things up."""
    (pending_commit,) = staged(sink)
    with sink.load().update_spec() as spec:
        spec.remove_field("day")
    removal = RemovePartitionSpecsUpdate(spec_ids=[0])
    sink.catalog.commit_table(sink.load(), (), (removal,))
    attempt = CommitAttempt(sink.table.read(), record(1, 1), pending_commits=(pending_commit,))
    with pytest.raises(TableChanged, match=r"partition spec 0 .* is gone") as raised:
        sink.table.commit(attempt)
    assert "cleanExpiredMetadata" in raised.value.hint


def test_a_delivery_fetches_a_manifest_once(
    sink: SinkOnTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pending_commit,) = staged(sink)
    table, fetched = sink.load(), list[str]()
    open_input = table.io.new_input

    def counting(location: str) -> InputFile:
        fetched.append(location)
        return open_input(location)

    monkeypatch.setattr(table.io, "new_input", counting)
    assert len(read_staged_manifest(table, pending_commit, 77).files) == 2
    assert fetched == [pending_commit.manifest]


def test_only_drafts_of_earlier_epochs_belong_to_nobody(sink: SinkOnTable) -> None:
    """Whatever else lies in the sink's folder is not a staging."""
    (first,) = staged(sink, 1)
    (second,) = staged(sink, 2)
    folder = Path(first.manifest.removeprefix("file://")).parent
    odd = folder.parent / "odd-life"
    odd.mkdir()
    (odd / "1-s0.avro").touch()
    table = sink.load()
    assert find_undecided_manifests(table, SINK, Epoch(1), frozenset()) == []
    assert find_undecided_manifests(table, SINK, Epoch(2), frozenset()) == sorted(
        [first.manifest, second.manifest]
    )
    assert find_undecided_manifests(table, SINK, Epoch(2), frozenset({first.manifest})) == [
        second.manifest
    ]


def test_a_draft_that_a_rollback_left_behind_is_still_the_tables(sink: SinkOnTable) -> None:
    """Another rollback may return to its snapshot, which no newer one goes on from."""
    claim = sink.view.head
    assert claim is not None
    (first,) = staged(sink, 1)
    attempt = CommitAttempt(sink.view, record(1, 1), pending_commits=(first,))
    sink.land(sink.table.commit(attempt))
    sink.load().manage_snapshots().rollback_to_snapshot(claim).commit()
    rows = pa.table({"id": pa.array([7], pa.int64()), "day": pa.array([3], pa.int32())})
    sink.load().append(rows)
    assert find_undecided_manifests(sink.load(), SINK, Epoch(2), frozenset()) == []


def test_pending_2_what_a_renamed_table_lives_on_is_not_undecided_of_the_table_in_its_place(
    sink: SinkOnTable,
) -> None:
    """A SQL or Hive catalog gives a new table the location of the one that had its name."""
    (delivered,) = staged(sink)
    sink.land(
        sink.table.commit(CommitAttempt(sink.view, record(1, 1), pending_commits=(delivered,)))
    )
    sink.catalog.rename_table("db.t", "db.archive")
    anew = SinkOnTable.claimed(sink.catalog, COLUMNS, ["day"])
    assert anew.load().location() == sink.catalog.load_table("db.archive").location()
    (undecided,) = staged(anew, 2)
    assert find_undecided_manifests(anew.load(), SINK, Epoch(2), frozenset()) == [
        undecided.manifest
    ]


def test_what_was_staged_before_tables_had_folders_is_delivered_and_left_where_it_is(
    sink: SinkOnTable,
) -> None:
    """Nothing tells whose it is, once it is not pending any more."""
    (pending,) = staged(sink)
    former = Path(pending.manifest.removeprefix("file://"))
    folder = former.parent.parent.parent / former.parent.name
    folder.mkdir()
    path = former.rename(folder / former.name)
    pending = replace(pending, manifest=path.as_uri())
    sink.land(sink.table.commit(CommitAttempt(sink.view, record(1, 1), pending_commits=(pending,))))
    assert len(sink.load().scan().to_arrow()) == 2
    (folder / "2-s0.avro").touch()
    assert find_undecided_manifests(sink.load(), SINK, Epoch(2), frozenset()) == []


def test_two_tables_in_one_location_receive_their_own_rows_of_a_transaction(
    sink: SinkOnTable,
) -> None:
    first = sink.load()
    sink.catalog.create_table("db.u", first.schema(), first.location(), first.spec())
    beside = SinkOnTable.claimed(sink.catalog, COLUMNS, identifier="db.u")

    def rows(number: int) -> pa.Table:
        return pa.table({"id": pa.array([number], pa.int64()), "day": pa.array([3], pa.int32())})

    transaction = TransactionId(Epoch(1), TransactionNumber(1))
    pending = [
        (each, each.table.stage(Staging(each.view, transaction, Sender("member", "life"), files)))
        for each, number in ((sink, 7), (beside, 8))
        for files in (write_files(each.load(), rows(number)),)
    ]
    for each, pending_commits in pending:
        attempt = CommitAttempt(each.view, record(1, 1), pending_commits=pending_commits)
        each.land(each.table.commit(attempt))
    assert [each.load().scan().to_arrow()["id"].to_pylist() for each, _ in pending] == [[7], [8]]


def test_what_is_staged_again_overwrites_nothing(sink: SinkOnTable) -> None:
    """The first call may have timed out, and write its file yet: of another length, by another
    schema."""
    first, second = (pending_commit.manifest for _ in range(2) for pending_commit in staged(sink))
    assert first != second
    assert find_undecided_manifests(sink.load(), SINK, Epoch(2), frozenset()) == sorted(
        [first, second]
    )


def test_a_store_that_may_not_be_written_to_is_named_by_its_code(
    sink: SinkOnTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ELECTION-2: it is an answer, so the leader stays."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "AWS Error ACCESS_DENIED during PutObject operation")

    monkeypatch.setattr("headgate.tables.iceberg.table.stage_pending_commits", refuse)
    transaction = TransactionId(Epoch(1), TransactionNumber(1))
    with pytest.raises(Unreachable, match=r"HG-103 .*its manifests could not be written"):
        sink.table.stage(Staging(sink.view, transaction, Sender("member", "life"), ()))


def test_nothing_is_staged_for_a_table_that_took_the_name_of_the_one_that_was_read(
    sink: SinkOnTable,
) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64()), "day": pa.array([3], pa.int32())})
    files = write_files(sink.load(), rows)
    transaction = TransactionId(Epoch(1), TransactionNumber(1))
    earlier = replace(sink.view, uuid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(Unreachable, match=r"another table now; nothing was staged"):
        sink.table.stage(Staging(earlier, transaction, Sender("member", "life"), files))
    folder = Path(sink.load().location().removeprefix("file://"), "metadata", "headgate")
    assert not folder.exists()
