"""The thread that runs Spark jobs, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import Epoch, TransactionId, TransactionNumber
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.spark.batch_writer import SparkBatchWriter
from headgate.data_plane.spark.session import OpenSession


class WordlessError(Exception):
    """As an error of py4j, which asks the JVM for its text."""

    def __str__(self) -> str:
        raise ConnectionError("the JVM does not answer")


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
