"""KEY-3, PENDING-5, PENDING-7: a delivery resolves the keys of all its pending commits at once, and
key files outlive it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table.refs import MAIN_BRANCH
from support.keyed_pending_commits import PRIMARY, PendingTable, Unfolded, walk
from support.keyed_world import COLUMNS, NAME, SINK, Event, keyed_table
from support.local_catalog import local_catalog
from unit.operations.audit.test_keyed_tables import SINK_FILE

from headgate.config.load import parse
from headgate.config.maintenance_settings import MaintenanceSettings
from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.errors import KeyChanged, KeyInTwoPartitions
from headgate.control_protocol.ports import Landed, Unknown
from headgate.coordinator.secondary_pending_commits import build_deliveries
from headgate.operations.audit.table_checks import check_pending_files
from headgate.runtime.maintenance.table_maintenance import Round
from headgate.tables.iceberg import prepared_commit
from headgate.tables.iceberg.pending_manifests import read_staged_files
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return local_catalog(tmp_path).catalog


@pytest.fixture
def pending(catalog: Catalog) -> PendingTable:
    return PendingTable.create(catalog)


def put(key: int, zone: str = "a", partition: int = 0) -> Event:
    return Event((key,), zone, partition)


def gone(key: int) -> Event:
    return Event((key,))


def counts(outcome: object) -> KeyCounts:
    assert isinstance(outcome, Landed), outcome
    assert outcome.view.record is not None
    assert outcome.view.record.keys is not None
    return outcome.view.record.keys


def test_pending_2_a_draft_names_rows_and_key_files_by_manifests_of_their_own(
    pending: PendingTable,
) -> None:
    rows, keys = pending.decides([put(1), put(2), gone(1)])

    assert (rows.rows, rows.deletes, keys.rows, keys.deletes) == (2, 0, 0, 1)
    (file,) = read_staged_files(pending.world.load().io, keys.manifest)
    assert file.record_count == 1
    (alone,) = pending.decides([gone(7)])
    assert (alone.rows, alone.deletes, alone.record_count) == (0, 1, 1)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("partition_by", [(), ("zone",)])
def test_pending_5_one_delivery_resolves_all_that_is_pending(
    catalog: Catalog, version: int, partition_by: tuple[str, ...]
) -> None:
    pending = PendingTable.create(catalog, version, *partition_by)
    pending.decides([put(n) for n in range(6)])
    pending.deliver()
    pending.reads()
    pending.decides([put(1, "b"), gone(2), put(9)])
    pending.decides([gone(1), put(2, "c"), gone(9), gone(50)])
    pending.decides([put(3, "d")])

    assert counts(pending.deliver()) == KeyCounts(updated=2, deleted=1, absent=2, superseded=3)
    pending.check()
    assert pending.pending_commits
    assert {pending_commit.transaction.number for pending_commit in pending.reads()} == {2, 3, 4}
    assert pending.pending_commits == ()


def test_key_3_the_last_record_of_a_key_wins_in_whatever_order_pending_commits_are_named(
    pending: PendingTable,
) -> None:
    pending.decides([put(1, "old"), gone(2)])
    pending.decides([put(2, "new"), gone(1)])
    pending.pending_commits = tuple(reversed(pending.pending_commits))
    attempt = pending.delivery()
    newest = replace(attempt.record, transaction=pending.pending_commits[0].transaction)
    assert isinstance(pending.table.commit(replace(attempt, record=newest)), Landed)
    pending.check()


def test_key_3_a_topic_that_was_created_anew_is_newer_than_its_older_self(
    pending: PendingTable,
) -> None:
    """Its offsets begin at 0 again; what was decided before is pending still."""
    pending.decides([put(1, "old"), put(2), put(3, "old"), gone(4), put(5)])
    pending.world.source.offsets.clear()
    pending.decides([put(4, "new"), put(1, "new"), gone(5)])

    assert counts(pending.deliver()) == KeyCounts(inserted=4, absent=1, superseded=3)
    pending.check()


def test_key_5_who_was_overtaken_finds_the_keys_anew(
    pending: PendingTable, catalog: Catalog
) -> None:
    pending.decides([put(1), put(2)])
    zombie, stale = keyed_table(catalog, ("id",)), pending.delivery()
    pending.deliver()
    pending.check()

    assert not isinstance(zombie.commit(stale), Landed)
    pending.check()


def test_pending_7_key_files_stay_until_a_read_shows_that_they_are_delivered(
    pending: PendingTable, tmp_path: Path
) -> None:
    pending.decides([put(1), gone(2)])
    before = pending.key_files(tmp_path)
    assert len(before) == 1

    pending.deliver()
    assert pending.key_files(tmp_path) == before  # an answer may lie
    (keys,) = (pending_commit for pending_commit in pending.reads() if pending_commit.deletes)
    assert pending.key_files(tmp_path) == set()
    assert not Path(keys.manifest.removeprefix("file://")).exists()


def test_pending_7_a_key_file_that_is_gone_leaves_the_pending_commit_pending(
    pending: PendingTable, tmp_path: Path
) -> None:
    pending.decides([put(1), gone(2)])
    for file in tmp_path.rglob("keys-*.parquet"):
        file.unlink()

    assert isinstance(pending.deliver(), Unknown)
    assert pending.reads() == ()
    assert pending.pending_commits


def test_key_8_a_key_of_two_partitions_is_refused_before_anything_is_sent(
    pending: PendingTable,
) -> None:
    pending.decides([put(1, partition=0)])
    pending.deliver()
    pending.reads()
    pending.decides([put(1, partition=1)])

    with pytest.raises(KeyInTwoPartitions, match="nothing was committed"):
        pending.deliver()
    assert pending.table.read().record.transaction.number == 1  # type: ignore[union-attr]


def test_key_1_what_is_pending_by_a_key_is_not_delivered_without_one(
    pending: PendingTable, catalog: Catalog
) -> None:
    """The key was taken out of the sink file while something was pending."""
    pending.decides([gone(1)])
    with pytest.raises(KeyChanged):
        pending.deliver(IcebergTable(catalog, NAME, SINK, threads=False))


def test_key_1_nor_where_nothing_was_delivered_before(catalog: Catalog) -> None:
    create_table_if_missing(catalog, NAME, TableDeclaration(COLUMNS, key=("id",)))
    pending = PendingTable.create(catalog)
    pending.decides([gone(1)])
    plain = IcebergTable(catalog, NAME, SINK, threads=False)
    delivery = pending.delivery()
    with pytest.raises(KeyChanged):
        plain.commit(delivery)


def test_key_1_nothing_is_drafted_for_a_table_of_another_key(
    pending: PendingTable, catalog: Catalog
) -> None:
    pending.decides([put(1)])
    pending.deliver()
    pending.world.table = keyed_table(catalog, ("id", "name"))
    with pytest.raises(KeyChanged, match=r"filled by the key of columns \[1\]"):
        pending.decides([put(2)])


def test_key_11_the_sinks_own_compaction_between_decision_and_delivery_loses_nothing(
    pending: PendingTable, catalog: Catalog, tmp_path: Path
) -> None:
    for number in range(3):
        pending.decides([put(n) for n in range(number, number + 4)], [gone(0)])
        pending.deliver()
        pending.reads()
    pending.decides([put(1, "z"), gone(4)])
    stale = pending.delivery()
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    properties = f'type = "sql"\nuri = "{uri}"\nwarehouse = "{warehouse}"'
    known = parse(SINK_FILE.format(sink=SINK, catalog="local", properties=properties, table=NAME))
    wanted = MaintenanceSettings(files_min=2, dead_per_thousand=1)
    compaction = Round(replace(known, maintenance=wanted), catalog, NAME, quiet=lambda: None)
    compaction.compact()
    assert compaction.done.compacted_files > 0
    pending.check()

    assert not isinstance(pending.table.commit(stale), Landed)
    assert counts(pending.deliver()).updated == 1
    pending.check()


def test_pending_7_the_audit_of_a_running_sink_misses_no_key_file_that_was_delivered_meanwhile(
    pending: PendingTable, tmp_path: Path
) -> None:
    pending.decides([put(1), gone(2)])
    (keys,) = (
        pending_commit for pending_commit in pending.pending_commits if pending_commit.deletes
    )
    before = IcebergReader(pending.world.load(), SINK, MAIN_BRANCH)
    pending.deliver()
    pending.reads()
    assert check_pending_files(before, keys, PRIMARY) == []

    (keys,) = (
        pending_commit for pending_commit in pending.decides([gone(1)]) if pending_commit.deletes
    )
    assert check_pending_files(before, keys, PRIMARY) == []
    for file in tmp_path.rglob("keys-*.parquet"):
        file.unlink()
    (finding,) = check_pending_files(before, keys, PRIMARY)
    assert finding.what == "pending-commit-missing"


class LostAnswer:
    """A catalog whose commits land, and whose answers are lost."""

    def __init__(self, real: Catalog) -> None:
        self._real = real

    def commit_table(self, *arguments: Any) -> None:
        self._real.commit_table(*arguments)
        raise ConnectionError("the answer was lost")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("together", [True, False], ids=["in one delivery", "in two"])
def test_key_8_a_delivery_across_growth_resolves_keys_that_moved(
    catalog: Catalog, pending: PendingTable, *, together: bool
) -> None:
    """Keys go to partition 1, which is younger: what it says counts, with lower offsets."""
    pending.decides([put(n) for n in range(8)])
    pending.decides([gone(0), put(4, "b")])
    if not together:
        pending.deliver()
        pending.reads()
        pending.restarts("another")
    pending.decides([put(0, "c", 1), put(1, "c", 1), Event((2,), None, 1), Event((3,), None, 1)])
    pending.decides([put(2, "d", 1)])
    with pytest.raises(KeyInTwoPartitions):
        pending.deliver()
    pending.cohorts = {"topic": (1,)}
    assert isinstance(pending.deliver(), Landed)
    pending.check()
    pending.reads()
    pending.decides([Event((4,), None, 1)])
    pending.deliver(keyed_table(catalog, ("id",)))
    pending.check()
    pending.decides([put(1, "too late")])
    with pytest.raises(KeyInTwoPartitions):
        pending.deliver()


@pytest.mark.parametrize(("seed", "grows_at"), [(0, None), (1, 12)])
def test_pending_5_whoever_delivers_dies_or_comes_late_the_table_is_the_fold(
    catalog: Catalog, seed: int, grows_at: int | None
) -> None:
    pending = PendingTable.create(catalog, 2 + seed % 2)
    walk(pending, seed, LostAnswer(catalog), grows_at=grows_at)  # type: ignore[arg-type]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 200))
def test_pending_5_whoever_delivers_dies_or_comes_late_often(catalog: Catalog, seed: int) -> None:
    pending = PendingTable.create(catalog, 2 + seed % 2)
    grows_at = seed % 25 if seed % 3 else None
    walk(pending, seed, LostAnswer(catalog), grows_at=grows_at)  # type: ignore[arg-type]


def _noticed(catalog: Catalog, pending: PendingTable) -> None:
    with pytest.raises(Unfolded):
        for seed in range(6):
            walk(pending, seed, LostAnswer(catalog))  # type: ignore[arg-type]


def test_mutant_a_delivery_that_resolves_only_the_newest_pending_commit_is_noticed(
    pending: PendingTable, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = prepared_commit.read_key_files_of
    monkeypatch.setattr(
        prepared_commit,
        "read_key_files_of",
        lambda io, pending_commits: true(io, pending_commits[-1:]),
    )
    _noticed(catalog, pending)


def test_mutant_a_delivery_of_only_the_newest_transaction_is_noticed(
    pending: PendingTable, catalog: Catalog
) -> None:
    def newest(primary: Any, pending_commits: Any, secondaries: Any, late: Any) -> Any:
        last = pending_commits[-1].transaction
        return build_deliveries(
            primary, tuple(d for d in pending_commits if d.transaction == last), secondaries, late
        )

    pending.delivers = newest
    _noticed(catalog, pending)


def test_mutant_key_files_that_go_before_the_acknowledge_are_noticed(
    pending: PendingTable, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the word of the decision, or of any answer to the call."""
    true = PendingTable.decides

    def hasty(self: PendingTable, *statuses: Any) -> Any:
        made = true(self, *statuses)
        self.table.delete_delivered_key_files(
            [pending_commit for pending_commit in made if pending_commit.deletes]
        )
        return made

    monkeypatch.setattr(PendingTable, "decides", hasty)
    _noticed(catalog, pending)


def test_a_claim_of_no_rows_says_nothing_of_keys(pending: PendingTable) -> None:
    """An empty pending commit moves the tag, and resolves nothing."""
    pending.decides([put(1)])
    assert isinstance(pending.table.commit(replace(pending.delivery(), pending_commits=())), Landed)
    record = pending.table.read().record
    assert record is not None
    assert record.keys is None
