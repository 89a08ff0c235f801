"""The audit against a real source: what is lost or invented is found, gaps are understood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import confluent_kafka as kafka
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from unit.operations.filled_table import FilledTable

from headgate.config.sink_settings import SinkSettings
from headgate.config.table_settings import RecordColumns
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.coordinator.settings import CoordinatorSettings, OffsetPolicy
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import AuditReport, Verdict

pytestmark = pytest.mark.integration


@pytest.fixture
def produced(producer: Producer, topic: str) -> Callable[[int, int], None]:
    def produce(partition: int, count: int) -> None:
        for number in range(count):
            producer.produce(topic, str(number), partition=partition)
        assert producer.flush(10) == 0

    return produce


def whats(report: AuditReport) -> list[str]:
    return sorted(finding.what for finding in report.findings)


def test_all_that_was_produced_is_there(
    filled: FilledTable, settings: SinkSettings, produced: Callable[[int, int], None]
) -> None:
    produced(0, 12)
    produced(1, 10)
    filled.good_start()
    report = audit(settings)
    assert report.findings == ()
    assert report.unproven == ()
    assert [
        report.sum_over_partitions(w) for w in ("produced", "in_table", "lost", "twice", "lag")
    ] == [*(20, 20, 0, 0, 2)]
    assert "2 commits hold as many rows as the source has records" in report.proven
    assert report.verdict is Verdict.WELL
    assert (report.rows, report.distinct, report.surplus) == (20, 20, {})


def test_markers_and_aborted_records_are_no_loss(
    filled: FilledTable, settings: SinkSettings, bootstrap: str, topic: str, unique_name: str
) -> None:
    config = {"bootstrap.servers": bootstrap, "transactional.id": unique_name}
    transactional = Producer(config)
    transactional.init_transactions()
    for commit in (True, False, True):  # offsets 0-1, marker 2; 3-4, marker 5; 6-7, marker 8
        transactional.begin_transaction()
        for number in range(2):
            transactional.produce(topic, str(number), partition=0)
        transactional.flush(10)  # aborting would purge what was not sent yet
        (transactional.commit_transaction if commit else transactional.abort_transaction)()
    filled.commit(filled.record(1, 0, {0: 0, 1: 0}))
    filled.write(1, 1, {0: 9, 1: 0}, [(0, 0), (0, 1), (0, 6), (0, 7)])
    report = audit(settings)
    assert report.findings == ()
    assert report.partitions[0].produced == report.partitions[0].in_table == 4
    assert report.partitions[0].lag == 0


def test_a_lost_record_is_named(
    filled: FilledTable, settings: SinkSettings, produced: Callable[[int, int], None]
) -> None:
    produced(0, 12)
    produced(1, 10)
    filled.good_start()
    filled.write(1, 3, {0: 12, 1: 10}, [(0, 11)])
    report = audit(settings)
    assert whats(report) == ["commit-count", "record-lost"]
    assert any("1 record, offsets 10" in finding.evidence for finding in report.findings)
    assert report.partitions[0].lost == 1


def test_a_claim_without_rows_over_records_is_a_loss(
    filled: FilledTable, settings: SinkSettings, produced: Callable[[int, int], None]
) -> None:
    produced(0, 12)
    produced(1, 10)
    filled.good_start()
    filled.write(1, 3, {0: 12, 1: 10}, [])
    report = audit(settings)
    assert "record-lost" in whats(report)
    assert report.verdict is Verdict.WRONG
    assert report.partitions[0].lost == 2


def test_beside_what_is_lost_it_says_how_much_was_skipped(
    filled: FilledTable, settings: SinkSettings, produced: Callable[[int, int], None]
) -> None:
    """Whoever looks for three records must know that two of them were never meant to be there."""
    produced(0, 13)
    produced(1, 10)
    filled.good_start()
    filled.write(1, 3, {0: 13, 1: 10}, [], skipped=2)
    skips = replace(settings, quarantine=replace(settings.quarantine, policy=Disposal.SKIP))
    report = audit(skips)
    assert "record-lost" in whats(report)
    absent = "3 records of the source are absent, and the sink skipped 2: nothing tells which"
    assert any(text.startswith(absent) for text in report.remarks)


def test_records_that_a_forged_status_skipped_are_not_well(
    filled: FilledTable, settings: SinkSettings, produced: Callable[[int, int], None]
) -> None:
    produced(0, 4_010)
    produced(1, 10)
    filled.good_start()
    filled.write(1, 3, {0: 4_010, 1: 10}, [], skipped=4_000)
    report = audit(settings)
    assert "skipped" in whats(report)
    assert report.verdict is Verdict.WRONG
    skips = replace(settings, quarantine=replace(settings.quarantine, policy=Disposal.SKIP))
    report = audit(skips)
    assert report.verdict is Verdict.NOT_PROVEN
    assert not any("every record" in text for text in report.proven)
    assert report.exit_code() == 1


def test_without_coordinates_the_counts_tell(
    filled: FilledTable, settings: SinkSettings, produced: Callable[[int, int], None]
) -> None:
    produced(0, 12)
    produced(1, 10)
    filled.good_start()
    plain = replace(settings, table=replace(settings.table, record_columns=RecordColumns()))
    assert audit(plain).findings == ()
    filled.write(1, 3, {0: 12, 1: 10}, [(0, 11)])
    report = audit(plain)
    assert whats(report) == ["commit-count"]
    evidence = report.findings[0].evidence
    assert "1 row, 0 quarantined and 0 skipped, but the source holds 2 records in" in evidence
    assert f"{filled.topic}/0 [10, 12)" in evidence


def test_a_row_that_is_in_no_source(
    filled: FilledTable, settings: SinkSettings, bootstrap: str, topic: str, unique_name: str
) -> None:
    transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique_name})
    transactional.init_transactions()
    transactional.begin_transaction()
    transactional.produce(topic, "aborted", partition=0)
    transactional.flush(10)
    transactional.abort_transaction()
    filled.commit(filled.record(1, 0, {0: 0, 1: 0}))
    filled.write(1, 1, {0: 2, 1: 0}, [(0, 0)])
    assert whats(audit(settings)) == ["commit-count", "record-invented"]


def test_deletes_by_others_excuse_as_many_rows(
    filled: FilledTable, settings: SinkSettings, produced: Callable[[int, int], None]
) -> None:
    produced(0, 10)
    produced(1, 10)
    filled.good_start()
    filled.table.delete("partition = 1 and offset < 3")
    report = audit(settings)
    assert report.findings == ()
    assert "3 records of the source are absent, and others deleted 3" in report.unproven


def test_what_retention_took_is_said(
    filled: FilledTable,
    settings: SinkSettings,
    produced: Callable[[int, int], None],
    admin: AdminClient,
    topic: str,
) -> None:
    produced(0, 10)
    produced(1, 10)
    filled.good_start()
    admin.delete_records([kafka.TopicPartition(topic, 0, 4)])[
        kafka.TopicPartition(topic, 0)
    ].result()
    report = audit(settings)
    assert report.findings == ()
    assert f"{topic}/0: offsets below 4 are no longer in the source" in report.unproven
    assert (report.partitions[0].produced, report.partitions[0].in_table) == (6, 10)


def test_a_source_that_lost_its_end(
    filled: FilledTable, settings: SinkSettings, produced: Callable[[int, int], None]
) -> None:
    produced(0, 5)
    produced(1, 10)
    filled.good_start()
    assert "offset-out-of-source" in whats(audit(settings))


def test_a_recreated_topic_is_not_compared(
    filled: FilledTable, settings: SinkSettings, produced: Callable[[int, int], None]
) -> None:
    produced(0, 10)
    produced(1, 10)
    filled.topic_id = type(filled.topic_id)("another")
    filled.good_start()
    report = audit(settings)
    assert report.findings == ()
    assert any("the topic was re-created since" in text for text in report.unproven)


def test_records_that_a_policy_passed_over_are_not_lost(
    filled: FilledTable, settings: SinkSettings, produced: Callable[[int, int], None]
) -> None:
    produced(0, 20)
    produced(1, 10)
    filled.good_start()
    filled.commit(filled.record(2, 0, {0: 15, 1: 10}))
    filled.write(2, 1, {0: 20, 1: 10}, [(0, offset) for offset in range(15, 20)])
    assert whats(audit(settings)) == ["gap", "record-lost"]
    policy = CoordinatorSettings(on_offset_out_of_range=OffsetPolicy.LATEST)
    report = audit(replace(settings, coordinator=policy))
    assert report.findings == ()
    assert any("moved" in text and "from 10 to 15" in text for text in report.unproven)


def test_a_topic_created_anew_under_the_sink_doubles_no_record(
    filled: FilledTable, settings: SinkSettings, produced: Callable[[int, int], None], topic: str
) -> None:
    produced(0, 5)
    produced(1, 5)
    now, filled.topic_id = filled.topic_id, type(filled.topic_id)("the one before")
    filled.good_start()
    filled.topic_id = now
    filled.commit(filled.record(2, 0, {0: 0, 1: 0}))
    filled.write(2, 1, {0: 5, 1: 5}, [(p, offset) for p in (0, 1) for offset in range(5)])
    report = audit(settings)
    assert report.findings == ()
    assert any(text.startswith(f"{topic}: re-created") for text in report.unproven)
    assert not any("twice" in text for text in report.proven)
