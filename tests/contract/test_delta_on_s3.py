"""A Delta table on S3 keeps the contract, and a store that cannot be its lock is refused."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from contract.delta_table_world import DeltaWorld
from support.object_store import BUCKET, ObjectStore
from support.store_proxy import HANGS, RESETS, StoreProxy, s3_error

from headgate.control_protocol.errors import PutsUnconditional, Unreachable
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.ports import CommitAttempt, Landed, Refused, Staging, Unknown
from headgate.control_protocol.testing.contract import CoreContract, OthersContract
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.delta.open_table import DeltaLocation
from headgate.tables.delta.table_format import DeltaFormat
from headgate.tables.staged_file_lists import StagedFileLists
from headgate.tables.storage.file_io import open_file_io
from headgate.tables.unstaged_secondary_table import FileListSecondaryTable, FixedColumns

HURRIED_S = 2
VERSION = r"_delta_log/\d{20}\.json"


def on(store: ObjectStore, endpoint: str | None = None) -> DeltaWorld:
    return DeltaWorld(f"s3://{BUCKET}/{uuid.uuid4().hex}/t", storage=store.s3(endpoint))


@pytest.mark.soak
class TestDeltaTableOnS3(CoreContract, OthersContract):
    @pytest.fixture
    def world(self, object_store: ObjectStore) -> DeltaWorld:
        return on(object_store)


def test_hg157_a_store_that_overwrites_is_refused(object_store: ObjectStore) -> None:
    with StoreProxy(object_store.port) as proxy:
        world = on(object_store, proxy.uri)
        proxy.dropped = {"if-none-match"}
        table = world.open()
        view = table.read()
        with pytest.raises(PutsUnconditional, match="overwrites what is there"):
            commit(table, view, record(1, 0))
        assert world.open().read() == view
        proxy.dropped = set()
        require_landed(commit(table, view, record(1, 0)))
    written = object_store.keys()
    assert not [key for key in written if "trial" in key]


def test_a_store_that_does_not_answer_is_given_up(object_store: ObjectStore) -> None:
    """delta-rs by itself would ask for three minutes, and the coordinator with it.

    Only while the store hangs is the client told not to wait: this machine may be busy.
    """
    with StoreProxy(object_store.port) as proxy:
        world = on(object_store, proxy.uri)
        view, written = claim_table(world.open()), world.write_file(1)
        patient = world.place
        hurried = {**world.wanted.storage, "s3.request-timeout": str(HURRIED_S)}
        world.place = DeltaLocation.from_spec(replace(world.wanted, storage=hurried))
        proxy.refuse("PUT", HANGS, path=VERSION)
        assert isinstance(commit(world.open(), view, record(1, 1, 3), written), Unknown)
        proxy.refuse(".*", HANGS)
        with pytest.raises(Unreachable):
            world.open().read()
        proxy.pass_on()
        proxy.let_go()
        world.place = patient
        assert world.open().read() == view


@pytest.mark.parametrize("done", [True, False])
def test_a_version_whose_answer_was_lost_is_found_or_put_again(
    object_store: ObjectStore, *, done: bool
) -> None:
    """delta-rs asks again by itself, and hears that the version is there: by us."""
    with StoreProxy(object_store.port) as proxy:
        world = on(object_store, proxy.uri)
        table = world.open()
        view = claim_table(table)
        (proxy.spoils if done else proxy.refuse)("PUT", RESETS, 1, VERSION)
        outcome = commit(table, view, record(1, 1, 3), world.write_file(1))
        assert isinstance(outcome, Landed)
        assert sum(r.method == "PUT" and "_delta_log" in r.path for r in proxy.seen) >= 2
        proxy.pass_on()
        assert isinstance(commit(world.open(), view, record(1, 1, 3), world.write_file(2)), Refused)
        assert world.open().read() == outcome.view
        assert world.visible_file_numbers() == [1]


def test_a_file_that_is_gone_is_refused_for_good_and_an_unanswered_question_is_not(
    object_store: ObjectStore,
) -> None:
    with StoreProxy(object_store.port) as proxy:
        world = on(object_store, proxy.uri)
        table = world.open()
        view, file, lost = claim_table(table), world.write_file(1), world.write_file(2)
        files = open_file_io(world.place.storage, world.uri)
        files.delete(lost.path)
        refused = commit(table, view, record(1, 1, 3), file, lost)
        assert isinstance(refused, Refused)
        assert refused.for_good
        proxy.refuse("HEAD", s3_error(403, "AccessDenied"))
        assert isinstance(commit(table, view, record(1, 1, 3), file), Unknown)
        proxy.pass_on()
        require_landed(commit(table, view, record(1, 1, 3), file))
        assert world.visible_file_numbers() == [1]


def test_the_tables_beside_one_are_listed_and_drafts_lie_in_the_store(
    object_store: ObjectStore,
) -> None:
    world = on(object_store)
    beside = replace(world.wanted, name="db.more", location=world.wanted.location + "_more")
    DeltaFormat().create(beside)
    assert sorted(DeltaFormat().list_table_names(beside)) == ["t", "t_more"]
    table = world.open()
    drafts = StagedFileLists(world.place.storage, world.place.location, SinkName("sink"), kept_ms=0)
    secondary = FileListSecondaryTable(table, FixedColumns(table), drafts)
    transaction = TransactionId(Epoch(1), TransactionNumber(1))
    draft = Staging(table.read(), transaction, Sender("member", "1"), (world.write_file(7),))
    (pending_commit,) = secondary.stage(draft)
    behind = TransactionId(Epoch(1), TransactionNumber(2))
    (undecided,) = secondary.stage(replace(draft, transaction=behind))
    said = replace(record(1, 1), primary="uuid-of-the-lead")
    require_landed(
        secondary.commit(CommitAttempt(secondary.read(), said, pending_commits=(pending_commit,)))
    )
    assert world.visible_file_numbers() == [7]
    secondary.delete_undecided_manifests(Epoch(2), frozenset())
    assert len(drafts.read_list(pending_commit.manifest)) == 1
    with pytest.raises(FileNotFoundError):
        drafts.read_list(undecided.manifest)
