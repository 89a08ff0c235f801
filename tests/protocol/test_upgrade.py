"""Tables that version 1 of the record left behind, also in the middle of its two commits, go on.

Version 1 committed the quarantine first, and claimed both tables; nothing was pending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

from protocol.quarantining import at_work, exactly_once, offsets_in
from scenarios.stage import SINK, Stage
from support.local_catalog import LocalCatalog

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import TopicPartition, TransactionNumber, tag_name
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import CommitAttempt, Landed
from headgate.control_protocol.testing import FakeCatalog
from headgate.coordinator.secondary_pending_commits import claims_needed_of_secondaries
from headgate.tables.iceberg import commit_request
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

TAG = tag_name(SINK)
NEW = ("lead", "followers", "debts", "lapsed", "routing")


def old_form(record: CommitRecord, quarantine: str | None = None) -> dict[str, str]:
    """The record as version 1 wrote it."""
    summary = commit_record_codec.encode_record(record)
    prefix = f"headgate.{record.sink}."
    for name in NEW:
        summary.pop(prefix + name, None)
    summary[prefix + "version"] = "1"
    return summary | ({prefix + "quarantine": quarantine} if quarantine else {})


def written_by_version_1(stage: Stage) -> None:
    assert stage.quarantine is not None
    for catalog, aside in ((stage.catalog, stage.quarantine.uuid), (stage.quarantine, None)):
        for number, snapshot in list(catalog.snapshots.items()):
            summary = old_summary(snapshot.summary, aside)
            catalog.snapshots[number] = replace(snapshot, summary=summary)


def old_summary(summary: Mapping[str, str], aside: str | None) -> Mapping[str, str]:
    record = commit_record_codec.decode_record(SINK, summary)
    return old_form(record, aside) if record else summary


def under_tag(catalog: FakeCatalog) -> CommitRecord:
    record = commit_record_codec.decode_record(SINK, catalog.snapshots[catalog.tags[TAG]].summary)
    assert record
    return record


def crashes_between_its_two_calls(stage: Stage) -> None:
    """The quarantine has the bad ones of the next records, and the table's call was never made."""
    assert stage.quarantine is not None
    before = under_tag(stage.quarantine)
    ends = Offsets(stage.source_ends())
    rows = [
        row
        for at, end in ends.items()
        for row in stage.source.records(at, OffsetRange(before.offsets.get(at, 0), end))
        if row.offset % 3 == 2
    ]
    file: WrittenFile = stage.catalog.storage.write("memory://old/", rows)
    number = TransactionNumber(before.transaction.number + 1)
    record = replace(
        before,
        transaction=replace(before.transaction, number=number),
        offsets=ends,
        records=len(rows),
    )
    stage.quarantine.append_foreign([file])
    head = stage.quarantine.branches["main"]
    snapshot = stage.quarantine.snapshots[head]
    stage.quarantine.snapshots[head] = replace(snapshot, summary=old_form(record))
    stage.quarantine.tags[TAG] = head


def upgraded(stage: Stage) -> None:
    stage.session_expires("alice", "bob")
    stage.until("bob:    START")


def test_a_sink_of_version_1_goes_on() -> None:
    stage, quarantine = at_work()
    stage.kill("alice")
    written_by_version_1(stage)
    assert under_tag(quarantine).primary is None
    stage.produce(4, 4)
    upgraded(stage)
    assert under_tag(quarantine).primary == stage.catalog.uuid
    stage.settles()
    exactly_once(stage)


def test_a_crash_in_the_middle_of_version_1s_two_commits_doubles_and_loses_nothing() -> None:
    stage, quarantine = at_work()
    stage.kill("alice")
    written_by_version_1(stage)
    stage.produce(4, 4)
    crashes_between_its_two_calls(stage)
    kept = offsets_in(quarantine)
    upgraded(stage)
    assert any("START 2.1" in line and "quarantine C=0:9,1:8" in line for line in stage.lines)
    stage.settles()
    exactly_once(stage)
    assert offsets_in(quarantine) == kept
    stage.produce(3, 3)
    stage.settles()
    exactly_once(stage)


def test_a_coordinator_of_version_1_that_wakes_is_refused() -> None:
    """Its call requires the quarantine's tag, which the upgrade's claim has moved."""
    stage, quarantine = at_work()
    stage.kill("alice")
    written_by_version_1(stage)
    tag_it_knows = quarantine.tags[TAG]
    upgraded(stage)
    assert quarantine.tags[TAG] != tag_it_knows
    stage.settles()
    exactly_once(stage)


def test_real_tables_in_the_old_form_are_read_and_their_quarantine_is_claimed(
    sqlite_catalog: LocalCatalog,
) -> None:
    catalog = sqlite_catalog.catalog
    for name in ("db.rows", "db.aside"):
        create_table_if_missing(catalog, name, TableDeclaration({"id": "long"}))
    primary, aside = (IcebergTable(catalog, name, SINK) for name in ("db.rows", "db.aside"))
    uuid = aside.read().uuid
    record = replace(under_tag(at_work()[0].catalog), secondaries={}, pending_commits=())
    for table, quarantine in ((primary, uuid), (aside, None)):
        outcome = committed_in_the_old_form(table, record, quarantine)
        assert isinstance(outcome, Landed)

    view, secondary = primary.read(), aside.read()
    assert view.record
    assert view.record.secondary_uuid("db.aside") == uuid
    assert (view.record.pending_commits, view.record.primary) == ((), None)
    (pending_commit,) = claims_needed_of_secondaries(
        record, view.record, {"db.aside": secondary}, view
    )
    assert (pending_commit.secondary, pending_commit.manifest) == (uuid, "")
    assert secondary.record
    assert secondary.record.offsets[TopicPartition("trips", 0)] == 5


def committed_in_the_old_form(
    table: IcebergTable, record: CommitRecord, quarantine: str | None
) -> object:
    with patch.object(commit_request, "encode_record", lambda record: old_form(record, quarantine)):
        return table.commit(CommitAttempt(table.read(), record))
