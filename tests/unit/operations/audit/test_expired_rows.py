"""Rows that have expired in a table without a key: each absent record's own time says whether its
row is one of them (EXPIRY-3), and a lost record is not taken for one."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo
from pyroaring import BitMap64
from support.local_catalog import LocalCatalog
from support.maintained import COLUMNS, Maintained, settings

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, TopicState
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.kafka.push_source import Record
from headgate.kafka.record_fetch import Chunk
from headgate.operations.audit import audit as auditing
from headgate.operations.audit import expired_rows
from headgate.operations.audit.report import AuditReport, Verdict

NOW_MS = time.time_ns() // 1_000_000
DAY_MS = 24 * 3_600_000
AGE_MS = 10 * DAY_MS
OLD, YOUNG = NOW_MS - 20 * DAY_MS, NOW_MS
MORE = f'rows_after_ms = {AGE_MS}\nrows_by = "at"\n[format]\ntype = "json"\n'
AT = TopicPartition("trips", 0)


class Aged:
    """A sink whose rows expire, and the log of its records: JSON with a time, or none."""

    def __init__(self, home: Path, catalog: LocalCatalog, patch: pytest.MonkeyPatch) -> None:
        columns = {**COLUMNS, "at": "timestamptz"}
        self.sink = Maintained(catalog.catalog, settings(home, MORE), columns=columns)
        self.values: list[bytes | None] = []
        self.begin = 0
        patch.setattr(auditing, "open_reachable_source_topics", self._topics)
        patch.setattr(auditing, "find_offsets_with_records", self._held)
        patch.setattr(expired_rows, "read_source_in_chunks", self._chunks)

    def produce(self, *times_ms: int | None) -> None:
        self.values += [
            json.dumps({"at": None if each is None else moment(each).isoformat()}).encode()
            for each in times_ms
        ]

    def commit(self, *times_ms: int | None) -> None:
        """Produce, and write a file of their rows."""
        self.produce(*times_ms)
        at = [None if each is None else moment(each) for each in times_ms]
        self.sink.commit(len(times_ms), at=at)

    def lose(self, *times_ms: int | None) -> None:
        """Produce, and go on behind them without a row."""
        self.produce(*times_ms)
        self.sink.next_offset += len(times_ms)
        self.sink.number += 1
        self.sink._commit((), 0)

    def expire(self) -> int:
        one = self.sink.round(clock_ms=lambda: NOW_MS)
        one.expire_rows()
        return one.done.expired_rows

    def audit(self, **changed: Any) -> AuditReport:
        asked = self.sink.settings
        maintenance = replace(asked.maintenance, **changed)
        return auditing.audit(replace(asked, maintenance=maintenance))

    @contextmanager
    def _topics(self, _: SinkSettings) -> Iterator[Any]:
        log = OffsetRange(self.begin, len(self.values))
        topics = {"trips": TopicState(TopicId(""), {0: log})}
        yield SimpleNamespace(describe=lambda: topics)

    def _held(self, _: object, ranges: Mapping[TopicPartition, OffsetRange], *__: object) -> Any:
        return {at: BitMap64(range(span.begin, span.end)) for at, span in ranges.items()}

    def _chunks(self, _: object, batch: Batch) -> Generator[Chunk, None, None]:
        span = batch.ranges[AT]
        assert span.begin >= self.begin
        for begin in range(span.begin, span.end, 3):
            some = range(begin, min(begin + 3, span.end))
            yield chunk_of([[Record("trips", 0, n, 0, self.values[n], None, []) for n in some]])


def moment(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


@pytest.fixture
def aged(tmp_path: Path, sqlite_catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch) -> Aged:
    return Aged(tmp_path, sqlite_catalog, monkeypatch)


def whats(report: AuditReport) -> list[str]:
    return [finding.what for finding in report.findings]


def test_rows_that_have_expired_are_proven_one_by_one(aged: Aged) -> None:
    aged.commit(OLD, OLD, YOUNG, None)
    aged.commit(OLD)
    assert aged.expire() == 3
    aged.commit(YOUNG)
    report = aged.audit()
    assert (report.findings, report.unproven) == ((), ())
    assert any(text.endswith("except 3 whose rows have expired") for text in report.proven)
    assert (report.partitions[0].lost, report.expired_rows) == (0, 3)
    assert report.verdict is Verdict.WELL


def test_a_young_record_without_a_row_is_lost_whatever_has_expired(aged: Aged) -> None:
    aged.commit(OLD, OLD, OLD, YOUNG)
    aged.lose(YOUNG, None)
    aged.commit(YOUNG)
    assert aged.expire() == 3
    report = aged.audit()
    assert "record-lost" in whats(report)
    assert report.partitions[0].lost == 2
    assert any("2 records, offsets 4, 5" in each.evidence for each in report.findings)


def test_an_old_record_more_without_a_row_than_have_expired_is_lost(aged: Aged) -> None:
    aged.commit(OLD, OLD, YOUNG)
    aged.lose(OLD)
    assert aged.expire() == 2
    report = aged.audit()
    said = "1 more old records have no row than the 2 rows that have expired"
    assert said in {each.evidence for each in report.findings}


def test_where_others_deleted_as_many_that_explains_it(aged: Aged) -> None:
    aged.commit(OLD, OLD, YOUNG)
    assert aged.expire() == 2
    aged.commit(OLD, YOUNG)
    aged.sink.table.delete(EqualTo("offset", value=3))
    report = aged.audit()
    assert report.findings == ()
    assert report.unproven == ("1 record of the source is absent, and others deleted 1",)


def test_what_the_source_no_longer_has_is_said_and_is_no_loss(aged: Aged) -> None:
    aged.commit(OLD, OLD, OLD)
    aged.commit(OLD, YOUNG)
    assert aged.expire() == 4
    aged.begin = 2
    report = aged.audit()
    assert report.findings == ()
    assert report.unproven == ("trips/0: offsets below 2 are no longer in the source",)
    assert any("except 2 whose rows have expired" in text for text in report.proven)


def test_without_the_column_the_count_alone_speaks_and_proves_nothing(aged: Aged) -> None:
    aged.commit(OLD, YOUNG)
    assert aged.expire() == 1
    report = aged.audit(rows_by="", rows_after_ms=0)
    assert report.findings == ()
    (said,) = report.unproven
    assert said == (
        "1 record of the source is absent, and 1 row expired (maintenance.rows_by does not say "
        "by which column)"
    )
    aged.sink.table.update_schema().delete_column("at").commit()
    (said,) = aged.audit().unproven
    assert "(the table has no column at any more)" in said


def test_records_that_cannot_be_read_any_more_are_not_proven_and_not_lost(aged: Aged) -> None:
    aged.commit(OLD, OLD, YOUNG)
    assert aged.expire() == 2
    aged.values[1] = b"no JSON"
    report = aged.audit()
    assert report.findings == ()
    (said,) = report.unproven
    assert said == (
        "1 record of the source is absent, and 1 row expired (1 of the records cannot be read "
        "as rows any more)"
    )
    aged.values[0] = None  # a tombstone, as if it had been one
    (said,) = aged.audit().unproven
    assert "2 rows expired (2 of the records cannot be read" in said
