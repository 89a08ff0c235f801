"""The thread that runs Spark jobs, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.local_catalog import LocalCatalog

from headgate.control_protocol.events import TableStart, WrittenFile
from headgate.control_protocol.identifiers import Epoch, TransactionId, TransactionNumber
from headgate.control_protocol.ports import Batch, BatchFailed, BatchNeeds, BatchOutcome
from headgate.data_plane.batch.writer_task_plan import Plans, SourcePlan, WriterPlan
from headgate.data_plane.spark.batch_writer import SparkBatchWriter
from headgate.data_plane.spark.session import OpenSession
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing


class WordlessError(Exception):
    """As an error of py4j, which asks the JVM for its text."""

    def __str__(self) -> str:
        raise ConnectionError("the JVM does not answer")


def test_shares_that_were_written_while_others_need_columns_leave_no_file(
    sqlite_catalog: LocalCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = sqlite_catalog.catalog
    create_table_if_missing(catalog, "db.t", TableDeclaration({"id": "long"}))
    table = catalog.load_table("db.t")
    prefix = f"{table.location()}/data/7"
    start = TableStart("db.t", str(table.metadata.table_uuid), 0, 0, prefix)
    batch = Batch(1, TransactionId(Epoch(1), TransactionNumber(1)), start, {}, 1)
    plan = Plans(catalog).load_plan(batch, SourcePlan({}))
    file = tmp_path / "share.parquet"
    file.write_bytes(b"rows")

    def write(
        _: SparkBatchWriter, plan: WriterPlan, job: Any, written: list[WrittenFile]
    ) -> BatchOutcome:
        written.append(WrittenFile(file.as_uri(), 1, 4))
        return BatchNeeds(job.batch.number)

    monkeypatch.setattr(SparkBatchWriter, "_write_by_plan", write)
    writer = SparkBatchWriter(
        OpenSession(None, 1, made=False, scratch=tmp_path), lambda _, write: write(plan)
    )
    writer.submit(batch)
    assert isinstance(writer.wait_for_outcome(5_000), BatchNeeds)
    writer.close()
    assert not file.exists()


def test_each_batch_has_an_outcome_whatever_is_raised(tmp_path: Path) -> None:
    def planned(_batch: Batch, _write: Callable[[WriterPlan], BatchOutcome]) -> BatchOutcome:
        raise WordlessError

    writer = SparkBatchWriter(OpenSession(None, 1, made=False, scratch=tmp_path), planned)
    transaction = TransactionId(Epoch(1), TransactionNumber(1))
    for number in (1, 2):
        writer.submit(Batch(number, transaction, TableStart("db.t", "", 0, 0, ""), {}, 1))
        outcome = writer.wait_for_outcome(5_000)
        assert isinstance(outcome, BatchFailed)
        assert "the JVM does not answer" in outcome.reason
    writer.close()
