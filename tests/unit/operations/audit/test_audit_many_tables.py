"""The audit of a sink of many tables: what their quarantine and their late deliveries amount to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyroaring import BitMap64
from unit.operations.audit.test_audit_pending_commits import ASIDE, Owing
from unit.operations.filled_table import FilledTable, sink_file_text
from unit.operations.many_tables.test_rewrite_expired_commits import expires
from unit.operations.routed_shop import (
    AT,
    CLICKS,
    LEDGER,
    ORDERS,
    Shop,
    expire_all_but_refs,
    shop_settings,
)

from headgate.config.load import parse
from headgate.config.multi_table_settings import OneTableSettings
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.identifiers import TopicId, TransactionNumber
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import CommitAttempt, Landed, TopicState
from headgate.control_protocol.table_history import History
from headgate.data_plane.cdc.policy import Tombstones
from headgate.operations.audit import audit as auditing
from headgate.operations.audit.audit import audit
from headgate.operations.audit.files import OnProgress
from headgate.operations.audit.report import AuditReport, Verdict
from headgate.operations.audit.table_checks import AuditedTable
from headgate.operations.audit.table_records import TableRecords, scan_records
from headgate.operations.many_tables.replay_quarantined import replay_tables
from headgate.runtime.sink_tables import SinkTables
from headgate.tables.iceberg.pending_manifests import read_staged_files
from headgate.tables.iceberg.table_creation import create_table_if_missing

Beside = Callable[[int], AuditReport]
GOOD = '{"kind": "clicks"}'


@pytest.fixture
def settings(tmp_path: Path) -> SinkSettings:
    return shop_settings(tmp_path)


@pytest.fixture
def shop(catalog: Catalog, settings: SinkSettings, told: list[str]) -> Shop:
    assert not told
    shop = Shop(catalog, settings)
    shop.commits({ORDERS: [0, 1], CLICKS: [2]})
    return shop


@pytest.fixture
def beside(settings: SinkSettings, monkeypatch: pytest.MonkeyPatch) -> Beside:
    """The audit beside a source that holds so many records."""

    def audited(records: int) -> AuditReport:
        topics = {"shop": TopicState(TopicId("topic-id-1"), {0: OffsetRange(0, records)})}

        @contextmanager
        def source(_: object) -> Iterator[Any]:
            yield SimpleNamespace(describe=lambda: topics)

        monkeypatch.setattr(auditing, "open_reachable_source_topics", source)
        held = {AT: BitMap64(range(records))}
        monkeypatch.setattr(auditing, "find_offsets_with_records", lambda *_: held)
        return audit(settings)

    return audited


def findings(report: AuditReport) -> set[str]:
    return {finding.what for finding in report.findings}


def says(texts: Sequence[str], *words: str) -> bool:
    return any(all(word in text for word in words) for text in texts)


# ------------------------------------------------------------------------ what tables did not take


def keyed(settings: SinkSettings) -> SinkSettings:
    section = OneTableSettings(match="db.(clicks|users)", key=("offset",))
    changes = replace(settings.changes, tombstones=Tombstones.SKIP)
    return replace(settings, tables=replace(settings.tables, table=(section,)), changes=changes)


def test_changes_that_a_suspended_keyed_table_did_not_take_are_not_well(
    shop: Shop, settings: SinkSettings
) -> None:
    shop.diverts({CLICKS: {3: GOOD, 4: GOOD}})
    report = audit(keyed(settings), with_source=False)
    assert says(report.unproven, "2 records, changes of keys", CLICKS)
    plain = audit(settings, with_source=False)
    assert says(plain.remarks, "2 records are in the quarantine", CLICKS)
    assert not says(plain.unproven, "changes of keys")


def test_changes_that_no_table_was_there_for_are_not_well(
    shop: Shop, settings: SinkSettings
) -> None:
    """As ``route`` in the quarantine: the table that their route names did not exist."""
    shop.diverts({"db.users": {3: GOOD}}, unmatched="there is no table db.users, and none is made")
    report = audit(keyed(settings), with_source=False)
    assert says(report.unproven, "1 record, a change of a key")


def test_records_that_no_route_takes_are_no_changes(shop: Shop, settings: SinkSettings) -> None:
    shop.diverts({"nothing": {3: GOOD}}, unmatched="no route sends it to a table")
    report = audit(keyed(settings), with_source=False)
    assert not says(report.unproven, "changes of keys")


def test_what_was_replayed_waits_no_more(shop: Shop, settings: SinkSettings) -> None:
    shop.diverts({CLICKS: {3: GOOD, 4: GOOD}})
    replay_tables(settings, [CLICKS])
    assert not says(audit(settings, with_source=False).remarks, "did not take them")


# ---------------------------------------------------------- what expired, and came after all


def late(shop: Shop, *, snapshots_expire: bool = False) -> None:
    pending_commits = shop.decides({CLICKS: [3, 4]})
    delivery = shop.delivery(CLICKS, pending_commits)
    expires(shop, pending_commits, delivered=False)
    assert isinstance(shop.table(CLICKS).commit(delivery), Landed)
    (other,) = shop.decides({ORDERS: [5]})
    assert isinstance(shop.table(ORDERS).commit(shop.delivery(ORDERS, [other])), Landed)
    if snapshots_expire:
        shop.commits({CLICKS: [6]})
        table = shop.catalog.load_table(CLICKS)
        table.overwrite(table.scan().to_arrow())
        expire_all_but_refs(shop.catalog, CLICKS)


@pytest.mark.parametrize("snapshots_expire", [False, True])
def test_what_expired_and_came_after_all_is_not_expired(
    shop: Shop, settings: SinkSettings, *, snapshots_expire: bool
) -> None:
    late(shop, snapshots_expire=snapshots_expire)
    report = audit(settings, with_source=False)
    assert report.findings == ()
    assert says(report.remarks, CLICKS, "2 rows expired, and came after all")
    assert not says(report.remarks, "are pending")


def test_what_expired_and_did_not_come_is_expired(shop: Shop, settings: SinkSettings) -> None:
    expires(shop, shop.decides({CLICKS: [3, 4]}))
    assert findings(audit(settings, with_source=False)) == {"rows-expired"}


def test_so_it_is_where_the_list_of_its_files_is_damaged(
    shop: Shop, settings: SinkSettings
) -> None:
    pending_commits = shop.decides({CLICKS: [3, 4]})
    expires(shop, pending_commits, delivered=False)
    Path(pending_commits[0].manifest.removeprefix("file://")).write_bytes(b"no manifest")
    report = audit(settings, with_source=False)
    assert (findings(report), report.unread) == ({"rows-expired"}, ())


def test_a_damaged_list_of_pending_files_is_a_finding(shop: Shop, settings: SinkSettings) -> None:
    (pending_commit,) = shop.decides({CLICKS: [3, 4]})
    Path(pending_commit.manifest.removeprefix("file://")).write_bytes(b"no manifest")
    report = audit(settings, with_source=False)
    assert (findings(report), report.unread) == ({"file-unreadable"}, ())


def test_what_a_former_quarantine_was_delivered_is_not_expired(
    filled: FilledTable, catalog: Catalog, settings: SinkSettings, tmp_path: Path
) -> None:
    """Its last pending commits were delivered, and not acknowledged before the sink file named
    another one."""
    owing = Owing(filled, catalog, parse(sink_file_text(tmp_path)))
    owing.delivers()
    new = "db.another_quarantine"
    create_table_if_missing(catalog, new, quarantine_declaration())
    view = owing.primary.read()
    assert view.record
    expiring = replace(
        view.record,
        transaction=replace(view.record.transaction, number=TransactionNumber(4)),
        quarantined=0,
        pending_commits=(),
        expired=(owing.pending_commit,),
    )
    assert isinstance(owing.primary.commit(CommitAttempt(view, expiring)), Landed)
    moved = replace(owing.settings, quarantine=replace(owing.settings.quarantine, table=new))
    assert "rows-expired" not in findings(audit(moved, with_source=False))
    catalog.drop_table(ASIDE)
    report = audit(moved, with_source=False)
    assert "rows-expired" not in findings(report)
    assert says(report.unproven, "2 rows of transaction 1.3", "is gone, and may have received them")


@pytest.mark.parametrize("replayed", [False, True])
def test_a_quarantine_that_cannot_be_read_accuses_nobody(
    shop: Shop, settings: SinkSettings, beside: Beside, *, replayed: bool
) -> None:
    shop.diverts({CLICKS: {3: GOOD}})
    if replayed:
        replay_tables(settings, [CLICKS])
    with shop.catalog.load_table(settings.quarantine.table).update_schema() as update:
        update.rename_column("offset", "kafka_offset")
    report = beside(4)
    assert report.findings == ()
    assert says(report.unproven, "the quarantine cannot be read here", "offset")
    assert (report.quarantined_rows, report.sum_over_partitions("lost")) == (None, None)
    assert not says(report.proven, "its quarantine") and not says(report.proven, "every record")


def test_rows_of_a_table_without_coordinates_may_be_the_missing_records(
    shop: Shop, beside: Beside
) -> None:
    with shop.catalog.load_table(CLICKS).update_schema() as update:
        update.rename_column("offset", "kafka_offset")
    report = beside(3)
    assert report.findings == ()
    assert says(report.unproven, "1 record of the source is absent", "carry no coordinates: 1")
    assert not says(report.proven, "twice")
    assert "record-lost" in findings(beside(4)), "one more than it has"


def test_a_pending_file_that_is_gone_is_a_finding_of_a_table_without_coordinates(
    shop: Shop, settings: SinkSettings
) -> None:
    (pending_commit,) = shop.decides({CLICKS: [3]})
    table = shop.catalog.load_table(CLICKS)
    for file in read_staged_files(table.io, pending_commit.manifest):
        table.io.delete(file.file_path)
    with table.update_schema() as update:
        update.rename_column("offset", "kafka_offset")
    assert "pending-commit-missing" in findings(audit(settings, with_source=False))


def test_a_table_whose_rows_cannot_be_read_here_has_answered(
    shop: Shop, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one with another engine's equality deletes."""

    def scanned(reader: Any, *given: Any, **named: Any) -> TableRecords:
        if reader.history().table == CLICKS:
            raise NotImplementedError("equality deletes")
        return scan_records(reader, *given, **named)

    monkeypatch.setattr(auditing, "scan_records", scanned)
    report = beside(3)
    assert (report.findings, report.unread) == ((), ())
    assert says(report.unproven, f"{CLICKS}: the rows cannot be read here: equality deletes")
    assert says(report.unproven, "1 record of the source is absent", "carry no coordinates: 1")


@pytest.mark.parametrize("in_quarantine", [False, True])
def test_a_file_that_was_overwritten_inside_is_a_finding_and_no_file_is_called_whole(
    shop: Shop, beside: Beside, *, in_quarantine: bool
) -> None:
    shop.diverts({CLICKS: {3: GOOD, 4: GOOD}})
    name = shop.settings.quarantine.table if in_quarantine else CLICKS
    for task in shop.catalog.load_table(name).scan().plan_files():
        path = Path(task.file.file_path.removeprefix("file://"))
        path.write_bytes(path.read_bytes()[:4] + bytes(60) + path.read_bytes()[64:])
    report = beside(5)
    assert findings(report) == {"file-unreadable"}
    assert not says(report.proven, "of the right size")


# ------------------------------------------------------------------------- what moves meanwhile


def rewritten(shop: Shop, name: str) -> None:
    """Its rows are in other files now, and the old ones are removed."""
    table = shop.catalog.load_table(name)
    old = [task.file.file_path for task in table.scan().plan_files()]
    table.overwrite(table.scan().to_arrow())
    for path in old:
        table.io.delete(path)


@pytest.mark.parametrize(("times", "verdict"), [(1, Verdict.WELL), (3, Verdict.NOT_PROVEN)])
@pytest.mark.parametrize("in_quarantine", [False, True])
def test_files_that_a_compaction_removes_meanwhile_are_not_missing(
    shop: Shop,
    beside: Beside,
    monkeypatch: pytest.MonkeyPatch,
    times: int,
    verdict: Verdict,
    *,
    in_quarantine: bool,
) -> None:
    """The ledger rests; a file that is gone, and that the table still names, stays missing."""
    shop.diverts({CLICKS: {3: GOOD}})
    name = shop.settings.quarantine.table if in_quarantine else ORDERS
    examine, tries = AuditedTable.examine_commits_and_files, [rewritten] * times

    def raced(self: AuditedTable, on_progress: OnProgress) -> None:
        if self.history.table == name and tries:
            tries.pop()(shop, name)
        examine(self, on_progress)

    monkeypatch.setattr(AuditedTable, "examine_commits_and_files", raced)
    report = beside(4)
    assert (report.findings, report.verdict) == ((), verdict)
    (task, *_) = shop.catalog.load_table(name).scan().plan_files()
    shop.catalog.load_table(name).io.delete(task.file.file_path)
    shop.catalog.load_table(name).transaction().set_properties({"a": "b"}).commit_transaction()
    assert "file-missing" in findings(beside(4))


def test_what_is_delivered_after_the_ledger_was_read_is_not_beyond_it(
    shop: Shop, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy sink: each try sees a later delivery."""
    open_all = auditing.open_every_routed_table

    def busy(tables: SinkTables, history: History) -> Any:
        shop.commits({ORDERS: [shop.next_offset]})
        return open_all(tables, history)

    monkeypatch.setattr(auditing, "open_every_routed_table", busy)
    report = beside(3)
    assert (report.findings, report.verdict) == ((), Verdict.WELL)


def test_what_the_ledger_never_decided_is_beyond_it(shop: Shop, beside: Beside) -> None:
    before = shop.ledger.read().tag
    assert before is not None
    shop.commits({ORDERS: [3]})
    ledger = shop.catalog.load_table(LEDGER)
    ledger.manage_snapshots().rollback_to_snapshot(before).commit()
    shop.catalog.load_table(LEDGER).manage_snapshots().remove_tag("headgate-shop").commit()
    shop.catalog.load_table(LEDGER).manage_snapshots().create_tag(before, "headgate-shop").commit()
    assert "record-beyond" in findings(beside(3))


# ------------------------------------------------------------------------------ what is not there


@pytest.mark.parametrize("has_key", [False, True])
def test_a_table_that_is_gone_is_named_when_what_filled_it_has_expired(
    shop: Shop, settings: SinkSettings, beside: Beside, *, has_key: bool
) -> None:
    shop.commits({ORDERS: [3]})
    expire_all_but_refs(shop.catalog, LEDGER)
    assert beside(4).verdict is Verdict.WELL
    shop.catalog.drop_table(CLICKS)
    asked = keyed(settings) if has_key else settings
    assert says(audit(asked, with_source=False).unproven, f"{CLICKS} cannot be examined")


# ------------------------------------------------------------------------ what others deleted there


def test_rows_that_an_engine_deleted_from_a_routed_table_are_no_loss(
    shop: Shop, beside: Beside
) -> None:
    shop.catalog.load_table(ORDERS).delete("offset = 1")
    report = beside(3)
    assert report.findings == ()
    assert says(report.unproven, "1 record of the source is absent", "others deleted 1")


def test_so_it_is_when_that_has_expired(shop: Shop, beside: Beside) -> None:
    shop.catalog.load_table(ORDERS).delete("offset = 1")
    shop.commits({ORDERS: [3], CLICKS: [4]})
    expire_all_but_refs(shop.catalog, ORDERS)
    report = beside(5)
    assert report.findings == ()
    assert report.verdict is Verdict.NOT_PROVEN
    assert says(report.unproven, "1 record of the source is absent", "has expired")


def test_rows_that_an_engine_deleted_from_the_quarantine_are_no_loss(
    shop: Shop, settings: SinkSettings, beside: Beside
) -> None:
    shop.diverts({CLICKS: {3: GOOD}})
    shop.catalog.load_table(settings.quarantine.table).delete("offset = 3")
    report = beside(4)
    assert report.findings == ()
    assert says(report.unproven, "1 record of the source is absent", "others deleted 1")
