"""Whatever is planted in a real table, the audit finds, and names by its stable word."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from unit.operations.filled_table import FilledTable

from headgate.config.sink_settings import SinkSettings
from headgate.config.table_settings import RecordColumns
from headgate.control_protocol.commit_record import OPERATOR
from headgate.control_protocol.commit_record_codec import encode_record
from headgate.control_protocol.errors import TableChanged, Unreachable
from headgate.control_protocol.identifiers import Sender, SinkName, TopicId
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.coordinator.settings import CoordinatorSettings, OffsetPolicy
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import AuditReport, Verdict
from headgate.operations.audit.source_compare import find_offsets_skipped_by_moves
from headgate.operations.audit.table_checks import find_offset_moves
from headgate.tables.iceberg.history import read_history
from headgate.tables.storage.parquet_integrity import footer_size

ARROW_TOPIC = pa.schema([("topic", pa.string())])


def examined(settings: SinkSettings) -> AuditReport:
    return audit(settings, with_source=False)


def found(settings: SinkSettings) -> set[str]:
    report = examined(settings)
    assert (report.verdict is Verdict.WRONG) == bool(report.findings)
    assert not (report.findings and report.proven)
    return {finding.what for finding in report.findings}


def says_of_records(report: AuditReport) -> set[str]:
    """Which sentences about single records stand under what is proven."""
    about = ("twice", "every record", "as the source has records")
    return {words for words in about if any(words in text for text in report.proven)}


def test_a_table_without_fault_is_well(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.commit(filled.record(2, 0, {0: 10, 1: 10}))
    filled.write(2, 1, {0: 12, 1: 10}, [(0, 11)])  # a gap in the source is no fault
    report = examined(settings)
    assert report.findings == ()
    assert (report.commits, report.claims, report.epochs) == (3, 2, (1, 2))
    assert (report.committed_records, report.live_rows, report.sum_over_partitions("in_table")) == (
        21,
        21,
        21,
    )
    assert [(p.begin, p.next_offset, p.twice) for p in report.partitions] == [
        (0, 12, 0),
        (0, 10, 0),
    ]


def test_an_empty_table_proves_nothing(filled: FilledTable, settings: SinkSettings) -> None:
    filled.table.transaction().remove_properties("headgate.trips.claimed").commit_transaction()
    report = examined(settings)
    assert report.verdict is Verdict.NOT_PROVEN
    assert report.unproven == ("the sink has not committed anything yet",)


def test_without_coordinates_it_says_what_cannot_be_told(
    filled: FilledTable, settings: SinkSettings
) -> None:
    filled.good_start()
    plain = replace(settings, table=replace(settings.table, record_columns=RecordColumns()))
    report = examined(plain)
    assert report.verdict is Verdict.NOT_PROVEN
    assert report.sum_over_partitions("in_table") is None
    assert any("not single records" in text for text in report.unproven)
    assert says_of_records(report) == set()


def test_an_unreachable_source_is_said_and_is_no_finding(
    filled: FilledTable, settings: SinkSettings
) -> None:
    filled.good_start()
    report = audit(settings)
    assert report.verdict is Verdict.NOT_PROVEN
    assert any(text.startswith("the source was not compared") for text in report.unproven)
    assert says_of_records(report) == {"twice"}, "the table was looked through, and nothing else"


# ------------------------------------------------------------------------------ what is planted


def test_an_epoch_that_falls(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.commit(filled.record(3, 0, {0: 10, 1: 10}))
    filled.write(1, 3, {0: 11, 1: 10}, [(0, 10)])
    assert found(settings) == {"epoch-fell"}


def test_a_transaction_out_of_order(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.write(1, 1, {0: 11, 1: 10}, [(0, 10)], coordinator=Sender("member-1", "other"))
    assert found(settings) == {"transaction-order"}


def test_a_commit_that_landed_twice(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    files = filled.files([(0, 10)])
    record = filled.record(1, 3, {0: 11, 1: 10}, 1)
    filled.commit(record, files)
    filled.commit(record, files)
    assert found(settings) == {"commit-twice", "file-twice", "record-twice"}


def test_two_coordinators_in_one_epoch(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.write(1, 3, {0: 11, 1: 10}, [(0, 10)], coordinator=Sender("member-9", "life"))
    assert found(settings) == {"two-coordinators"}


def test_an_epoch_that_nobody_claimed(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.write(2, 1, {0: 11, 1: 10}, [(0, 10)])
    assert found(settings) == {"epoch-unclaimed"}


def test_another_group_under_the_same_name(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.write(1, 3, {0: 11, 1: 10}, [(0, 10)], group_id="other")
    assert found(settings) == {"group-changed"}


def test_offsets_that_go_back(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.write(1, 3, {0: 9, 1: 10}, [])
    assert "offsets-went-back" in found(settings)


def test_a_partition_whose_offset_is_gone(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.write(1, 3, {0: 10}, [])
    assert found(settings) == {"offsets-lost"}


def test_a_gap_that_a_claim_made(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.commit(filled.record(2, 0, {0: 15, 1: 10}))
    assert found(settings) == {"gap"}
    policy = CoordinatorSettings(on_offset_out_of_range=OffsetPolicy.LATEST)
    report = examined(replace(settings, coordinator=policy))
    assert report.verdict is Verdict.NOT_PROVEN
    assert any("moved trips/0 from 10 to 15" in text for text in report.unproven)


def test_a_record_that_claims_more_than_it_brought(
    filled: FilledTable, settings: SinkSettings
) -> None:
    filled.good_start()
    filled.write(1, 3, {0: 15, 1: 10}, [(0, 10)], records=5)
    assert found(settings) == {"record-count", "row-count"}


def test_a_file_that_is_referenced_twice(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    files = filled.files([(0, 10)])
    filled.commit(filled.record(1, 3, {0: 11, 1: 10}, 1), files)
    filled.commit(filled.record(1, 4, {0: 12, 1: 10}, 1), files)
    assert found(settings) == {"file-twice", "record-twice"}


def test_a_file_that_is_missing(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.head_files()[0].unlink()
    report = examined(
        replace(settings, table=replace(settings.table, record_columns=RecordColumns()))
    )
    assert [finding.what for finding in report.findings] == ["file-missing"]


def test_a_missing_file_does_not_end_the_audit(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.head_files()[0].unlink()
    assert found(settings) == {"file-missing"}


def test_a_manifest_that_is_missing(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    metadata = filled.head_files()[0].parents[1] / "metadata"
    for manifest in metadata.glob("*.avro"):
        manifest.unlink()
    with pytest.raises(TableChanged, match="metadata file that is missing"):
        examined(settings)


def test_a_storage_that_fails_while_rows_are_read_is_no_verdict(
    filled: FilledTable, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.good_start()

    def fails(*_: object, **__: object) -> None:
        raise OSError("AWS Error NETWORK_CONNECTION: Timeout was reached")

    monkeypatch.setattr("headgate.tables.iceberg.reader.live_batches_of_file", fails)
    with pytest.raises(Unreachable, match=r"rows of db\.trips .*Timeout"):
        examined(settings)


def test_what_was_only_compacted_away_meanwhile_is_no_fault(
    filled: FilledTable, settings: SinkSettings
) -> None:
    """Under the audit a file goes away with the snapshot that named it; it looks again."""
    filled.good_start()
    path = filled.head_files()[0]
    content = path.read_bytes()
    path.unlink()
    rounds = []

    def watched(what: str, done: int, total: int) -> None:
        if done:
            return
        rounds.append(what)
        if rounds.count("commits") == 1:
            filled.table.transaction().set_properties({"moved": "on"}).commit_transaction()
        else:
            path.write_bytes(content)

    assert audit(settings, with_source=False, on_progress=watched).findings == ()
    assert rounds.count("commits") == 2


def test_a_file_that_was_cut(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    path = filled.head_files()[0]
    path.write_bytes(path.read_bytes()[:-10])
    assert "file-size" in found(settings)


@pytest.mark.parametrize("what", ["footer", "pages"])
def test_a_file_of_its_size_that_was_overwritten(
    filled: FilledTable, settings: SinkSettings, what: str
) -> None:
    """pyarrow raises ``OSError`` for damage, too: that is no storage that does not answer."""
    filled.good_start()
    path = filled.head_files()[0]
    content = bytearray(path.read_bytes())
    footer = len(content) - footer_size(content)
    begin = footer if what == "footer" else 4
    content[begin : begin + 60] = bytes(60)
    path.write_bytes(content)
    assert "file-unreadable" in found(settings)


def test_a_file_with_other_rows_than_claimed(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    files = filled.files([(0, 10), (0, 11)])
    files[0]._data[4] = 3  # the manifest's record count
    filled.commit(filled.record(1, 3, {0: 13, 1: 10}, 3), files)
    assert found(settings) == {"file-rows"}


def test_a_doubled_offset_names_the_file(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.write(1, 3, {0: 12, 1: 10}, [(0, 10), (0, 4)])
    report = examined(settings)
    assert {finding.what for finding in report.findings} == {"record-twice"}
    assert "trips/0: 1 row too many: offset 4 again in file://" in report.findings[0].evidence
    assert report.partitions[0].twice == 1


def test_an_offset_doubled_inside_one_file(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.write(1, 3, {0: 11, 1: 10}, [(0, 10), (0, 10), (0, 10)])
    report = examined(settings)
    assert report.partitions[0].twice == 2
    assert "offset 10 again" in report.findings[0].evidence


def test_a_row_beyond_the_stored_offsets(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.write(1, 3, {0: 11, 1: 10}, [(0, 99)])
    assert found(settings) == {"record-beyond"}


def test_a_deleted_tag(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.table.manage_snapshots().remove_tag("headgate-trips").commit()
    assert found(settings) == {"tag-missing"}


def test_a_tag_that_was_moved_back(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    first = filled.table.metadata.snapshots[0].snapshot_id
    filled.move_tag(first)
    assert "tag-behind" in found(settings)


def test_a_table_that_was_rolled_back(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    second = filled.table.metadata.snapshots[1].snapshot_id
    filled.table.manage_snapshots().rollback_to_snapshot(second).commit()
    assert "rolled-back" in found(settings)


def test_an_unreadable_record(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.append([], {"headgate.trips.version": "99", "headgate.trips.epoch": "7"})
    assert "record-unreadable" in found(settings)


# --------------------------------------------------------------------- what others may rightly do


def test_rows_of_others_are_no_finding(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.table.append(pa.table({"topic": [None, None]}, ARROW_TOPIC))
    report = examined(settings)
    assert report.verdict is Verdict.NOT_PROVEN
    assert report.live_rows == 22
    assert "2 rows of others carry no coordinates" in report.remarks


def test_rows_that_nobody_else_wrote_are_not_called_those_of_others(
    filled: FilledTable, settings: SinkSettings
) -> None:
    """The sink's own commit brought one: which record it is of nobody can tell."""
    filled.good_start()
    filled.table.append(pa.table({"topic": [None, None]}, ARROW_TOPIC))
    assert "2 rows of others carry no coordinates" in examined(settings).remarks
    nameless = pa.table({"topic": [None]}, ARROW_TOPIC)
    (file,) = _dataframe_to_data_files(filled.table.metadata, nameless, filled.table.io)
    filled.commit(filled.record(1, 3, {0: 11, 1: 10}, 1), [file])
    report = examined(settings)
    assert "3 rows carry no coordinates, at most 2 of them of others" in report.unproven
    assert not any("coordinates" in text for text in report.remarks)


def test_records_that_another_sink_brought_again(
    filled: FilledTable, settings: SinkSettings
) -> None:
    filled.good_start()
    other = replace(filled.record(1, 1, {0: 5}, 5), sink=SinkName("copy"))
    filled.append(filled.files([(0, o) for o in range(5)]), encode_record(other))
    assert found(settings) == {"records-shared"}
    report = examined(settings)
    assert (report.rows, report.distinct, report.surplus) == (25, 20, {"sink copy": 5})
    meant = replace(settings, table=replace(settings.table, shared_with=("copy",)))
    report = examined(meant)
    assert report.findings == ()
    assert "25 rows of 20 different records, 5 more than records: 5 by sink copy" in report.remarks
    assert not any("twice" in text for text in report.proven)


def test_a_topic_of_the_same_name_elsewhere_is_another(
    filled: FilledTable, settings: SinkSettings
) -> None:
    filled.good_start()
    elsewhere = {filled.topic: TopicId("on-another-cluster")}
    record = filled.record(1, 1, {0: 5}, 5, topic_ids=elsewhere)
    other = replace(record, sink=SinkName("copy"))
    filled.append(filled.files([(0, o) for o in range(5)]), encode_record(other))
    assert found(settings) == set()
    assert examined(settings).surplus == {}


def test_records_that_no_setting_lets_go(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.write(1, 3, {0: 4_010, 1: 10}, [], skipped=4_000)
    assert found(settings) == {"skipped"}
    skips = replace(settings, quarantine=replace(settings.quarantine, policy=Disposal.SKIP))
    report = examined(skips)
    assert report.verdict is Verdict.NOT_PROVEN
    assert "4,000 records were skipped: nothing tells which" in report.unproven
    assert report.exit_code() == 1
    assert report.exit_code(accept_unproven=True) == 0
    filled.write(1, 4, {0: 4_011, 1: 10}, [], quarantined=1)
    assert found(skips) == {"quarantined"}
    assert examined(skips).exit_code(accept_unproven=True) == 1


def test_expired_history_is_said(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    oldest = filled.table.metadata.snapshots[0].snapshot_id
    filled.table.maintenance.expire_snapshots().by_id(oldest).commit()
    report = examined(settings)
    assert report.verdict is Verdict.NOT_PROVEN
    assert report.claims == 0
    assert any("older snapshots have expired" in text for text in report.unproven)


def test_deletes_of_others_are_counted(filled: FilledTable, settings: SinkSettings) -> None:
    filled.good_start()
    filled.table.delete("partition = 1 and offset < 3")
    report = examined(settings)
    assert report.findings == ()
    assert (report.live_rows, report.sum_over_partitions("in_table")) == (17, 17)


def operator(
    filled: FilledTable, epoch: int, offsets: dict[int, int], command: str | None = "offsets set"
) -> None:
    by_hand = Sender(OPERATOR, f"hand-{epoch}")
    filled.commit(filled.record(epoch, 0, offsets, coordinator=by_hand, command=command))


def test_offsets_set_back_by_hand_are_named_and_their_rows_may_be_there_again(
    filled: FilledTable, settings: SinkSettings
) -> None:
    filled.good_start()
    operator(filled, 2, {0: 6, 1: 10})
    assert found(settings) == set()  # nothing is beyond the stored offset that was not before
    filled.commit(filled.record(3, 0, {0: 6, 1: 10}))
    filled.write(3, 1, {0: 10, 1: 10}, [(0, o) for o in range(6, 10)])
    report = examined(settings)
    assert report.findings == ()
    assert report.unproven[0].endswith(": headgate offsets set moved trips/0 from 10 to 6")
    assert "4 rows came again because offsets were set back" in report.unproven
    assert (report.rows, report.distinct, report.surplus) == (24, 20, {"offsets set": 4})
    assert report.verdict is Verdict.NOT_PROVEN
    assert not any("offsets never" in text or "beyond" in text for text in report.proven)
    assert not any("twice" in text for text in report.proven)
    filled.write(3, 2, {0: 11, 1: 10}, [(0, 10), (0, 2)], records=2)
    assert found(settings) == {"record-twice"}  # and of 2 nobody said that it shall come again


def test_a_claim_that_moves_offsets_without_a_person_is_a_gap(
    filled: FilledTable, settings: SinkSettings
) -> None:
    filled.good_start()
    filled.commit(filled.record(2, 0, {0: 12, 1: 10}))
    assert found(settings) == {"gap"}


def test_what_a_policy_read_again_nobody_asked_for(
    filled: FilledTable, settings: SinkSettings
) -> None:
    """The source was behind the table, so its offsets stand for other records since."""
    filled.good_start()
    filled.commit(filled.record(2, 0, {0: 6, 1: 10}))
    policies = replace(settings.coordinator, on_offset_out_of_range=OffsetPolicy.EARLIEST)
    behind = replace(settings, coordinator=policies)
    assert "moved trips/0 from 10 to 6, as a policy of this sink allows" in str(
        examined(behind).unproven
    )
    filled.write(2, 1, {0: 10, 1: 10}, [(0, o) for o in range(6, 10)])
    assert found(behind) == {"record-twice"}
    assert not any("came again" in text for text in examined(behind).unproven)


def test_what_was_passed_over_and_then_fetched_is_not_missing(filled: FilledTable) -> None:
    filled.good_start()
    operator(filled, 2, {0: 20, 1: 15})
    operator(filled, 3, {0: 10, 1: 15})
    filled.write(3, 1, {0: 18, 1: 15}, [])
    history = read_history(filled.table.refresh(), filled.record(1, 0, {}).sink, "main")
    moves = list(find_offset_moves(history))
    assert {
        at.partition: list(gone)
        for at, gone in find_offsets_skipped_by_moves(history, moves).items()
    } == {
        0: [18, 19],
        1: [10, 11, 12, 13, 14],
    }


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("resume --accept HG-205=latest", "headgate resume --accept HG-205=latest moved"),
        (None, "headgate offsets set or resume --accept moved"),
    ],
)
def test_the_sentence_names_the_command_that_moved_offsets(
    filled: FilledTable, settings: SinkSettings, command: str | None, words: str
) -> None:
    filled.good_start()
    operator(filled, 2, {0: 16, 1: 10}, command)
    assert any(f"{words} trips/0 from 10 to 16" in text for text in examined(settings).unproven)
