"""Records that make a batch fail in a way that nobody foresaw: each is found, and named."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import ServerError
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from support.local_catalog import LocalCatalog, local_catalog

from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.errors import PoisonRecord
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome, BatchWritten
from headgate.control_protocol.quarantine_policy import BadRecordLimits, Disposal
from headgate.control_protocol.redaction import Redaction
from headgate.data_plane.batch.failure_classification import failed_outcome_of, is_external_failure
from headgate.data_plane.batch.metadata_columns import RecordColumns
from headgate.data_plane.batch.writer_task_plan import Handling, Plans, SourcePlan, WriterPlan
from headgate.data_plane.formats.json.format import JsonRecords
from headgate.data_plane.quarantine import poison_search
from headgate.data_plane.quarantine.poison_search import (
    POISON_RECORDS_MAX,
    Read,
    read_around_poison,
    write_around_poison,
)
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.table_outlets import PartitionedRows
from headgate.data_plane.write.write_batch import write_chunk_around_poison
from headgate.kafka.push_source import Record
from headgate.kafka.record_fetch import Chunk
from headgate.tables.iceberg.table_creation import create_table_if_missing

P0, P1 = TopicPartition("trips", 0), TopicPartition("trips", 1)
SKIP, KEEP = Disposal.SKIP, Disposal.QUARANTINE
ALL = BadRecordLimits(per_thousand_max=1_000)


@dataclass
class Desk:
    """A table of one column, its quarantine, and batches of two partitions."""

    local: LocalCatalog
    handling: Handling = field(default_factory=lambda: Handling(KEEP, KEEP, ALL, "headgate-sink"))
    redaction: Redaction = field(default_factory=Redaction)

    def start(self, name: str) -> TableStart:
        table = self.local.catalog.load_table(name)
        return TableStart(
            table=name,
            uuid=str(table.metadata.table_uuid),
            schema_id=0,
            spec_id=0,
            file_prefix=f"{table.location()}/data/7",
        )

    def write(self, *partitions: Sequence[int]) -> BatchOutcome:
        records = [
            [Record("trips", number, offset, -1, b'{"id":%d}' % value)
             for offset, value in enumerate(values)]
            for number, values in enumerate(partitions)
        ]  # fmt: skip
        batch = Batch(
            number=1,
            transaction=TransactionId(Epoch(3), TransactionNumber(7)),
            table=self.start("db.t"),
            ranges={
                TopicPartition("trips", number): OffsetRange(0, len(some))
                for number, some in enumerate(records)
            },
            target_file_bytes=1 << 27,
            topic_ids={"trips": TopicId("id")},
            quarantine=self.start("db.q"),
        )
        source = SourcePlan({}, handling=self.handling, sink="sink", redaction=self.redaction)
        plan = Plans(self.local.catalog).load_plan(batch, source)
        return write_chunk_around_poison(plan, batch, chunk_of(records))

    def files(self) -> list[Path]:
        return list(self.local.warehouse.rglob("*.parquet"))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    local = local_catalog(tmp_path)
    local.catalog.create_table("db.t", Schema(NestedField(1, "id", LongType())))
    create_table_if_missing(local.catalog, "db.q", quarantine_declaration())
    yield Desk(local)
    local.catalog.close()


def rows_of(written: BatchOutcome, *, aside: bool = False) -> list[dict[str, Any]]:
    assert isinstance(written, BatchWritten), written
    files = written.quarantined if aside else written.files
    tables = [pq.ParquetFile(file.path.removeprefix("file://")).read() for file in files]
    return [row for table in tables for row in table.to_pylist()]


def ids_in(rows: pa.RecordBatch) -> list[int]:
    found: list[int] = rows.column("id").to_pylist()
    return found


Break = Callable[[set[int], type[Exception]], None]


@pytest.fixture(params=["format", "behind it"])
def break_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Break:
    """Make decoding, or what comes behind it, raise where one of these values is."""
    decode, take = JsonRecords.decode, PartitionedRows.add_rows

    def broken(values: set[int], kind: type[Exception]) -> None:
        def check(rows: pa.RecordBatch) -> None:
            hit = values & set(ids_in(rows)) if "id" in rows.schema.names else set()
            if hit:
                raise kind(f"{min(hit)} is odd")

        def decoding(self: Any, some: Any, schema: pa.Schema) -> pa.RecordBatch:
            rows = decode(self, some, schema)
            check(rows)
            return rows

        def taking(self: PartitionedRows, rows: pa.RecordBatch) -> None:
            check(rows)
            take(self, rows)

        if request.param == "format":
            monkeypatch.setattr(JsonRecords, "decode", decoding)
        else:
            monkeypatch.setattr(PartitionedRows, "add_rows", taking)

    return broken


@pytest.mark.parametrize("kind", [RecursionError, KeyError, pa.ArrowInvalid, AssertionError])
def test_the_records_at_fault_are_bad_and_all_others_rows(
    desk: Desk, break_at: Break, kind: type[Exception]
) -> None:
    break_at({3, 107, 119}, kind)
    written = desk.write(range(20), range(100, 120))

    ids = [row["id"] for row in rows_of(written)]
    assert ids == [*(n for n in range(20) if n != 3), *(n for n in range(100, 119) if n != 107)]
    aside = sorted(rows_of(written, aside=True), key=lambda row: (row["partition"], row["offset"]))
    assert [(row["partition"], row["offset"]) for row in aside] == [(0, 3), (1, 7), (1, 19)]
    assert {row["error_class"] for row in aside} == {"exception"}
    assert all(f"{kind.__name__}: " in row["message"] for row in aside)
    assert isinstance(written, BatchWritten)
    assert {at: (r.records, r.quarantined, r.bad) for at, r in written.partitions.items()} == {
        P0: (19, 1, 1),
        P1: (18, 2, 2),
    }
    assert len(desk.files()) == len(written.files) + len(written.quarantined), "no trial is left"


def test_the_policy_decides_as_of_any_bad_record(desk: Desk, break_at: Break) -> None:
    break_at({3}, ValueError)
    desk.handling = replace(desk.handling, policy=SKIP)
    written = desk.write(range(5))
    assert [row["id"] for row in rows_of(written)] == [0, 1, 2, 4]
    assert isinstance(written, BatchWritten)
    assert (written.partitions[P0].skipped, written.partitions[P0].bad) == (1, 1)

    desk.handling = Handling()
    stopped = desk.write(range(5))
    assert isinstance(stopped, BatchFailed)
    assert isinstance(stopped.fatal, PoisonRecord)
    assert "trips partition 0 offset 3: " in stopped.reason
    assert "3 is odd" in stopped.reason


@pytest.mark.parametrize("kind", [OSError, ConnectionResetError, MemoryError, ServerError])
def test_what_another_system_is_to_blame_for_condemns_no_record(
    desk: Desk, break_at: Break, kind: type[Exception]
) -> None:
    break_at({3}, kind)
    outcome = desk.write(range(20))
    assert isinstance(outcome, BatchFailed)
    assert (outcome.fatal, outcome.unforeseen) == (None, False)
    assert "3 is odd" in outcome.reason
    assert desk.files() == []


def test_a_trial_that_a_store_does_not_delete_is_left_behind(
    desk: Desk, break_at: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of stores raise what they like."""

    class Refusing(PyArrowFileIO):
        def delete(self, location: str | InputFile | OutputFile) -> None:
            raise RuntimeError(f"not authorised to remove {location}")

    monkeypatch.setattr(poison_search, "open_file_io", lambda *_: Refusing())
    break_at({3}, ValueError)
    assert [row["id"] for row in rows_of(desk.write(range(5)))] == [0, 1, 2, 4]


@pytest.mark.parametrize("policy", Disposal)
def test_what_every_record_does_is_not_the_records_fault(
    desk: Desk, break_at: Break, policy: Disposal
) -> None:
    break_at(set(range(1_000)), TypeError)
    desk.handling = replace(desk.handling, policy=policy)
    outcome = desk.write(range(200), range(200))
    assert isinstance(outcome, BatchFailed)
    assert "HG-404" in outcome.reason
    assert "TypeError" in outcome.reason
    assert desk.files() == []
    if not isinstance(outcome.fatal, PoisonRecord):  # the sink stops, and names the first of them
        assert (outcome.fatal, outcome.unforeseen) == (None, True)
    else:
        assert policy is Disposal.FAIL


def test_what_no_record_does_alone_is_not_narrowed(desk: Desk) -> None:
    """Two that only fail together, or a batch that fails now and then."""
    batch = Batch(
        number=1,
        transaction=TransactionId(Epoch(1), TransactionNumber(1)),
        table=desk.start("db.t"),
        ranges={P0: OffsetRange(5, 105), P1: OffsetRange(0, 3)},
        target_file_bytes=1,
    )
    plan = Plans(desk.local.catalog).load_plan(batch, SourcePlan({}))
    tried: list[Mapping[TopicPartition, OffsetRange]] = []

    def attempt(plan: WriterPlan, part: Batch) -> BatchOutcome:
        assert not plan.poison_records
        tried.append(part.ranges)
        if part.ranges == batch.ranges:
            return BatchFailed(part.number, "odd", unforeseen=True)
        return BatchWritten(part.number, {})

    assert write_around_poison(attempt, plan, batch) == BatchFailed(1, "odd", unforeseen=True)
    assert len(tried) == 3, "the whole, and its halves"


def test_only_a_few_records_of_a_batch_are_searched_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, searches = PartitionedRows.add_rows, []
    found = poison_search._find_record_at_fault

    def taking(self: PartitionedRows, rows: pa.RecordBatch) -> None:
        if "id" in rows.schema.names and any(number % 2 for number in ids_in(rows)):
            raise ValueError("odd")
        take(self, rows)

    def searching(*arguments: Any) -> Any:
        searches.append(1)
        return found(*arguments)

    monkeypatch.setattr(PartitionedRows, "add_rows", taking)
    monkeypatch.setattr(poison_search, "_find_record_at_fault", searching)
    outcome = desk.write(range(100))
    assert isinstance(outcome, BatchFailed)
    assert outcome.unforeseen
    assert len(searches) == POISON_RECORDS_MAX
    assert desk.files() == []


def test_a_key_or_header_may_be_at_fault(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = RecordColumns.build_columns_and_bad_rows

    def broken(self: RecordColumns, chunk: Any) -> Any:
        if 2 in chunk.offsets:
            raise IndexError("no such header")
        return columns(self, chunk)

    monkeypatch.setattr(RecordColumns, "build_columns_and_bad_rows", broken)
    written = desk.write(range(5))
    (aside,) = rows_of(written, aside=True)
    assert (aside["offset"], aside["message"]) == (2, "IndexError: no such header")


def test_a_format_that_gives_too_few_rows_loses_none(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = JsonRecords.decode

    def forgetful(self: JsonRecords, values: Any, schema: pa.Schema) -> pa.RecordBatch:
        rows = decode(self, values, schema)
        return rows.filter(pa.array([number != 2 for number in ids_in(rows)]))

    monkeypatch.setattr(JsonRecords, "decode", forgetful)
    written = desk.write(range(5))
    assert [row["id"] for row in rows_of(written)] == [0, 1, 3, 4]
    assert [row["offset"] for row in rows_of(written, aside=True)] == [2]


def test_reasons_are_redacted_and_bounded(desk: Desk, break_at: Break) -> None:
    class LeakyError(Exception):
        def __init__(self, text: str) -> None:
            super().__init__(f"{text} http://me:pass@host sesame-open {'x' * 100_000}")

    break_at({1}, LeakyError)
    desk.redaction = Redaction(frozenset({"sesame-open"}))
    (aside,) = rows_of(desk.write(range(3)), aside=True)
    assert "sesame" not in aside["message"]
    assert ":pass@" not in aside["message"]
    assert len(aside["message"]) < 1_100
    desk.handling = Handling()
    stopped = desk.write(range(3))
    assert isinstance(stopped, BatchFailed)
    assert "sesame" not in stopped.reason
    assert len(stopped.reason) < 2_000


def test_a_format_that_raises_for_no_values_at_all_holds_nothing_up() -> None:
    """As somebody's own may, for a chunk of which nothing but tombstones came."""
    schema, asked = pa.schema([("id", pa.int64())]), list[int]()

    def read(some: Chunk) -> Read:
        asked.append(len(some.offsets))
        if len(asked) > 9:
            raise SystemExit("asked without end")
        raise KeyError("id")

    found = read_around_poison(chunk_of([[]]), schema, read)
    assert (found.rows.num_rows, found.rows.schema, list(found.bad)) == (0, schema, [])


def test_an_error_shows_nothing_of_the_record_when_told_so(desk: Desk) -> None:
    desk.handling = Handling(excerpts=False)
    shown = replace(desk.handling, excerpts=True)
    for handling, expected in ((desk.handling, False), (shown, True)):
        desk.handling = handling
        stopped = desk.write([1, 2**70])
        assert isinstance(stopped, BatchFailed)
        assert isinstance(stopped.fatal, PoisonRecord)
        assert "trips partition 0 offset 1: " in stopped.reason
        assert (str(2**70) in stopped.reason) is expected
        assert ("the value begins" in stopped.reason) is expected
        assert expected or "does not fit into the column id" in stopped.reason


def test_who_is_to_blame_is_seen_through_what_was_raised_from_it() -> None:
    wrapped = ValueError("cannot go on")
    wrapped.__cause__ = ConnectionResetError("gone")
    assert is_external_failure(wrapped)
    assert not is_external_failure(ValueError("gone"))
    outcome = failed_outcome_of(3, ValueError("gone"))
    assert outcome == BatchFailed(3, "ValueError: gone", unforeseen=True)
    assert pickle.loads(pickle.dumps(outcome)) == outcome
    assert not failed_outcome_of(3, wrapped).unforeseen


def test_files_that_nobody_was_told_of_are_deleted_with_the_keys_of_their_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plan(location: str, **more: Any) -> Any:
        shape = SimpleNamespace(data_location=location)
        return SimpleNamespace(shape=shape, io_properties={"keys of": location}, **more)

    routed = {
        name: SimpleNamespace(plan=made) for name, made in [("a", plan("s3://a")), ("b", None)]
    }
    own = plan("s3://own", quarantine=plan("s3://quarantine"), tables=routed)
    deleted = list[tuple[str, str]]()
    monkeypatch.setattr(poison_search, "open_file_io", lambda properties, _: properties["keys of"])
    monkeypatch.setattr(
        poison_search,
        "delete_quietly",
        lambda keys, paths: deleted.extend((keys, p) for p in paths),
    )
    places = ("own", "quarantine", "a")
    files: Any = [SimpleNamespace(path=f"s3://{place}/f.parquet") for place in places]
    poison_search.delete_unannounced_files(own, files)
    assert deleted == [(f"s3://{place}", f"s3://{place}/f.parquet") for place in places]
