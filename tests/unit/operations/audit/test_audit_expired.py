"""What has expired proves nothing: no loss is called well for it, and no table in order wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyroaring import BitMap64
from unit.operations.filled_table import ARROW, SINK, TOPIC, FilledTable

from headgate.config.sink_settings import SinkSettings
from headgate.config.table_settings import RecordColumns
from headgate.control_protocol.commit_record_codec import encode_record
from headgate.control_protocol.identifiers import SinkName, TopicId, TopicPartition, tag_name
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import TopicState
from headgate.operations.audit import audit as auditing
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import AuditReport, Verdict
from headgate.operations.control import delete_rows
from headgate.operations.control.delete_rows import RowDeletion, carry_out_deletion

Offsets = Mapping[int, Sequence[int]]
Beside = Callable[..., AuditReport]


@pytest.fixture
def beside(settings: SinkSettings, monkeypatch: pytest.MonkeyPatch) -> Beside:
    """The audit beside a source that holds these offsets of each partition, and no more."""
    monkeypatch.setattr(delete_rows, "try_announce_command", lambda *_: None)
    monkeypatch.setattr(delete_rows, "waiter_for_calm_after_commit", lambda *_: lambda: None)
    assert settings.source.start_at == "earliest"

    def audited(held: Offsets, *, of: SinkSettings = settings) -> AuditReport:
        ends = {at: max(offsets, default=0) + 1 for at, offsets in held.items()}
        begins = {at: min(offsets, default=0) for at, offsets in held.items()}
        logs = {at: OffsetRange(begins[at], ends[at]) for at in held}
        topics = {TOPIC: TopicState(TopicId("topic-id-1"), logs)}

        @contextmanager
        def source(_: object) -> Iterator[Any]:
            yield SimpleNamespace(describe=lambda: topics)

        known = {TopicPartition(TOPIC, at): BitMap64(offsets) for at, offsets in held.items()}
        monkeypatch.setattr(auditing, "open_reachable_source_topics", source)

        def scanned(_: object, ranges: Mapping[TopicPartition, OffsetRange], *__: object) -> Any:
            asked = {at: BitMap64(range(span.begin, span.end)) for at, span in ranges.items()}
            return {at: known[at] & wanted for at, wanted in asked.items()}

        monkeypatch.setattr(auditing, "find_offsets_with_records", scanned)
        return audit(of)

    return audited


def expire_before(filled: FilledTable, kept: int) -> None:
    """Snapshots older than that one, as Spark's procedure removes them."""
    table = filled.table.refresh()
    newest = table.metadata.snapshot_by_id(kept)
    assert newest is not None
    number = newest.sequence_number or 0
    kept_by_refs = {ref.snapshot_id for ref in table.metadata.refs.values()}
    older = (s.snapshot_id for s in table.snapshots() if (s.sequence_number or 0) < number)
    gone = [snapshot_id for snapshot_id in older if snapshot_id not in kept_by_refs]
    table.maintenance.expire_snapshots().by_ids(gone).commit()


def files_in(filled: FilledTable, folder: str, rows: list[tuple[int, int]]) -> list[Any]:
    """A file of these rows below a folder of the table."""
    files = filled.files(rows)
    moved = files[0].file_path.replace("/data/", f"/data/{folder}/")
    old, new = filled.table.io.new_input(files[0].file_path), filled.table.io.new_output(moved)
    with old.open() as stream, new.create() as copied_to:
        copied_to.write(stream.read())
    files[0]._data[1] = moved
    return files


TWENTY = {0: range(10), 1: range(10)}


def findings(report: AuditReport) -> set[str]:
    return {finding.what for finding in report.findings}


# --------------------------------------------------------------- where the sink began, has expired


def test_a_claim_that_is_left_is_not_where_the_sink_began(
    filled: FilledTable, beside: Beside
) -> None:
    """Rows vanish, the sink is restarted, and what was before its claim expires."""
    filled.good_start()
    filled.table.refresh().delete("offset >= 3 and offset < 6 and partition = 0")
    filled.table.refresh()
    claim = filled.commit(filled.record(2, 0, {0: 10, 1: 10}))
    filled.write(2, 1, {0: 12, 1: 10}, [(0, 10), (0, 11)])
    expire_before(filled, claim)
    report = beside({0: range(12), 1: range(10)})
    assert report.verdict is Verdict.NOT_PROVEN
    assert any("3 records of the source are absent" in text for text in report.unproven)
    assert report.sum_over_partitions("lost") == 3


def test_the_sinks_first_claim_is_where_it_began(
    filled: FilledTable, beside: Beside, settings: SinkSettings
) -> None:
    """Others had filled the table before, and their snapshots have expired."""
    filled.append(filled.files([]))
    claim = filled.commit(filled.record(1, 0, {0: 4, 1: 0}))
    filled.write(
        1, 1, {0: 10, 1: 10}, [*((0, o) for o in range(4, 10)), *((1, o) for o in range(10))]
    )
    expire_before(filled, claim)
    latest = replace(settings, source=replace(settings.source, start_at="latest"))
    assert beside(TWENTY, of=latest).verdict is Verdict.WELL


@pytest.mark.parametrize("claimed", [{0: 0}, {0: 0, 1: 0}])
def test_a_partitions_first_record_is_missed_too(
    filled: FilledTable, beside: Beside, claimed: dict[int, int]
) -> None:
    """Whether the partition was there when the sink began, or came later."""
    filled.commit(filled.record(1, 0, claimed))
    rows = [*((0, o) for o in range(5)), *((1, o) for o in range(1, 5))]
    filled.write(1, 1, {0: 5, 1: 5}, rows)
    report = beside({0: range(5), 1: range(5)})
    assert (findings(report), report.sum_over_partitions("lost")) == (
        {"record-lost", "commit-count"},
        1,
    )


def test_where_the_beginning_has_expired_the_first_row_is_the_first_one_compared(
    filled: FilledTable, beside: Beside, settings: SinkSettings
) -> None:
    filled.commit(filled.record(1, 0, {0: 4}))
    filled.write(1, 1, {0: 8}, [(0, o) for o in range(4, 8)])
    newest = filled.write(1, 2, {0: 10}, [(0, 8), (0, 9)])
    expire_before(filled, newest)
    latest = replace(settings, source=replace(settings.source, start_at="latest"))
    report = beside({0: range(10)}, of=latest)
    assert findings(report) == set()
    assert "trips/0: records before 4: where the sink began has expired" in report.unproven


def test_a_loss_above_the_oldest_commit_that_is_left_is_wrong(
    filled: FilledTable, beside: Beside
) -> None:
    """Nothing that has expired can have deleted it."""
    filled.good_start()
    claim = filled.commit(filled.record(2, 0, {0: 10, 1: 10}))
    filled.write(2, 1, {0: 12, 1: 10}, [(0, 10)])
    expire_before(filled, claim)
    report = beside({0: range(12), 1: range(10)})
    assert "record-lost" in findings(report)


def test_a_loss_beside_what_others_deleted_before_is_wrong_too(
    filled: FilledTable, beside: Beside
) -> None:
    filled.good_start()
    filled.table.refresh().delete("offset = 3")
    filled.table.refresh()
    claim = filled.commit(filled.record(2, 0, {0: 10, 1: 10}))
    filled.write(2, 1, {0: 12, 1: 10}, [(0, 10)])
    expire_before(filled, claim)
    assert "record-lost" in findings(beside({0: range(12), 1: range(10)}))


def test_offsets_that_a_person_moved_are_no_loss_once_that_has_expired(
    filled: FilledTable, beside: Beside
) -> None:
    filled.good_start()
    filled.commit(filled.record(2, 0, {0: 15, 1: 10}, command="offsets set"))
    claim = filled.commit(filled.record(3, 0, {0: 15, 1: 10}))
    filled.write(3, 1, {0: 17, 1: 10}, [(0, 15), (0, 16)])
    expire_before(filled, claim)
    report = beside({0: range(17), 1: range(10)})
    assert report.verdict is Verdict.NOT_PROVEN
    assert any("5 records of the source are absent" in text for text in report.unproven)


# ------------------------------------------------------------------------ which rows people deleted


def deleted(settings: SinkSettings, where: str) -> None:
    list(carry_out_deletion(settings, RowDeletion(where)))


def test_rows_that_vanished_are_not_those_that_a_person_deleted(
    filled: FilledTable, beside: Beside, settings: SinkSettings
) -> None:
    """As many, and the deleted ones are of records that the source has not any more."""
    filled.good_start()
    deleted(settings, "offset < 3 and partition = 0")
    filled.table.refresh().delete("offset >= 6 and offset < 9 and partition = 0")
    filled.table.refresh()
    newest = filled.write(1, 3, {0: 12, 1: 10}, [(0, 10), (0, 11)])
    expire_before(filled, newest)
    report = beside({0: range(5, 12), 1: range(10)})
    assert report.verdict is Verdict.NOT_PROVEN
    assert report.sum_over_partitions("lost") == 3
    assert any("3 records of the source are absent" in text for text in report.unproven)


def test_so_many_lost_by_the_sink_itself_are_wrong(
    filled: FilledTable, beside: Beside, settings: SinkSettings
) -> None:
    filled.good_start()
    filled.write(1, 3, {0: 13, 1: 10}, [(0, 10)])
    deleted(settings, "offset < 2 and partition = 0")
    report = beside({0: range(5, 13), 1: range(10)})
    assert findings(report) == {"record-lost", "commit-count"}
    assert report.sum_over_partitions("lost") == 2


def test_what_a_person_deleted_is_known_when_its_snapshot_has_expired(
    filled: FilledTable, beside: Beside, settings: SinkSettings
) -> None:
    filled.good_start()
    deleted(settings, "offset in (3, 4)")
    filled.table.refresh()
    newest = filled.write(1, 3, {0: 12, 1: 10}, [(0, 10), (0, 11)])
    expire_before(filled, newest)
    report = beside({0: range(12), 1: range(10)})
    assert report.verdict is Verdict.WELL
    assert any("except 4 that people deleted" in text for text in report.proven)


def test_of_rows_that_were_only_counted_the_number_proves_nothing(
    filled: FilledTable, beside: Beside, settings: SinkSettings
) -> None:
    """By an older version: as many records are missing, but nothing tells which were deleted."""
    filled.good_start()
    untold = replace(settings, table=replace(settings.table, record_columns=RecordColumns()))
    deleted(untold, "offset = 3")
    report = beside(TWENTY)
    assert report.verdict is Verdict.NOT_PROVEN
    assert any("persons deleted 2" in text for text in report.unproven)


# ---------------------------------------------------------------------------- the tag, and the bran


def two_foreign_commits(filled: FilledTable) -> None:
    """The first of them expires, so that no snapshot leads from the head to the tag."""
    filled.append([])
    middle = filled.append([])
    filled.append([])
    gone = [s for s in filled.table.refresh().snapshots() if s.snapshot_id == middle]
    filled.table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in gone]).commit()


def test_two_foreign_commits_and_an_expiry_are_no_rollback(
    filled: FilledTable, beside: Beside
) -> None:
    filled.good_start()
    two_foreign_commits(filled)
    report = beside(TWENTY)
    assert report.findings == ()
    assert report.verdict is Verdict.WELL


def test_where_nothing_tells_it_the_audit_says_so(filled: FilledTable, beside: Beside) -> None:
    filled.good_start()
    filled.table.refresh().overwrite(pa.Table.from_pylist([], schema=ARROW))
    two_foreign_commits(filled)
    tagged = filled.table.metadata.refs[tag_name(SINK)].snapshot_id
    head = filled.table.metadata.refs["main"].snapshot_id
    table = filled.table.refresh()
    gone = [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in (tagged, head)]
    table.maintenance.expire_snapshots().by_ids(gone).commit()
    for entry in filled.table.refresh().metadata.metadata_log:
        filled.table.io.delete(entry.metadata_file)
    report = beside(TWENTY)
    assert report.findings == ()
    assert any("whether main still holds" in text for text in report.unproven)


def test_a_rollback_stays_one(filled: FilledTable, beside: Beside) -> None:
    filled.good_start()
    second = filled.table.refresh().snapshots()[1].snapshot_id
    filled.table.manage_snapshots().rollback_to_snapshot(second).commit()
    two_foreign_commits(filled)
    assert "rolled-back" in findings(beside(TWENTY))


# ------------------------------------------------------------ rows that say no record of the source


@pytest.mark.parametrize("rows", [5, 4])
def test_as_many_records_as_rows_without_coordinates_are_not_known_to_be_lost(
    filled: FilledTable, beside: Beside, rows: int
) -> None:
    """The columns came when the sink had run for a while."""
    nameless = pa.Table.from_pylist([dict.fromkeys(ARROW.names)] * rows, ARROW)
    files = list(_dataframe_to_data_files(filled.table.metadata, nameless, filled.table.io))
    filled.commit(filled.record(1, 0, {0: 0}))
    filled.commit(filled.record(1, 1, {0: 5}, rows), files)
    filled.write(1, 2, {0: 10}, [(0, o) for o in range(5, 10)])
    report = beside({0: range(10)})
    assert f"{rows} rows carry no coordinates" in report.unproven
    assert ("record-lost" in findings(report)) == (rows < 5)


# ----------------------------------------------------------------- what the source has let go since


@pytest.mark.parametrize("compacted", [True, None, False])
def test_records_that_kafka_has_compacted_away_are_not_invented(
    filled: FilledTable, beside: Beside, monkeypatch: pytest.MonkeyPatch, compacted: bool | None
) -> None:
    """``None``: who reads a topic need not see its settings."""
    filled.good_start()
    told = {TOPIC: compacted}
    monkeypatch.setattr(auditing, "which_topics_are_compacted", lambda *_: told)
    report = beside({0: [0, 1, 2, 4, 6, 8, 9], 1: range(10)})
    if compacted is False:
        assert findings(report) == {"record-invented", "commit-count"}
        return
    assert report.findings == ()
    assert any("offsets 3, 5, 7: the topic may be compacted" in text for text in report.unproven)
    assert any("2 commits count more records" in text for text in report.unproven)
    assert report.verdict is Verdict.NOT_PROVEN


# ------------------------------------------------------------------ what was there before the sink


@pytest.mark.parametrize("doubled", [3, 8])
def test_only_what_is_doubled_below_where_the_sink_began_is_by_others(
    filled: FilledTable, beside: Beside, doubled: int
) -> None:
    """A connector that may double rows has filled the table before, and its rows say the record."""
    filled.append(filled.files([(0, o) for o in range(5)]))
    filled.append(filled.files([(0, o) for o in range(3, 8)]))
    filled.commit(filled.record(1, 0, {0: 8}))
    filled.write(1, 1, {0: 10}, [(0, 8), (0, 9)])
    filled.append(filled.files([(0, doubled)]))
    report = beside({0: range(10)})
    assert findings(report) == ({"record-twice"} if doubled == 8 else set())
    assert report.surplus["others before the sink began"] == (2 if doubled == 8 else 3)
    assert not any("twice" in text for text in report.proven)


OWN_FOLDER = f"headgate/{SINK}/1-x"


@pytest.mark.parametrize(
    ("folder", "added_by_whom"), [("of-a-connector", "nobody knows whom"), (OWN_FOLDER, "")]
)
@pytest.mark.parametrize("reversed_order", [False, True])
def test_once_the_first_claim_has_expired_doubled_rows_of_no_sink_are_not_its(
    filled: FilledTable, beside: Beside, folder: str, added_by_whom: str, reversed_order: bool
) -> None:
    files = files_in(filled, "of-a-connector", [(0, o) for o in range(5)])
    again = files_in(filled, folder, [(0, o) for o in range(3, 8)])
    for each in (again, files) if reversed_order else (files, again):
        filled.append(each)
    filled.commit(filled.record(1, 0, {0: 8}, recreated_topics=""))
    own = files_in(filled, OWN_FOLDER, [(0, 8), (0, 9)])
    filled.commit(filled.record(1, 1, {0: 10}, 2, recreated_topics=""), own)
    newest = filled.commit(filled.record(2, 0, {0: 10}, recreated_topics=""))
    expire_before(filled, newest)
    report = beside({0: range(10)})
    assert findings(report) == (set() if added_by_whom else {"record-twice"})
    assert [*report.surplus.values()] == [2]
    assert next(iter(report.surplus)).startswith(added_by_whom or "unexplained")
    assert any("2 rows are there again" in text for text in report.unproven) == bool(added_by_whom)
    assert not any("twice" in text for text in report.proven)


# ------------------------------------------------------------- whether a topic was re-created, too


@pytest.mark.parametrize("noted", [None, TOPIC])
def test_rows_of_an_earlier_topic_are_not_held_against_the_sink(
    filled: FilledTable, beside: Beside, noted: str | None
) -> None:
    """``None``: an older release has not noted it."""
    filled.topic_id = TopicId("of-before")
    filled.good_start()
    filled.topic_id = TopicId("topic-id-1")
    filled.commit(filled.record(2, 0, {0: 0, 1: 0}, recreated_topics=noted))
    rows = [(p, o) for p in (0, 1) for o in range(4)]
    newest = filled.write(2, 1, {0: 4, 1: 4}, rows, recreated_topics=noted)
    expire_before(filled, newest)
    report = beside({0: range(4), 1: range(4)})
    assert report.findings == ()
    assert any(text.startswith(TOPIC) and "re-created" in text for text in report.unproven)
    assert not any("twice" in text or "every record" in text for text in report.proven)


def test_what_is_lost_is_so_whatever_was_there_before(filled: FilledTable, beside: Beside) -> None:
    filled.good_start()
    claim = filled.commit(filled.record(2, 0, {0: 10, 1: 10}))
    filled.write(2, 1, {0: 12, 1: 10}, [(0, 10)], records=1)
    expire_before(filled, claim)
    assert "record-lost" in findings(beside({0: range(12), 1: range(10)}))


def test_where_the_record_says_that_none_was_all_is_proven(
    filled: FilledTable, beside: Beside
) -> None:
    filled.good_start()
    claim = filled.commit(filled.record(2, 0, {0: 10, 1: 10}, recreated_topics=""))
    filled.write(2, 1, {0: 11, 1: 10}, [(0, 10)], recreated_topics="")
    expire_before(filled, claim)
    assert beside(ELEVEN).verdict is Verdict.WELL


# ------------------------------------------------------------------------ another sink fills it too

COPY = SinkName("copy")


def copied(filled: FilledTable, *, folder: str = "headgate/copy/1-x", **other: Any) -> None:
    """Another sink fills the table from the same topic, on purpose; then all old expires."""
    filled.good_start()
    files = files_in(filled, folder, [(0, offset) for offset in range(5)])
    copy = replace(filled.record(1, 1, {0: 5}, 5, **other), sink=COPY)
    filled.append(files, encode_record(copy))
    theirs = filled.append([], encode_record(replace(copy, records=0)))
    filled.table.manage_snapshots().create_tag(theirs, tag_name(COPY)).commit()
    newest = filled.write(1, 3, {0: 11, 1: 10}, [(0, 10)])
    expire_before(filled, newest)


ELEVEN = {0: range(11), 1: range(10)}


def test_rows_of_a_sink_that_shares_the_table_stay_its_rows_after_an_expiry(
    filled: FilledTable, beside: Beside, settings: SinkSettings
) -> None:
    copied(filled)
    meant = replace(settings, table=replace(settings.table, shared_with=("copy",)))
    report = beside(ELEVEN, of=meant)
    assert report.findings == ()
    assert report.surplus == {"sink copy": 5}
    assert findings(beside(ELEVEN)) == {"records-shared"}, "without the setting it is a fault"


def test_in_files_that_others_rewrote_nobody_knows_whose_rows_they_are(
    filled: FilledTable, beside: Beside, settings: SinkSettings
) -> None:
    copied(filled, folder="compacted")
    meant = replace(settings, table=replace(settings.table, shared_with=("copy",)))
    report = beside(ELEVEN, of=meant)
    assert report.findings == ()
    assert report.verdict is Verdict.NOT_PROVEN
    assert any("no sink's own folder" in text for text in report.unproven)
    assert findings(beside(ELEVEN)) == set(), "its tag is there, whatever the setting says"


def test_a_sink_of_other_topics_shares_no_records(filled: FilledTable, beside: Beside) -> None:
    """So a record that is there twice is so for another reason."""
    copied(filled, folder="compacted", topic_ids={"others": TopicId("id-2")})
    assert "record-twice" in findings(beside(ELEVEN))
