"""Changes are written where Spark's tasks read them: the shares joined do what one writer does."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from support.changes_desk import ChangesDesk, Message
from support.local_catalog import local_catalog

from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchOutcome
from headgate.data_plane.batch.transform_and_distribution import Distribution
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.cdc.policy import Changes, Envelope
from headgate.data_plane.spark.job import is_one_stage
from headgate.data_plane.spark.tasks import merge_outcomes
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.write_batch import write_chunk_around_poison
from headgate.kafka.push_source import Record

SHARE = 7


def desk(home: Path, kind: type[ChangesDesk]) -> ChangesDesk:
    """Of a table that asks for its rows to be brought together, which those of changes are not."""
    home.mkdir()
    local = local_catalog(home)
    made = kind(local, Changes(("id",), Envelope.DEBEZIUM), partition_by=["bucket(3, id)"])
    with local.catalog.load_table("db.t").transaction() as transaction:
        transaction.set_properties({"write.distribution-mode": "hash"})
    return made


class Tasks(ChangesDesk):
    """Writes as Spark's tasks do: each a share of the batch, with what was sent to it."""

    def written(self, plan: WriterPlan, batch: Batch, records: Sequence[Record]) -> BatchOutcome:
        assert plan.shaping.distribution is Distribution.HASH
        assert is_one_stage(plan)
        sent = pickle.dumps(plan)
        ((at, whole),) = batch.ranges.items()
        outcomes = []
        for begin in range(0, len(records), SHARE):
            some = records[begin : begin + SHARE]
            span = OffsetRange(whole.begin + begin, whole.begin + begin + len(some))
            share = replace(batch, ranges={at: span})
            done = write_chunk_around_poison(pickle.loads(sent), share, chunk_of([some]))
            outcomes.append(pickle.loads(pickle.dumps(done)))
        return merge_outcomes(batch, outcomes)


def said(op: str, key: int) -> Message:
    row = {"id": key, "name": f"{op}{key}", "n": None}
    value = {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row}
    return json.dumps({"id": key}).encode(), json.dumps(value).encode()


def test_changes_in_shares_are_those_of_one_writer(tmp_path: Path) -> None:
    messages = [said("cudmx"[place % 5], place % 11) for place in range(40)]
    messages += [(b'{"id": 3}', None), (b"{", None)]
    alone = desk(tmp_path / "alone", ChangesDesk).write(*messages)
    shared = desk(tmp_path / "shared", Tasks).write(*messages)
    assert alone.rows
    assert alone.deletes
    assert alone.bad
    assert alone.skipped

    def in_order(rows: list[dict[str, object]]) -> list[str]:
        return sorted(map(json.dumps, rows))

    assert in_order(shared.rows) == in_order(alone.rows)
    assert (shared.deletes, shared.bad) == (alone.deletes, alone.bad)
    assert shared.skipped == alone.skipped
