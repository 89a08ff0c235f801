"""What one commit asks of the catalog, and what is made of a refusal: manifests are taken back only
from a snapshot that cannot land."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contract.iceberg_table_world import NAME, IcebergWorld
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    UnauthorizedError,
)
from pyiceberg.table import CommitTableResponse
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.types import LongType
from support.server_checks import ServerChecks

from headgate.control_protocol.errors import CommitRejected, TagsDropped
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Lineage,
    PrimaryTable,
    Refused,
    Unknown,
)
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.iceberg import commit_request, expired_lineage
from headgate.tables.iceberg.table import IcebergTable

Commit = Callable[[], CommitTableResponse]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[IcebergWorld]:
    world = IcebergWorld(tmp_path)
    yield world
    world.close()


def missing(world: IcebergWorld) -> list[str]:
    """Files that a snapshot of the table refers to and that are not there."""
    table = world.table()
    paths = set()
    for snapshot in table.snapshots():
        paths.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            paths.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            paths |= {entry.data_file.file_path for entry in entries}
    return sorted(path for path in paths if not table.io.new_input(path).exists())


def manifests(world: IcebergWorld) -> set[str]:
    folder = Path(world.table().location().removeprefix("file://"))
    return {path.name for path in folder.rglob("*.avro")}


def refused_after(world: IcebergWorld, happens: Callable[[Commit], object]) -> CommitOutcome:
    """The outcome of a commit around whose call something happens, and that is refused then."""
    table = world.open()
    view = claim_table(table)

    def lie(send: Commit) -> CommitTableResponse:
        happens(send)
        raise CommitFailedException("the tag has moved")

    world.lie_next(lie)
    return commit(table, view, record(1, 1, 3), world.write_file(1))


def heir(world: IcebergWorld) -> PrimaryTable:
    """Another coordinator claims the table, and commits."""
    table = world.open()
    view = claim_table(table, epoch=2)
    require_landed(commit(table, view, record(2, 1, 6), world.write_file(2)))
    return table


def test_manifests_that_others_went_on_from_are_never_taken_back(
    world: IcebergWorld,
) -> None:
    """A proxy sends a landed commit twice; before the table is asked, an heir has moved the tag."""

    def happens(send: Commit) -> None:
        send()
        heir(world)

    outcome = refused_after(world, happens)

    assert isinstance(outcome, Unknown)
    assert missing(world) == []
    assert world.visible_file_numbers() == [1, 2]


def test_a_landed_commit_that_is_refused_the_second_time_has_landed(
    world: IcebergWorld,
) -> None:
    outcome = refused_after(world, lambda send: send())

    assert isinstance(outcome, Landed)
    assert missing(world) == []
    assert world.visible_file_numbers() == [1]


def test_a_landed_commit_is_whole_after_a_compaction_by_others(
    world: IcebergWorld,
) -> None:
    def happens(send: Commit) -> None:
        send()
        world.compact()

    outcome = refused_after(world, happens)

    assert isinstance(outcome, Landed)
    assert missing(world) == []
    assert world.visible_file_numbers() == [1]


def test_manifests_are_never_taken_back_on_the_word_of_another_table(
    world: IcebergWorld,
) -> None:
    """The call landed, and the table was renamed: numbers of its successor say nothing of it."""

    def happens(send: Commit) -> None:
        send()
        world.catalog.rename_table(NAME, "db.archive")
        world._create()
        heir(world)

    outcome = refused_after(world, happens)

    assert not isinstance(outcome, Landed)
    archive = world.catalog.load_table("db.archive").scan().to_arrow()
    assert sorted(archive["number"].to_pylist()) == [1, 1, 1]


def test_manifests_of_a_proven_refusal_go(world: IcebergWorld) -> None:
    before: set[str] = set()

    def happens(_: Commit) -> None:
        heir(world)
        before.update(manifests(world))

    outcome = refused_after(world, happens)

    assert isinstance(outcome, Refused)
    assert missing(world) == []
    assert manifests(world) < before
    assert world.visible_file_numbers() == [2]


def test_manifests_of_a_commit_that_may_still_land_stay(world: IcebergWorld) -> None:
    """Refused, though nothing has moved: a copy of the request may be on its way."""
    before: set[str] = set()
    late: list[Commit] = []

    def happens(send: Commit) -> None:
        late.append(send)
        before.update(manifests(world))

    outcome = refused_after(world, happens)
    late[0]()

    assert isinstance(outcome, Unknown)
    assert before <= manifests(world)
    assert missing(world) == []
    assert world.visible_file_numbers() == [1]


@pytest.mark.parametrize("branch", ["main", "audit"])
def test_a_branch_keeps_the_retention_that_its_owner_asked_for(
    world: IcebergWorld, branch: str
) -> None:
    world.append_foreign(7)
    table = world.open(branch=branch)
    view = require_landed(commit(table, table.read(), record(1, 0)))
    world.keeps(branch, 42)
    require_landed(commit(table, view, record(1, 1, 3), world.write_file(1)))
    ref = world.table().metadata.refs[branch]

    assert ref.min_snapshots_to_keep == 42
    assert (ref.max_snapshot_age_ms, ref.max_ref_age_ms) == (1_000, 2_000)


def test_a_commit_moves_its_own_branch_and_marks_the_table_once(
    world: IcebergWorld,
) -> None:
    """A first claim of an empty table sets main too: servers know of no other ref to ask for."""
    audit = world.open(branch="audit")
    view = require_landed(commit(audit, audit.read(), record(1, 0)))
    refs = world.table().metadata.refs
    assert refs["main"].snapshot_id == refs["audit"].snapshot_id == view.head
    assert world.table().metadata.properties["headgate.sink.claimed"] == "true"
    before = refs["main"]
    require_landed(commit(audit, view, record(1, 1, 3), world.write_file(1)))
    refs = world.table().metadata.refs
    assert refs["main"] == before
    assert refs["audit"] != before


def test_the_tag_outlives_every_age_limit(world: IcebergWorld) -> None:
    claim_table(world.open())
    ref = world.table().metadata.refs["headgate-sink"]

    assert ref.max_ref_age_ms == 2**63 - 1
    assert (ref.max_snapshot_age_ms, ref.min_snapshots_to_keep) == (None, None)


def answering(world: IcebergWorld, error: Exception, *, lands: bool = False) -> None:
    def lie(send: Commit) -> CommitTableResponse:
        if lands:
            send()
        raise error

    world.lie_next(lie)


@pytest.mark.parametrize("error", [ForbiddenError("no"), UnauthorizedError("expired")])
def test_missing_rights_are_named_and_tried_again(world: IcebergWorld, error: Exception) -> None:
    table = world.open()
    view = claim_table(table)
    file = world.write_file(1)
    for _ in range(10):
        answering(world, error)
        outcome = commit(table, view, record(1, 1, 3), file)
        assert isinstance(outcome, Unknown)
        assert outcome.reason.startswith("HG-103 table db.trips cannot be committed to")
    require_landed(commit(table, view, record(1, 1, 3), file))
    assert world.visible_file_numbers() == [1]


def test_a_commit_that_stays_malformed_is_a_named_stop(world: IcebergWorld) -> None:
    table = world.open()
    view = claim_table(table)
    file = world.write_file(1)
    for _ in range(4):
        answering(world, BadRequestError("no such update"))
        assert isinstance(commit(table, view, record(1, 1, 3), file), Unknown)
    answering(world, BadRequestError("no such update"))
    with pytest.raises(CommitRejected, match="no such update") as stop:
        commit(table, view, record(1, 1, 3), file)
    assert (stop.value.code, bool(stop.value.hint)) == ("HG-213", True)
    assert world.visible_file_numbers() == []


def test_a_400_of_a_landed_commit_counts_for_nothing(world: IcebergWorld) -> None:
    table = world.open()
    view = claim_table(table)
    for number in range(1, 8):
        answering(world, BadRequestError("a proxy's own"), lands=True)
        view = require_landed(
            commit(table, view, record(1, number, number), world.write_file(number))
        )
    assert world.visible_file_numbers() == list(range(1, 8))


def test_400s_between_commits_that_land_are_not_in_a_row(world: IcebergWorld) -> None:
    table = world.open()
    view = claim_table(table)
    for number in range(1, 8):
        file = world.write_file(number)
        answering(world, BadRequestError("a proxy's own"))
        assert isinstance(commit(table, view, record(1, number, number), file), Unknown)
        view = require_landed(commit(table, view, record(1, number, number), file))
    assert world.visible_file_numbers() == list(range(1, 8))


def test_a_rollback_while_the_call_is_under_way_is_refused(world: IcebergWorld) -> None:
    """It brings no new snapshot: only the branch's place tells."""
    table = world.open()
    first = require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    view = require_landed(commit(table, first, record(1, 2, 6), world.write_file(2)))

    def lie(send: Commit) -> CommitTableResponse:
        world.roll_back(first.head)  # type: ignore[arg-type]
        return send()

    world.lie_next(lie)
    assert not isinstance(commit(table, view, record(1, 3, 9), world.write_file(3)), Landed)
    assert world.visible_file_numbers() == [1]


def test_of_two_first_claims_a_server_takes_one(tmp_path: Path) -> None:
    """Their snapshots have no parent, so that no sequence number is asked for."""
    world = IcebergWorld(tmp_path)
    server = ServerChecks(world.catalog)
    one, other = (IcebergTable(server, NAME, SinkName("sink")) for _ in range(2))  # type: ignore[arg-type]
    base = one.read()
    sent: list[CommitOutcome] = []

    def first(*arguments: Any) -> CommitTableResponse:
        server.commit_table = right  # type: ignore[method-assign]
        sent.append(other.commit(CommitAttempt(base, record(1, 0))))
        return right(*arguments)

    right = server.commit_table
    server.commit_table = first  # type: ignore[method-assign]
    assert not isinstance(one.commit(CommitAttempt(base, record(1, 0))), Landed)
    assert isinstance(sent[0], Landed)
    assert len(world.table().snapshots()) == 1
    world.close()


def test_newest_files_are_found_in_merged_manifests(world: IcebergWorld) -> None:
    """Old entries lie beside new ones there; one that was only removed is evidence, too."""
    table = world.open()
    view = claim_table(table)
    with world.table().transaction() as change:
        change.set_properties({"commit.manifest.min-count-to-merge": "2"})
    for number in range(1, 5):
        view = require_landed(
            commit(table, view, record(1, number, number), world.write_file(number))
        )
    loaded = world.table()
    tagged = loaded.current_snapshot()
    assert tagged is not None
    newest, since = expired_lineage._read_newest_files(loaded.io, tagged)
    assert since == tagged.sequence_number
    assert len(newest) == 1

    loaded.delete("number == 4")
    head = world.table().current_snapshot()
    assert head is not None
    assert expired_lineage._is_tag_on_line_proven_by_files(loaded.io, [head], tagged)


def test_no_snapshot_is_older_than_the_table(
    world: IcebergWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catalogs refuse time that runs backwards, and a machine's clock may be behind."""
    table = world.open()
    view = claim_table(table)
    monkeypatch.setattr(commit_request, "time", SimpleNamespace(time=lambda: 0.0))
    require_landed(commit(table, view, record(1, 1, 3)))
    first, second = world.table().snapshots()
    assert second.timestamp_ms >= first.timestamp_ms


def test_a_snapshot_says_when_it_was_made_from_what_and_under_which_schema(
    world: IcebergWorld,
) -> None:
    table = world.open()
    view = require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    with world.table().update_schema() as update:
        update.add_column("note", LongType())
    before_ms = int(time.time() * 1000)
    require_landed(commit(table, view, record(1, 2, 6), world.write_file(2)))
    made = world.table().current_snapshot()
    assert made is not None
    assert made.summary is not None
    assert made.parent_snapshot_id == view.head
    assert made.summary["total-data-files"] == "2"
    assert before_ms <= made.timestamp_ms <= int(time.time() * 1000)
    assert made.schema_id == world.table().schema().schema_id != view.schema_id


def test_there_are_no_totals_behind_a_snapshot_that_has_none() -> None:
    """Of a writer that counts nothing: they would count from zero, whatever the table has."""

    def totals_after(parent: Snapshot | None) -> str | None:
        added = Summary(Operation.APPEND, **{"added-records": "3"})
        return commit_request.with_totals_after(parent, added)["total-records"]

    counted = Summary(Operation.APPEND, **{"total-records": "5"})
    parents = [
        Snapshot(snapshot_id=1, manifest_list="", timestamp_ms=0, summary=summary)
        for summary in (counted, Summary(Operation.APPEND), None)
    ]
    assert list(map(totals_after, [None, *parents])) == ["3", "8", None, None]


def test_counts_behind_an_append_of_others_tell_nothing(world: IcebergWorld) -> None:
    """What was there before had as many rows as the tag's; that may have been other rows."""
    table = world.open()
    require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    world.compact()
    world.append_foreign(7)
    world.expire_all()
    world.lose_history()

    assert table.read().lineage is Lineage.UNDECIDABLE


def test_a_tag_deleted_while_the_call_is_under_way_is_not_set_again(
    world: IcebergWorld,
) -> None:
    """Neither head nor sequence number tell: who deletes a tag means to stop the sink."""
    table = world.open()
    view = claim_table(table)

    def lie(send: Commit) -> CommitTableResponse:
        world.delete_tag()
        return send()

    world.lie_next(lie)
    assert not isinstance(commit(table, view, record(1, 1, 3), world.write_file(1)), Landed)
    assert world.open().read().lineage is Lineage.TAG_MISSING


def drop_the_tag(world: IcebergWorld) -> None:
    """With the next commit, whose answer says so."""

    def lie(send: Commit) -> CommitTableResponse:
        send()
        world.delete_tag()
        table = world.table()
        return CommitTableResponse(
            metadata=table.metadata, metadata_location=table.metadata_location
        )

    world.lie_next(lie)


def test_a_catalog_that_drops_the_tag_of_a_first_claim_is_named(
    world: IcebergWorld,
) -> None:
    table = world.open()
    drop_the_tag(world)
    with pytest.raises(TagsDropped, match="dropped the tag headgate-sink") as stop:
        commit(table, table.read(), record(1, 0))
    assert stop.value.code == "HG-214"


def test_a_tag_that_is_removed_later_is_somebody_elses_doing(world: IcebergWorld) -> None:
    table = world.open()
    view = claim_table(table)
    drop_the_tag(world)
    assert isinstance(commit(table, view, record(1, 1, 3), world.write_file(1)), Unknown)
    assert world.open().read().lineage is Lineage.TAG_MISSING
