"""Batches of many tables in a job of several stages, stage by stage and without Spark (ROUTE-1,
ROUTE-7)."""

from __future__ import annotations

import hmac
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.local_catalog import local_catalog
from unit.data_plane.write.test_write_batch_multi_table import (
    BY_FIELD,
    BY_TOPIC,
    KEPT,
    Desk,
    rows_in,
    some,
)

from headgate.config.sink_sections import TransformSettings
from headgate.config.table_declaration import quarantine_declaration, transform_plan
from headgate.config.table_settings import ColumnSettings
from headgate.control_protocol.errors import (
    ConfigurationError,
    PoisonRecord,
    RecordUnmatched,
    TransformFailed,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome, BatchWritten
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.data_plane.batch.failure_classification import try_write
from headgate.data_plane.batch.row_rules import RowRules
from headgate.data_plane.batch.transform_and_distribution import Shaping
from headgate.data_plane.batch.writer_task_plan import NO_TABLE_IS_CREATED, SourcePlan, WriterPlan
from headgate.data_plane.routing.routes import Route
from headgate.data_plane.spark import stages
from headgate.data_plane.spark.job import JobDone, is_one_stage
from headgate.data_plane.spark.shuffle_rows import PLACE, sort_key
from headgate.data_plane.spark.stages import reconcile_reads_and_writes
from headgate.data_plane.transform.result_routing import require_routable
from headgate.kafka.record_fetch import Chunk
from headgate.participant.settings import Distribution
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

TASKS = 3
BY_TABLE = Route(field="_table", to="db.{field}")
COLUMNS = (
    ColumnSettings(name="id", type="long", required=True),
    ColumnSettings(name="type", type="string"),
)

Shape = Callable[[pa.RecordBatch], pa.RecordBatch]


def named_by(column: str) -> Shape:
    """A transform that gives a column's value as the name of the row's table."""

    def shape(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.append_column("_table", rows.column(column))

    return shape


@dataclass
class Job(Desk):
    """What Spark does with the stages: rows are handed on, and brought to their places."""

    shape: Shape | None = None
    record_columns: Mapping[str, str] = field(default_factory=dict)
    done: list[JobDone] = field(default_factory=list)

    @property
    def source(self) -> SourcePlan:
        return replace(super().source, record_columns=self.record_columns)

    def written(self, plan: WriterPlan, batch: Batch, chunk: Chunk) -> BatchOutcome:
        stages.read_source_in_chunks = lambda _, part: _cut(chunk, part)  # type: ignore[attr-defined]
        assert not is_one_stage(plan)
        return try_write(batch.number, lambda: self._settled(plan, batch))

    def _settled(self, plan: WriterPlan, batch: Batch) -> BatchOutcome:
        done = self._job(plan, batch)
        self.done.append(done)
        outcome = reconcile_reads_and_writes(
            batch, done.reads, done.parts, "transform.sql" if self.shape else ""
        )
        if not isinstance(outcome, BatchWritten) or not done.unmatched:
            return outcome
        write = stages.writer_rejecting_unmatched(plan, batch, done.unmatched)
        aside = pickle.loads(pickle.dumps(write(stages.narrow_to_unmatched(batch, done.unmatched))))
        if not isinstance(aside, BatchWritten):
            return aside
        return stages.with_rejected(batch, outcome, aside, done.unmatched)

    def _job(self, plan: WriterPlan, batch: Batch) -> JobDone:
        halves = [{}, {}]  # every partition in the middle
        for at, span in batch.ranges.items():
            middle = (span.begin + span.end) // 2
            halves[0][at], halves[1][at] = replace(span, end=middle), replace(span, begin=middle)
        shares = [replace(batch, ranges=ranges) for ranges in halves]
        numbers = [pa.RecordBatch.from_pydict({"id": [share]}) for share in range(len(shares))]
        plan = pickle.loads(pickle.dumps(plan))
        if self.shape is None:
            read = stages.share_packing_stage(plan, batch, shares)
            rows, reads = _told(read(iter(numbers)))
        else:
            read = stages.share_decoding_stage(plan, batch, shares)
            rows, reads = _told(read(iter(numbers)))
            rows = [self.shape(some) for some in rows]
            for some in rows:
                require_routable(some.schema, plan, "transform.sql")
            if plan.shaping.distribution is Distribution.NONE:
                write = stages.result_writing_stage(plan, batch, "transform.sql")
                return JobDone(reads, [_outcome(write(iter([some]))) for some in rows])
            pack = stages.result_packing_stage(plan, batch, "transform.sql")
            rows = [packet for some in rows for packet in pack(iter([some]))]
        parts = [
            _outcome(stages.packet_writing_stage(plan, batch)(iter(those)))
            for those in _brought_together(rows)
        ]
        return JobDone(reads, parts)

    def places(self) -> int:
        """How many files the last job wrote."""
        return sum(len(part.all_files) for part in self.done[-1].parts)


def _cut(chunk: Chunk, part: Batch) -> Iterator[Chunk]:
    """The part's records, in two chunks; those of all ranges that it does not have are left out."""
    begins = np.array([span.begin for span in part.ranges.values()])[chunk.places]
    ends = np.array([span.end for span in part.ranges.values()])[chunk.places]
    inside = (chunk.offsets >= begins) & (chunk.offsets < ends)
    first = np.arange(len(inside)) < len(inside) // 2
    yield chunk.filter(inside & first)
    yield chunk.filter(inside & ~first)


def _told(rows: Iterator[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], list[Any]]:
    kept, told = [], []
    for batch in rows:
        tallies = batch.column(stages.TALLY)
        told += [pickle.loads(tally) for tally in tallies.to_pylist() if tally]
        left = batch.filter(tallies.is_null()).drop_columns([stages.TALLY])
        kept += [left] if left.num_rows else []
    return kept, told


def _brought_together(packets: list[pa.RecordBatch]) -> list[list[pa.RecordBatch]]:
    tasks: list[list[pa.RecordBatch]] = [[] for _ in range(TASKS)]
    for packet in packets:
        for row in range(packet.num_rows):
            place = packet.column(PLACE)[row].as_py()
            tasks[(place or 0) % TASKS].append(packet.slice(row, 1))
    return tasks


def _outcome(rows: Iterator[pa.RecordBatch]) -> Any:
    (row,) = [some.column(0)[0].as_py() for some in rows]
    return pickle.loads(row)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(stages, "read_source_in_chunks", stages.read_source_in_chunks)
    local = local_catalog(tmp_path)
    create_table_if_missing(local.catalog, "db.ledger", TableDeclaration({"note": "string"}))
    create_table_if_missing(local.catalog, "db.q", quarantine_declaration())
    yield Job(local, (BY_TOPIC, BY_FIELD), shaping=Shaping(None, Distribution.HASH))
    local.catalog.close()


def transforming(job: Job, shape: Shape, distribution: Distribution) -> Job:
    columns = job.record_columns
    plan = transform_plan(TransformSettings(sql="...", columns=COLUMNS), columns)
    shaping = Shaping(plan, distribution)
    made = Job(job.local, (BY_TABLE,), job.handling, shaping=shaping, shape=shape)
    return replace(made, record_columns=columns)


EVENTS = [some(n, kind=f"k{n % 4}")[0] for n in range(40)]
MODES = (Distribution.HASH, Distribution.RANGE)


@pytest.mark.parametrize("mode", MODES)
def test_a_distribution_brings_each_table_partition_to_one_task(
    job: Job, mode: Distribution
) -> None:
    """Undistributed, each of the two shares would write each table."""
    job = Job(job.local, job.routes, shaping=Shaping(None, mode))
    job.table("db.orders", "db.event_k0", "db.event_k1", "db.event_k2")
    batch = {"events": EVENTS, "shop.orders": some(*range(50, 60))}
    found = job.write(batch)
    assert found["orders"] == list(range(50, 60))
    assert [len(found[f"event_k{n}"]) for n in range(3)] == [10, 10, 10]
    assert found["q"] == list(range(3, 40, 4))
    assert job.places() == 4


def test_bad_records_and_tombstones_of_a_distributed_batch_are_aside_once(job: Job) -> None:
    job.table("db.event_a", "db.orders")
    bad = [b"{", None, *some(1, kind="a"), {"id": "x", "type": "a"}]
    written = job.outcome({"events": bad, "shop.orders": [b"{", None, *some(2)]})
    assert isinstance(written, BatchWritten)
    counts = {
        at.topic: (result.records, result.quarantined, result.bad)
        for at, result in written.partitions.items()
    }
    assert counts == {"events": (1, 3, 2), "shop.orders": (1, 2, 1)}


def test_a_failed_distributed_batch_leaves_no_file(job: Job, tmp_path: Path) -> None:
    job.handling = replace(KEPT, policy=Disposal.FAIL)
    job.table("db.orders")
    outcome = job.outcome({"shop.orders": [*some(1), b"{"]})
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, PoisonRecord)
    for file in job.done[-1].all_files:  # what ``batch_writer`` does
        Path(file.path.removeprefix("file://")).unlink()
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize("mode", [Distribution.NONE, *MODES])
def test_a_transform_names_the_table_of_each_row(job: Job, mode: Distribution) -> None:
    """None and unknown names are unmatched; a record that it leaves out is skipped."""

    def shape(rows: pa.RecordBatch) -> pa.RecordBatch:
        rows = named_by("type")(rows)
        return rows.filter(pa.compute.not_equal(rows.column("id"), 7))

    job.record_columns = {"topic": "topic"}
    job = transforming(job, shape, mode)
    for kind in ("a", "b"):
        columns = {"id": "long not null", "type": "string", "topic": "string"}
        create_table_if_missing(job.local.catalog, f"db.{kind}", TableDeclaration(columns))
    events = [
        *some(1, 2, kind="a"),
        *some(3, kind="b"),
        *some(4, kind=None),
        *some(5, kind="c"),
        *some(6, 7, kind="a"),
    ]
    assert job.write({"events": events}) == {"a": [1, 2, 6], "b": [3], "q": [4, 5]}
    assert job.messages({"events": events}) == {
        "no route sends it to a table",
        f"there is no table db.c, {NO_TABLE_IS_CREATED}",
    }
    written = job.outcome({"events": [*events, b"{", None]})
    assert isinstance(written, BatchWritten)
    (result,) = written.partitions.values()
    assert (result.records, result.quarantined, result.skipped, result.bad) == (4, 4, 1, 1)
    assert result.bytes_read > 0


@pytest.mark.parametrize("mode", [Distribution.NONE, Distribution.HASH])
def test_behind_a_transform_records_of_a_suspended_table_are_diverted(
    job: Job, mode: Distribution
) -> None:
    """SUSPEND-1: else its statuses would be refused for ever (SUSPEND-2); no route is at fault, nor
    a record."""
    job = transforming(job, named_by("type"), mode)
    job.handling = replace(KEPT, unmatched=Disposal.FAIL)
    job.table("db.a", "db.b")
    job.suspended = {"db.b": "HG-201 rolled back"}
    written = job.outcome({"events": [*some(1, kind="a"), *some(2, 3, kind="b")]})
    assert isinstance(written, BatchWritten)
    (result,) = written.partitions.values()
    assert (result.records, result.quarantined, result.bad) == (1, 2, 0)
    rows = rows_in(written.quarantined)
    assert {(row["error_class"], row["table_name"]) for row in rows} == {("table", "db.b")}
    assert {row["message"] for row in rows} == {"db.b: HG-201 rolled back"}


@pytest.mark.parametrize("mode", [Distribution.NONE, Distribution.HASH])
def test_behind_a_transform_a_row_that_names_the_ledger_is_a_bad_record(
    job: Job, mode: Distribution
) -> None:
    job = transforming(job, named_by("type"), mode)
    job.table("db.a")
    batch = {"events": [*some(1, kind="a"), *some(2, kind="Ledger"), *some(3, kind="q")]}
    for _ in range(3):
        written = job.outcome(batch)
        assert isinstance(written, BatchWritten), written
        (result,) = written.partitions.values()
        assert (result.records, result.quarantined, result.bad) == (1, 2, 2)
        assert {row["error_class"] for row in rows_in(written.quarantined)} == {"own table"}
    job.handling = replace(KEPT, policy=Disposal.FAIL)
    outcome = job.outcome(batch)
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, PoisonRecord)
    assert outcome.fatal.first == Offsets({TopicPartition("events", 0): 1})


def test_in_a_distributed_batch_a_record_that_names_the_ledger_is_bad(job: Job) -> None:
    job.routes = (Route(topic="events", field="type", to="db.{field}"),)
    job.table("db.a")
    for _ in range(3):
        batch = {"events": [*some(1, kind="a"), *some(2, kind="ledger")]}
        assert job.write(batch) == {"a": [1], "q": [2]}


@pytest.mark.parametrize("disposal", [Disposal.SKIP, Disposal.FAIL])
def test_what_a_transform_gives_to_no_table_is_skipped_or_stops_the_sink(
    job: Job, disposal: Disposal
) -> None:
    job.handling = replace(KEPT, unmatched=disposal)
    job = transforming(job, named_by("type"), Distribution.NONE)
    job.table("db.a")
    outcome = job.outcome({"events": [*some(1, kind="a"), *some(2, 3, kind="x")]})
    if disposal is Disposal.FAIL:
        assert isinstance(outcome, BatchFailed)
        assert isinstance(outcome.fatal, RecordUnmatched)
        assert "events partition 0 offset 1" in outcome.reason
        assert outcome.fatal.first == Offsets({TopicPartition("events", 0): 1})
        return
    assert isinstance(outcome, BatchWritten)
    (result,) = outcome.partitions.values()
    assert (result.records, result.skipped, result.quarantined) == (1, 2, 0)


def test_a_row_with_a_value_that_its_table_lacks_is_unmatched(job: Job) -> None:
    """Nothing is dropped in silence: null goes, a value does not."""

    def shape(rows: pa.RecordBatch) -> pa.RecordBatch:
        tips = [None if n % 2 else n for n in rows.column("id").to_pylist()]
        return named_by("type")(rows.append_column("tip", pa.array(tips, pa.int64())))

    job = transforming(job, shape, Distribution.HASH)
    job.table("db.a")
    create_table_if_missing(
        job.local.catalog, "db.b", TableDeclaration({"id": "long not null", "tip": "long"})
    )
    create_table_if_missing(job.local.catalog, "db.c", TableDeclaration({"id": "string not null"}))
    events = [*some(1, 2, kind="a"), *some(3, 4, kind="b"), *some(5, kind="c")]
    assert job.write({"events": events}) == {"a": [1], "q": [2, 3, 4, 5]}
    assert job.messages({"events": events}) == {
        "transform.sql gives 'tip', which db.a has not",
        "transform.sql gives 'type', which db.b has not",
        "db.c: transform.sql gives 'id' as int64, the table has large_string",
    }


def test_behind_a_transform_topics_still_name_tables(job: Job) -> None:
    job = transforming(job, named_by("type"), Distribution.HASH)
    job.routes = (BY_TOPIC, BY_TABLE, Route(to="db.rest"))
    job.table("db.orders", "db.a", "db.rest")
    events = [*some(2, kind="a"), *some(3)]
    found = job.write({"shop.orders": some(1, kind="a"), "events": events})
    assert found == {"orders": [1], "a": [2], "rest": [3]}


def test_a_record_in_two_rows_is_named_wherever_they_go(job: Job) -> None:
    def twice(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.concat_batches([named_by("type")(rows)] * 2)

    for mode in (Distribution.NONE, Distribution.HASH):
        for kind in ("a", "nowhere"):
            doubling = transforming(job, twice, mode)
            doubling.table("db.a")
            outcome = doubling.outcome({"events": some(1, kind=kind)})
            assert isinstance(outcome, BatchFailed)
            assert isinstance(outcome.fatal, TransformFailed)
            assert "1 row more" in outcome.reason


def test_a_transform_that_says_no_table_is_refused(job: Job) -> None:
    job = transforming(job, lambda rows: rows, Distribution.NONE)
    outcome = job.outcome({"events": some(1, kind="a")})
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, ConfigurationError)
    assert "gives no column _table" in outcome.reason
    numbered = named_by("id")
    outcome = transforming(job, numbered, Distribution.NONE).outcome({"events": some(1)})
    assert "_table as int64" in outcome.reason if isinstance(outcome, BatchFailed) else False


# ------------------------------------------------------------------------- what packets sort by


def _words(random_: random.Random) -> str:
    return "".join(random_.choice("\0\x01aé") for _ in range(random_.randrange(4)))


KINDS: Mapping[str, Callable[[random.Random], Any]] = {
    "int": lambda r: r.randrange(-(2**63), 2**63) >> r.randrange(64),
    "float": lambda r: r.choice([0.0, r.uniform(-9, 9), float("inf"), float("-inf")]),
    "bool": lambda r: r.random() < 0.5,
    "str": _words,
    "bytes": lambda r: _words(r).encode(),
    "decimal": lambda r: Decimal(r.randrange(-(10**20), 10**20)).scaleb(-r.randrange(10)),
    "wide decimal": lambda r: Decimal(f"{r.choice('-+')}9{'0' * 30}{r.randrange(10**6):06}e-9"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_sort_keys_compare_as_the_values_do(kind: str) -> None:
    random_ = random.Random(7)
    pairs = [(KINDS[kind](random_), random_.randrange(3)) for _ in range(300)]
    told = sorted(pairs, key=sort_key)
    assert told == sorted(pairs)
    assert sort_key((None, 1)) < sort_key(pairs[0])


@pytest.mark.parametrize("data_type", ["string", "fixed(32)", "binary"])
def test_shape_3_a_hash_comes_through_the_shuffle_as_the_other_writer_writes_it(
    job: Job, data_type: str
) -> None:
    key = b"a key of tests that nobody else has, ever"
    columns = {"id": "long not null", "type": data_type}
    create_table_if_missing(job.local.catalog, "db.hashed", TableDeclaration(columns))
    hidden = replace(KEPT, excerpts=False, keeps_content=False)
    rules = RowRules(hashed=("type",), key=key)
    values = {
        "shop.hashed": [{"id": number, "type": f"person {number % 7}"} for number in range(50)]
    }
    found = []
    for made in (
        Job(job.local, job.routes, hidden, shaping=Shaping(None, Distribution.HASH, rules)),
        Desk(job.local, job.routes, hidden, shaping=Shaping(rules=rules)),
    ):
        outcome = made.outcome(values)
        assert isinstance(outcome, BatchWritten), outcome
        (files,) = outcome.secondary_files.values()
        found.append(sorted((row["id"], row["type"]) for row in rows_in(files)))
    digests = [hmac.digest(key, f"person {n % 7}".encode(), "sha256") for n in range(50)]
    shown = [each.hex() for each in digests] if data_type == "string" else digests
    assert found[0] == found[1] == list(enumerate(shown))
