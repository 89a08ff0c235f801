"""Writes with Spark: each batch is one job, and each of its tasks writes a share of it.

Only the DataFrame API is used, so that it works with Spark Connect as well as classic Spark. Files
count only once the job's rows came back: nothing refers to what a repeated, speculative or
cancelled attempt of a task wrote.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from headgate.control_protocol.current_sink import bound_to_current_sink
from headgate.control_protocol.errors import HeadgateError, TransformRaised, WriterGone
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome, BatchWritten
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.data_plane.batch.failure_classification import failed_outcome_of
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.quarantine.poison_search import (
    delete_unannounced_files,
    write_around_poison,
)
from headgate.data_plane.spark.job import is_one_stage, is_raised_in_task, is_worker_death, run_job
from headgate.data_plane.spark.session import OpenSession, error_text
from headgate.data_plane.spark.stages import (
    narrow_to_unmatched,
    reconcile_reads_and_writes,
    with_rejected,
    writer_rejecting_unmatched,
)
from headgate.data_plane.spark.tasks import (
    RESULT_COLUMNS,
    files_of,
    merge_outcomes,
    split_into_shares,
    unpickle_outcome,
    write_share,
    writer_of_shares,
)

log = redacted_logger(__name__)

CLOSE_TIMEOUT_S = 30.0
CANCEL_AGAIN_S = 0.25


Planned = Callable[[Batch, Callable[[WriterPlan], BatchOutcome]], BatchOutcome]
"""Writes a batch by its plan, and again by another plan if the first was not enough."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    batch: Batch
    tag: str


class SparkBatchWriter:
    """Writes each batch as one Spark job. Implements ``ports.BatchWriter``.

    ``planned`` runs on the worker thread, and calls back to write a batch. The caller closes the
    session after this writer. If Python workers died in the last batch, the next one is halved
    until the record that kills them stands alone: not at once, since that costs many jobs, and a
    single death is more often the machine's fault.
    """

    def __init__(self, session: OpenSession, planned: Planned) -> None:
        self._session = session
        self._planned = planned
        self._submitted: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[_Job, BatchOutcome]] = queue.SimpleQueue()
        self._current: _Job | None = None
        self._running: _Job | None = None
        self._cancelling = threading.Thread(target=lambda: None)
        self._died = False
        # One thread for all jobs: classic Spark keeps a JVM thread for each of ours.
        self._thread = threading.Thread(
            target=bound_to_current_sink(self._write_submitted_jobs),
            name="headgate-spark",
            daemon=True,
        )
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        self._current = _Job(batch, f"headgate-{uuid4().hex}")
        self._submitted.put(self._current)
        self._cancel_abandoned()

    def wait_for_outcome(self, timeout_ms: int) -> BatchOutcome | None:
        deadline_s = time.monotonic() + timeout_ms / 1000
        while True:
            # Repeatedly: when its batch was abandoned, Spark may not have known the job yet.
            self._cancel_abandoned()
            left_s = max(0.0, deadline_s - time.monotonic())
            try:
                job, outcome = self._outcomes.get(timeout=min(left_s, CANCEL_AGAIN_S))
            except queue.Empty:
                if left_s <= CANCEL_AGAIN_S:
                    return None
                continue
            if job is self._current:
                self._current = None
                return outcome

    def close(self) -> None:
        """Cancel what runs and wait for it, at most half a minute."""
        self._current = None
        self._submitted.put(None)
        self._cancel_abandoned()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _cancel_abandoned(self) -> None:
        running = self._running
        if running is None or running is self._current or self._cancelling.is_alive():
            return
        # In a thread of its own: a Spark that hangs does not answer this either.
        self._cancelling = threading.Thread(target=self._cancel, args=[running.tag], daemon=True)
        self._cancelling.start()

    def _cancel(self, tag: str) -> None:
        try:
            self._session.cancel_tagged(tag)
        except Exception as error:  # noqa: BLE001 - its outcome is dropped in any case
            log.warning("an abandoned Spark job was not cancelled: %s", error_text(error))

    def _write_submitted_jobs(self) -> None:
        while (job := self._submitted.get()) is not None:
            if job is self._current:
                self._running = job
                try:
                    outcome = self._write(job)
                except Exception as error:  # noqa: BLE001 - without this thread no batch ever ends
                    outcome = failed_outcome_of(job.batch.number, error)
                self._running = None
                self._outcomes.put((job, outcome))

    def _write(self, job: _Job) -> BatchOutcome:
        written: list[WrittenFile] = []
        plans: list[WriterPlan] = []

        def discard_earlier_and_write(plan: WriterPlan) -> BatchOutcome:
            self._discard_files(plans, written)  # from an attempt that wanted more tables
            plans[:] = [plan]
            return self._write_by_plan(plan, job, written)

        try:
            whole = self._planned(job.batch, discard_earlier_and_write)
        except HeadgateError as error:
            whole = failed_outcome_of(job.batch.number, error)
        except Exception as error:  # noqa: BLE001 - Spark fails in many ways; the batch is done again
            whole = self._diagnose_failure(job, error)
            self._died = is_worker_death(error)
        else:
            self._died = False
        if not isinstance(whole, BatchWritten) or job is not self._current:
            self._discard_files(plans, written)
        return whole

    def _discard_files(self, plans: Sequence[WriterPlan], written: list[WrittenFile]) -> None:
        if written:
            delete_unannounced_files(plans[0], written)
            written.clear()

    def _write_by_plan(
        self, plan: WriterPlan, job: _Job, written: list[WrittenFile]
    ) -> BatchOutcome:
        shares = split_into_shares(job.batch, self._session.parallelism)
        with self._session.tagging_jobs(job.tag):
            if not shares or (is_one_stage(plan) and not self._died):
                return self._write_in_one_stage(plan, job.batch, shares, written)
            return self._write_around_poison(plan, job, written)

    def _diagnose_failure(self, job: _Job, error: Exception) -> BatchFailed:
        reason = f"the Spark job failed: {error_text(error)}"
        if job is not self._current or self._session.is_alive():
            records = is_raised_in_task(error) or is_worker_death(error)
            return BatchFailed(job.batch.number, reason, unforeseen=records)
        gone = WriterGone(f"the Spark session has ended: {reason}", "start this process again")
        return BatchFailed(job.batch.number, reason, gone)

    def _write_in_one_stage(
        self, plan: WriterPlan, batch: Batch, shares: Sequence[Batch], written: list[WrittenFile]
    ) -> BatchOutcome:
        """Write in one stage.

        ``written`` receives files as they become known, whatever the outcome.
        """
        if not shares:
            return merge_outcomes(batch, [])
        return self._write_shares_in_one_job(partial(write_share, plan), batch, shares, written)

    def _write_shares_in_one_job(
        self,
        write: Callable[[Batch], BatchOutcome],
        batch: Batch,
        shares: Sequence[Batch],
        written: list[WrittenFile],
    ) -> BatchOutcome:
        numbers = self._session.spark.range(0, len(shares), 1, len(shares))
        rows = numbers.mapInArrow(writer_of_shares(write, shares), RESULT_COLUMNS).collect()
        rows.sort(key=lambda row: row["share"])
        outcomes = [unpickle_outcome(bytes(row["outcome"])) for row in rows]
        written += files_of(outcomes)
        return merge_outcomes(batch, outcomes)

    def _write_around_poison(
        self, plan: WriterPlan, job: _Job, written: list[WrittenFile]
    ) -> BatchOutcome:
        """Find the few records that make the job fail, with jobs over parts of the batch."""
        write = self._split_and_write_in_one_stage if is_one_stage(plan) else self._write_in_stages

        def attempt(plan: WriterPlan, part: Batch) -> BatchOutcome:
            if job is not self._current:
                return BatchFailed(part.number, "abandoned")
            files: list[WrittenFile] = []
            outcome: BatchOutcome | None = None
            try:
                outcome = write(plan, part, files)
            except TransformRaised as error:
                outcome = failed_outcome_of(part.number, error)
            except Exception as error:
                if not is_raised_in_task(error) and not (self._died and is_worker_death(error)):
                    raise
                outcome = self._diagnose_failure(job, error)
            finally:
                if not isinstance(outcome, BatchWritten):
                    delete_unannounced_files(plan, files)
            if isinstance(outcome, BatchWritten) and part.ranges == job.batch.ranges:
                written.extend(files)
            return outcome

        return write_around_poison(attempt, plan, job.batch)

    def _split_and_write_in_one_stage(
        self, plan: WriterPlan, part: Batch, written: list[WrittenFile]
    ) -> BatchOutcome:
        shares = split_into_shares(part, self._session.parallelism)
        return self._write_in_one_stage(plan, part, shares, written)

    def _write_in_stages(
        self, plan: WriterPlan, batch: Batch, written: list[WrittenFile]
    ) -> BatchOutcome:
        shares = split_into_shares(batch, self._session.parallelism)
        done = run_job(self._session, plan, batch, shares)
        written += done.all_files
        transform = plan.shaping.transform
        outcome = reconcile_reads_and_writes(
            batch, done.reads, done.parts, transform.name if transform else ""
        )
        unmatched = done.unmatched
        if not unmatched or not isinstance(outcome, BatchWritten):
            return outcome
        left = narrow_to_unmatched(batch, unmatched)
        shares = split_into_shares(left, self._session.parallelism)
        rejected = self._write_shares_in_one_job(
            writer_rejecting_unmatched(plan, batch, unmatched), left, shares, written
        )
        if not isinstance(rejected, BatchWritten):
            return rejected
        return with_rejected(batch, outcome, rejected, unmatched)
