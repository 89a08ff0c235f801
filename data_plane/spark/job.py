"""Runs a batch as one Spark job of several stages: read, transform, distribute, write.

It uses only the DataFrame API, for Spark Connect's sake. What was read comes back as an observation
of the rows after the first stage; if it is taken twice (a repeated task, the sample of a range
distribution), it says the same twice.
"""

from __future__ import annotations

import pickle
import threading
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64

from headgate.control_protocol.errors import TransformFailed, TransformRaised, WriteFailed
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.ports import Batch, BatchFailed
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.spark import stages
from headgate.data_plane.spark.session import OpenSession, error_text
from headgate.data_plane.spark.shuffle_rows import PLACE, packet_schema, packet_sort_columns
from headgate.data_plane.spark.stages import PartWritten, ShareRead
from headgate.data_plane.spark.tasks import files_of
from headgate.data_plane.spark.transform import apply_transform, is_query_fault
from headgate.data_plane.transform.result_routing import RejectionReason
from headgate.data_plane.transform.result_rows import RECORD
from headgate.participant.settings import Distribution

_TALLIES = "tallies"
_BETWEEN = " "
_OBSERVATION_S_MAX = 120.0


@dataclass(frozen=True, slots=True)
class JobDone:
    """Holds what the tasks read and wrote, for ``stages.reconcile_reads_and_writes``."""

    reads: Sequence[ShareRead]
    parts: Sequence[PartWritten | BatchFailed]

    @property
    def all_files(self) -> tuple[WrittenFile, ...]:
        """Return everything that was written to any table, whatever the outcome."""
        written = [part for part in self.parts if isinstance(part, PartWritten)]
        rejected = files_of([read.outcome for read in self.reads])
        return (*(file for part in written for file in part.all_files), *rejected)

    @property
    def unmatched(self) -> Mapping[RejectionReason, BitMap64]:
        """Return the records that a transform sent to no table, by reason."""
        result: dict[RejectionReason, BitMap64] = {}
        for part in self.parts:
            if isinstance(part, PartWritten):
                for why, numbers in part.unmatched.items():
                    result[why] = result.get(why, BitMap64()) | numbers
        return result


def is_one_stage(plan: WriterPlan) -> bool:
    """Return whether what is read can be written by the same task."""
    return plan.shaping.transform is None and not _needs_shuffle(plan)


def _needs_shuffle(plan: WriterPlan) -> bool:
    """Return whether rows are moved between tasks.

    Rows of an unpartitioned table have no places to go to unless it is sorted; those of many tables
    have. Changes are written where they are read, together with deleted keys, and so is what other
    tables of their sink take.
    """
    if plan.source.feeds_keyed_tables:
        return False
    if plan.source.routing is not None:
        return plan.shaping.distribution in (Distribution.HASH, Distribution.RANGE)
    if plan.shaping.distribution is Distribution.RANGE and plan.shape.sort_order().fields:
        return True
    return plan.shaping.distribution is not Distribution.NONE and bool(plan.shape.spec().fields)


def run_job(
    session: OpenSession, plan: WriterPlan, batch: Batch, shares: Sequence[Batch]
) -> JobDone:
    """Run the job.

    Raises ``ConfigurationError`` and ``TransformFailed`` for the transform's faults, and whatever
    Spark raises.
    """
    from pyspark.sql import Observation

    seen = Observation()
    numbers = session.spark.range(0, len(shares), 1, len(shares))
    shaped = (
        _outcomes_or_packets_with_transform
        if plan.shaping.transform
        else _packets_without_transform
    )
    rows = shaped(numbers, _Work(plan, batch, shares, seen))
    if _needs_shuffle(plan):
        rows = _redistribute(rows, plan, session.parallelism)
        rows = _map_by_stage(rows, stages.packet_writing_stage(plan, batch), stages.OUTCOMES)
    try:
        outcomes = rows.collect()
    except Exception as error:
        _raise_if_query_fault(error, plan)
        raise
    parts = [pickle.loads(bytes(row[stages.OUTCOME])) for row in outcomes]  # noqa: S301 - our tasks'
    return JobDone(_await_tallies(seen, plan), parts)


def columns_of_transform(spark: Any, plan: WriterPlan) -> list[str]:
    """Return the transform's columns, by Spark's analysis. Raises as ``apply_transform``."""
    records = spark.createDataFrame([], to_pyspark_schema(stages.transform_input_schema(plan)))
    return [column for column in apply_transform(records, plan).columns if column != RECORD]


@dataclass(frozen=True, slots=True)
class _Work:
    plan: WriterPlan
    batch: Batch
    shares: Sequence[Batch]
    seen: Any


def _packets_without_transform(numbers: Any, work: _Work) -> Any:
    read = stages.share_packing_stage(work.plan, work.batch, work.shares)
    return _observe_and_drop_tallies(
        _map_by_stage(numbers, read, stages.with_tally_column(packet_schema(work.plan))), work.seen
    )


def _outcomes_or_packets_with_transform(numbers: Any, work: _Work) -> Any:
    """Return packets if they are to be distributed, else the outcomes of writing."""
    plan, batch = work.plan, work.batch
    read = stages.share_decoding_stage(plan, batch, work.shares)
    schema = stages.with_tally_column(stages.transform_input_schema(plan))
    rows = apply_transform(
        _observe_and_drop_tallies(_map_by_stage(numbers, read, schema), work.seen), plan
    )
    assert plan.shaping.transform is not None, "chosen for it"
    name = plan.shaping.transform.name
    if _needs_shuffle(plan):
        packets = stages.result_packing_stage(plan, batch, name)
        return _map_by_stage(rows, packets, packet_schema(plan))
    return _map_by_stage(rows, stages.result_writing_stage(plan, batch, name), stages.OUTCOMES)


def _map_by_stage(rows: Any, stage: stages.Stage, schema: pa.Schema) -> Any:
    return rows.mapInArrow(stage, to_pyspark_schema(schema))


def to_pyspark_schema(schema: pa.Schema) -> Any:
    """Return Spark's name for an Arrow schema of types that it knows."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _observe_and_drop_tallies(rows: Any, observation: Any) -> Any:
    """Return the rows without the tallies, which are reported when the job is done.

    They are one text: Spark 3.5 hands an observed list to Python as an object of Scala's.
    """
    from pyspark.sql import functions

    tallies = functions.collect_list(functions.base64(stages.TALLY))
    reported = rows.observe(observation, functions.concat_ws(_BETWEEN, tallies).alias(_TALLIES))
    return reported.where(functions.col(stages.TALLY).isNull()).drop(stages.TALLY)


def _redistribute(packets: Any, plan: WriterPlan, tasks: int) -> Any:
    if plan.shaping.distribution is Distribution.HASH:
        return packets.repartition(tasks, PLACE)
    return packets.repartitionByRange(tasks, PLACE, *packet_sort_columns(plan))


def is_raised_in_task(error: Exception) -> bool:
    """Return whether Python code in a task raised it, and not Spark."""
    return type(error).__name__ == "PythonException"


def is_worker_death(error: Exception) -> bool:
    """Return whether a task's Python process ended under Spark: a record may have killed it.

    Spark has no class or condition of its own for that.
    """
    return "Python worker exited unexpectedly" in str(error)


def _raise_if_query_fault(error: Exception, plan: WriterPlan) -> None:
    transform = plan.shaping.transform
    if transform is not None and is_query_fault(error):
        raise TransformRaised(
            f"{transform.name}: {error_text(error)}",
            "mend it, or the records that it meets; nothing of them was committed",
        ) from error


def _await_tallies(observation: Any, plan: WriterPlan) -> list[ShareRead]:
    """Return the tallies, which come a moment after the job.

    They never come if Spark left out what was observed. A transform then cannot have used its
    records, and ``TransformFailed`` says so.
    """
    observed: list[Any] = []

    def wait_for_observation() -> None:
        with suppress(Exception):  # a plan without the observation, in unhelpful words
            observed.append(observation.get)

    # In a thread of its own, since Spark's wait has no time limit.
    waiting = threading.Thread(target=wait_for_observation, daemon=True)
    waiting.start()
    waiting.join(_OBSERVATION_S_MAX)
    tallies = observed[0].get(_TALLIES) if observed else None
    if not tallies:
        if plan.shaping.transform is None:
            raise WriteFailed("Spark did not say what was read")
        raise TransformFailed(
            f"{plan.shaping.transform.name} gave rows without reading its records",
            "a filter that is never true does that, or a function that uses other rows, or (with "
            "Spark Connect) the records by way of a view",
        )
    result = map(b64decode, tallies.split(_BETWEEN))
    return [pickle.loads(tally) for tally in result]  # noqa: S301 - our own tasks'
