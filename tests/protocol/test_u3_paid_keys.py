"""U3, D5, D7: a payment resolves the keys of all its debts at once, and key files outlive it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from keyed_debts import LEAD, OwedTable, Unfolded, walk
from keyed_world import COLUMNS, NAME, SINK, Event, keyed_table
from local_catalog import local_catalog
from pyiceberg.catalog import Catalog
from pyiceberg.table.refs import MAIN_BRANCH
from unit.operations.audit.test_keyed_table import SINK_FILE

from headgate.config.load import parse
from headgate.config.maintenance_settings import MaintenanceSettings
from headgate.control_protocol.key_errors import KeyChanged, KeyInTwoPartitions
from headgate.control_protocol.ports import Landed, Unknown
from headgate.control_protocol.record import KeyCounts
from headgate.coordinator.debts import payments
from headgate.operations.audit.many_tables import examine_owed
from headgate.runtime.maintenance.rounds import Round
from headgate.tables.iceberg import prepared_commit
from headgate.tables.iceberg.pending_manifests import drafted_files
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, ensure_table


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return local_catalog(tmp_path).catalog


@pytest.fixture
def owed(catalog: Catalog) -> OwedTable:
    return OwedTable.made(catalog)


def put(key: int, zone: str = "a", partition: int = 0) -> Event:
    return Event((key,), zone, partition)


def gone(key: int) -> Event:
    return Event((key,))


def counts(outcome: object) -> KeyCounts:
    assert isinstance(outcome, Landed), outcome
    assert outcome.view.record is not None
    assert outcome.view.record.keys is not None
    return outcome.view.record.keys


def test_d2_a_draft_names_rows_and_key_files_by_manifests_of_their_own(owed: OwedTable) -> None:
    rows, keys = owed.decides([put(1), put(2), gone(1)])

    assert (rows.rows, rows.deletes, keys.rows, keys.deletes) == (2, 0, 0, 1)
    (file,) = drafted_files(owed.world.loaded().io, keys.manifest)
    assert file.record_count == 1
    (alone,) = owed.decides([gone(7)])
    assert (alone.rows, alone.deletes, alone.records) == (0, 1, 1)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("partition_by", [(), ("zone",)])
def test_d5_one_payment_resolves_all_that_is_owed(
    catalog: Catalog, version: int, partition_by: tuple[str, ...]
) -> None:
    owed = OwedTable.made(catalog, version, *partition_by)
    owed.decides([put(n) for n in range(6)])
    owed.paid()
    owed.reads()
    owed.decides([put(1, "b"), gone(2), put(9)])
    owed.decides([gone(1), put(2, "c"), gone(9), gone(50)])
    owed.decides([put(3, "d")])

    assert counts(owed.paid()) == KeyCounts(updated=2, deleted=1, absent=2, superseded=3)
    owed.check()
    assert owed.debts
    assert {debt.transaction.number for debt in owed.reads()} == {2, 3, 4}
    assert owed.debts == ()


def test_u3_the_last_record_of_a_key_wins_in_whatever_order_debts_are_named(
    owed: OwedTable,
) -> None:
    owed.decides([put(1, "old"), gone(2)])
    owed.decides([put(2, "new"), gone(1)])
    owed.debts = tuple(reversed(owed.debts))
    attempt = owed.payment()
    newest = replace(attempt.record, transaction=owed.debts[0].transaction)
    assert isinstance(owed.table.commit(replace(attempt, record=newest)), Landed)
    owed.check()


def test_u3_a_topic_that_was_created_anew_is_newer_than_its_older_self(owed: OwedTable) -> None:
    """Its offsets begin at 0 again; what was decided before is owed still."""
    owed.decides([put(1, "old"), put(2), put(3, "old"), gone(4), put(5)])
    owed.world.source.offsets.clear()
    owed.decides([put(4, "new"), put(1, "new"), gone(5)])

    assert counts(owed.paid()) == KeyCounts(inserted=4, absent=1, superseded=3)
    owed.check()


def test_u5_who_was_overtaken_finds_the_keys_anew(owed: OwedTable, catalog: Catalog) -> None:
    owed.decides([put(1), put(2)])
    zombie, stale = keyed_table(catalog, ("id",)), owed.payment()
    owed.paid()
    owed.check()

    assert not isinstance(zombie.commit(stale), Landed)
    owed.check()


def test_d7_key_files_stay_until_a_read_shows_that_they_are_paid(
    owed: OwedTable, tmp_path: Path
) -> None:
    owed.decides([put(1), gone(2)])
    before = owed.key_files(tmp_path)
    assert len(before) == 1

    owed.paid()
    assert owed.key_files(tmp_path) == before  # an answer may lie
    (keys,) = (debt for debt in owed.reads() if debt.deletes)
    assert owed.key_files(tmp_path) == set()
    assert not Path(keys.manifest.removeprefix("file://")).exists()


def test_d7_a_key_file_that_is_gone_leaves_the_debt_owed(owed: OwedTable, tmp_path: Path) -> None:
    owed.decides([put(1), gone(2)])
    for file in tmp_path.rglob("keys-*.parquet"):
        file.unlink()

    assert isinstance(owed.paid(), Unknown)
    assert owed.reads() == ()
    assert owed.debts


def test_u8_a_key_of_two_partitions_is_refused_before_anything_is_sent(owed: OwedTable) -> None:
    owed.decides([put(1, partition=0)])
    owed.paid()
    owed.reads()
    owed.decides([put(1, partition=1)])

    with pytest.raises(KeyInTwoPartitions, match="nothing was committed"):
        owed.paid()
    assert owed.table.read().record.transaction.number == 1  # type: ignore[union-attr]


def test_u1_what_is_owed_by_a_key_is_not_paid_without_one(
    owed: OwedTable, catalog: Catalog
) -> None:
    """The key was taken out of the sink file while something was owed."""
    owed.decides([gone(1)])
    with pytest.raises(KeyChanged):
        owed.paid(IcebergTable(catalog, NAME, SINK, threads=False))


def test_u1_nor_where_nothing_was_paid_before(catalog: Catalog) -> None:
    ensure_table(catalog, NAME, TableDeclaration(COLUMNS, key=("id",)))
    owed = OwedTable.made(catalog)
    owed.decides([gone(1)])
    plain = IcebergTable(catalog, NAME, SINK, threads=False)
    payment = owed.payment()
    with pytest.raises(KeyChanged):
        plain.commit(payment)


def test_u1_nothing_is_drafted_for_a_table_of_another_key(
    owed: OwedTable, catalog: Catalog
) -> None:
    owed.decides([put(1)])
    owed.paid()
    owed.world.table = keyed_table(catalog, ("id", "name"))
    with pytest.raises(KeyChanged, match=r"filled by the key of columns \[1\]"):
        owed.decides([put(2)])


def test_u11_the_sinks_own_compaction_between_decision_and_payment_loses_nothing(
    owed: OwedTable, catalog: Catalog, tmp_path: Path
) -> None:
    for number in range(3):
        owed.decides([put(n) for n in range(number, number + 4)], [gone(0)])
        owed.paid()
        owed.reads()
    owed.decides([put(1, "z"), gone(4)])
    stale = owed.payment()
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    properties = f'type = "sql"\nuri = "{uri}"\nwarehouse = "{warehouse}"'
    known = parse(SINK_FILE.format(sink=SINK, catalog="local", properties=properties, table=NAME))
    wanted = MaintenanceSettings(files_min=2, dead_per_thousand=1)
    compaction = Round(replace(known, maintenance=wanted), catalog, NAME, quiet=lambda: None)
    compaction.compact()
    assert compaction.done.compacted_files > 0
    owed.check()

    assert not isinstance(owed.table.commit(stale), Landed)
    assert counts(owed.paid()).updated == 1
    owed.check()


def test_d7_the_audit_of_a_running_sink_misses_no_key_file_that_was_paid_meanwhile(
    owed: OwedTable, tmp_path: Path
) -> None:
    owed.decides([put(1), gone(2)])
    (keys,) = (debt for debt in owed.debts if debt.deletes)
    before = IcebergReader(owed.world.loaded(), SINK, MAIN_BRANCH)
    owed.paid()
    owed.reads()
    assert examine_owed(before, keys, LEAD) == []

    (keys,) = (debt for debt in owed.decides([gone(1)]) if debt.deletes)
    assert examine_owed(before, keys, LEAD) == []
    for file in tmp_path.rglob("keys-*.parquet"):
        file.unlink()
    (finding,) = examine_owed(before, keys, LEAD)
    assert finding.what == "debt-missing"


class LostAnswer:
    """A catalog whose commits land, and whose answers are lost."""

    def __init__(self, real: Catalog) -> None:
        self._real = real

    def commit_table(self, *arguments: Any) -> None:
        self._real.commit_table(*arguments)
        raise ConnectionError("the answer was lost")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("together", [True, False], ids=["in one payment", "in two"])
def test_u8_a_payment_across_growth_resolves_keys_that_moved(
    catalog: Catalog, owed: OwedTable, *, together: bool
) -> None:
    """Keys go to partition 1, which is younger: what it says counts, with lower offsets."""
    owed.decides([put(n) for n in range(8)])
    owed.decides([gone(0), put(4, "b")])
    if not together:
        owed.paid()
        owed.reads()
        owed.restarts("another")
    owed.decides([put(0, "c", 1), put(1, "c", 1), Event((2,), None, 1), Event((3,), None, 1)])
    owed.decides([put(2, "d", 1)])
    with pytest.raises(KeyInTwoPartitions):
        owed.paid()
    owed.generations = {"topic": (1,)}
    assert isinstance(owed.paid(), Landed)
    owed.check()
    owed.reads()
    owed.decides([Event((4,), None, 1)])
    owed.paid(keyed_table(catalog, ("id",)))
    owed.check()
    owed.decides([put(1, "too late")])
    with pytest.raises(KeyInTwoPartitions):
        owed.paid()


@pytest.mark.parametrize(("seed", "grows_at"), [(0, None), (1, 12)])
def test_d5_whoever_pays_dies_or_comes_late_the_table_is_the_fold(
    catalog: Catalog, seed: int, grows_at: int | None
) -> None:
    owed = OwedTable.made(catalog, 2 + seed % 2)
    walk(owed, seed, LostAnswer(catalog), grows_at=grows_at)  # type: ignore[arg-type]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 200))
def test_d5_whoever_pays_dies_or_comes_late_often(catalog: Catalog, seed: int) -> None:
    owed = OwedTable.made(catalog, 2 + seed % 2)
    grows_at = seed % 25 if seed % 3 else None
    walk(owed, seed, LostAnswer(catalog), grows_at=grows_at)  # type: ignore[arg-type]


def _noticed(catalog: Catalog, owed: OwedTable) -> None:
    with pytest.raises(Unfolded):
        for seed in range(6):
            walk(owed, seed, LostAnswer(catalog))  # type: ignore[arg-type]


def test_mutant_a_payment_that_resolves_only_the_newest_debt_is_noticed(
    owed: OwedTable, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = prepared_commit.drafted_keys
    monkeypatch.setattr(prepared_commit, "drafted_keys", lambda io, debts: true(io, debts[-1:]))
    _noticed(catalog, owed)


def test_mutant_a_payment_of_only_the_newest_transaction_is_noticed(
    owed: OwedTable, catalog: Catalog
) -> None:
    def newest(lead: Any, debts: Any, followers: Any, late: Any) -> Any:
        last = debts[-1].transaction
        return payments(lead, tuple(d for d in debts if d.transaction == last), followers, late)

    owed.pays = newest
    _noticed(catalog, owed)


def test_mutant_key_files_that_go_before_the_strike_off_are_noticed(
    owed: OwedTable, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the word of the decision, or of any answer to the call."""
    true = OwedTable.decides

    def hasty(self: OwedTable, *statuses: Any) -> Any:
        made = true(self, *statuses)
        self.table.strike_off([debt for debt in made if debt.deletes])
        return made

    monkeypatch.setattr(OwedTable, "decides", hasty)
    _noticed(catalog, owed)


def test_a_claim_of_no_rows_says_nothing_of_keys(owed: OwedTable) -> None:
    """An empty debt moves the tag, and resolves nothing."""
    owed.decides([put(1)])
    assert isinstance(owed.table.commit(replace(owed.payment(), debts=())), Landed)
    record = owed.table.read().record
    assert record is not None
    assert record.keys is None
