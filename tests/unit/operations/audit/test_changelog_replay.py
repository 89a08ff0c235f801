"""A keyed table is compared with the fold of its source, and what differs is found."""

from __future__ import annotations

import datetime as dt
import hmac
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.types import StringType, TimestamptzType
from pyroaring import BitMap64
from support.keyed_world import COLUMNS, NAME, SINK, Event, KeyedWorld
from support.local_catalog import LocalCatalog, local_catalog
from unit.operations.audit.test_keyed_tables import SINK_FILE
from unit.operations.routed_shop import expire_all_but_refs

from headgate.config.load import parse
from headgate.control_protocol.commit_record import PartitionCohorts
from headgate.control_protocol.errors import KeyInTwoPartitions
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.rows_deleted_by_people import DeletedRecords
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.kafka.push_source import Record
from headgate.kafka.record_fetch import Chunk
from headgate.native.kernels import Words
from headgate.operations.audit.changelog_replay import ReplayResult, SourceRanges, open_replay
from headgate.operations.audit.keyed_tables import conclude_replay
from headgate.operations.audit.replay_compare import (
    OURS,
    SLICE_BYTES,
    Fault,
    SliceCount,
    Slices,
    positions_of_differences,
)
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing
from headgate.tables.iceberg.upsert.key_index import KeyHash
from headgate.tables.iceberg.upsert.key_reader import KeyReader
from headgate.tables.iceberg.upsert.upsert_commit import KeyedBy, KeyedRows


@dataclass
class Told:
    """A sink's table, and the log that its records came from; they need not agree."""

    local: LocalCatalog
    world: KeyedWorld
    log: list[Record] = field(default_factory=list)

    def commit(self, *events: Event) -> None:
        """Write the events into the log, and commit them."""
        self.produce(*events)
        self.world.commit(list(events))

    def produce(self, *events: Event, **values: Any) -> None:
        """Write the events into the log alone, with these values in their rows."""
        for event in events:
            offset = sum(record.partition == event.partition for record in self.log)
            self.log.append(record_of(event, offset, values))

    def instead(self, offset: int, event: Event, **values: Any) -> None:
        """Replace a record of partition 0."""
        (place,) = (n for n, r in enumerate(self.log) if (r.partition, r.offset) == (0, offset))
        self.log[place] = record_of(event, offset, values)

    def folded(
        self,
        begins: Mapping[int, int] | None = None,
        left_out: Mapping[TopicPartition, BitMap64] | None = None,
        more: str = "",
        slice_bytes: int = SLICE_BYTES,
        cohorts: PartitionCohorts | None = None,
    ) -> ReplayResult:
        """``begins``: where the log begins by now, by partition."""
        properties = "\n".join(f'{k} = "{v}"' for k, v in self.local.properties.items())
        text = SINK_FILE.format(
            sink=SINK, catalog=self.local.name, properties=properties, table=NAME
        )
        ends: dict[int, int] = {}
        for record in self.log:
            ends[record.partition] = max(record.offset + 1, ends.get(record.partition, 0))
        ranges = {
            TopicPartition("topic", p): OffsetRange((begins or {}).get(p, 0), end)
            for p, end in ends.items()
        }
        with_ids = SourceRanges(ranges, {}, left_out or {}, cohorts or {})
        reader = IcebergReader(self.world.load(), SINK, "main")
        with open_replay(parse(text + more), with_ids, slice_bytes) as folded:
            number = folded.add_table_and_return_number(reader)
            folded.read_source(lambda _: None, chunks=self._chunks)
            return folded.compare_table(number)

    def _chunks(self, plan: WriterPlan, batch: Batch) -> Generator[Chunk, None, None]:
        del plan
        for at, span in batch.ranges.items():
            records = [
                record
                for record in self.log
                if record.partition == at.partition and record.offset in range(span.begin, span.end)
            ]
            for begin in range(0, len(records), 7):
                some: list[list[Record]] = [[] for _ in batch.ranges]
                some[list(batch.ranges).index(at)] = records[begin : begin + 7]
                yield chunk_of(some)


def record_of(event: Event, offset: int, values: Mapping[str, Any]) -> Record:
    row = {"id": event.key[0], "name": "", "zone": event.zone, "n": offset} | dict(values)
    value = None if event.zone is None else json.dumps(row).encode()
    return Record("topic", event.partition, offset, 0, value, str(event.key[0]).encode(), [])


def put(key: int, zone: str = "a", partition: int = 0) -> Event:
    return Event((key,), zone, partition)


def gone(key: int, partition: int = 0) -> Event:
    return Event((key,), None, partition)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    """To be filled by the test."""
    local = local_catalog(tmp_path)
    yield Told(local, KeyedWorld.create(local.catalog, 2))
    local.catalog.close()


@pytest.fixture(scope="module", params=[2, 3])
def right(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Told:
    """A table that is the fold of its log: 20 rows of 37 changes."""
    local = local_catalog(tmp_path_factory.mktemp("filled"))
    made = Told(local, KeyedWorld.create(local.catalog, request.param))
    made.commit(*(put(n) for n in range(20)), put(30, partition=1))
    made.commit(*(put(n, "b") for n in range(10)), gone(19), gone(18), gone(77))
    made.commit(put(19, "c"), gone(3), put(31, partition=1))
    return made


@pytest.fixture
def filled(right: Told) -> Told:
    """The same table, with a log that the test may change."""
    return Told(right.local, right.world, list(right.log))


def counts(evidence: ReplayResult) -> dict[Fault, int]:
    return {fault: found for fault in Fault if (found := evidence.faults.count_of(fault))}


@pytest.mark.parametrize("slice_bytes", [SLICE_BYTES, 500, 50])
def test_a_table_that_is_the_fold_of_its_source_is_well(filled: Told, slice_bytes: int) -> None:
    evidence = filled.folded(slice_bytes=slice_bytes)
    assert counts(evidence) == {}
    assert (evidence.faults.rows, evidence.faults.records) == (20, 37)
    assert not [*evidence.find_faults(), *evidence.describe_unproven({})]


def test_a_source_without_records_does_not_bring_the_whole_table_into_one_slice(
    tmp_path: Path,
) -> None:
    slicing = SliceCount(rows=100, bytes_max=1_000)
    rows = [dict(zip(OURS.names, (high, 0, 0, 0, False), strict=True)) for high in range(100)]
    Slices(tmp_path, "records", OURS, slicing).flush()
    table = Slices(tmp_path, "rows", OURS, slicing)
    table.add_rows(pa.RecordBatch.from_pylist(rows, OURS))
    table.flush()
    assert slicing.count > 1
    assert table.read_slice(0).num_rows < 100


def test_shape_2_a_record_that_where_leaves_out_deletes_its_key_in_the_replay_too(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same settings as the writer's say what the table must hold: also of a hidden column."""
    monkeypatch.setenv("HASH_KEY", "k" * 32)
    told.commit(put(1, "a"), put(2, "a"), put(3, "b"), put(1, "b"))
    where = "[shape]\nwhere = \"zone = 'a'\"\n"
    assert counts(told.folded(more=where)) == {Fault.INVENTED: 2}
    told.commit(gone(1), gone(3))
    assert counts(told.folded(more=where)) == {}
    hidden = told.folded(more='[shape]\nhash = ["zone"]\nhash_key = "${env:HASH_KEY}"\n')
    assert counts(hidden) == {Fault.VALUE: 1}


@pytest.mark.parametrize("zone", ["string", "fixed(32)", "binary"])
def test_shape_3_a_hashed_column_is_compared_as_its_table_has_it(
    told: Told, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    monkeypatch.setenv("HASH_KEY", "k" * 32)
    columns = {**COLUMNS, "zone": zone}
    catalog = told.local.catalog
    catalog.drop_table(NAME)
    create_table_if_missing(catalog, NAME, TableDeclaration(columns, key=("id",)))
    told = Told(told.local, KeyedWorld.create(catalog, 2))

    def hashed(text: str) -> Any:
        digest = hmac.digest(b"k" * 32, text.encode(), "sha256")
        return digest.hex() if zone == "string" else digest

    told.produce(put(1, "a"), put(2, "ä"), put(1, "b"), put(3, "c"))
    told.world.commit([put(n, hashed(text)) for n, text in ((1, "a"), (2, "ä"), (1, "b"))])
    told.world.commit([put(3, hashed("another"))])
    shape = '[shape]\nhash = ["zone"]\nhash_key = "${env:HASH_KEY}"\n'
    assert counts(told.folded(more=shape)) == {Fault.VALUE: 1}


def test_a_row_that_was_dropped_is_found(filled: Told) -> None:
    filled.produce(put(40), put(41, partition=1))
    evidence = filled.folded()
    assert counts(evidence) == {Fault.LOST: 2}
    (found,) = evidence.find_faults()
    assert found.what == "row-lost"
    assert "topic/0@35" in found.evidence
    assert "topic/1@2" in found.evidence
    assert evidence.faulty_row_count(TopicPartition("topic", 1), Fault.LOST) == 1


def test_a_row_that_others_may_have_deleted_before_all_that_is_left_is_unproven(
    told: Told,
) -> None:
    told.commit(*(put(n) for n in range(9)))
    told.world.load().delete("id = 3")
    told.commit(put(20))
    expire_all_but_refs(told.world.catalog, NAME)

    evidence = told.folded()
    history = IcebergReader(told.world.load(), SINK, "main").history()
    said = conclude_replay(evidence, history, {}, 0)

    assert (counts(evidence), evidence.faults.old) == ({Fault.LOST: 1}, 1)
    assert said.findings == []
    assert any("1 key has no row" in text and "expired" in text for text in said.unproven)
    told.produce(put(40))
    said = conclude_replay(told.folded(), history, {}, 0)
    assert [found.what for found in said.findings] == ["row-lost"]


class Blind(KeyHash):
    """Takes all keys for one."""

    def __call__(self, columns: Sequence[pa.Array]) -> tuple[Words, Words]:
        return (nothing := np.zeros(len(columns[0]), np.uint64)), nothing


def test_a_row_that_died_for_another_key_with_the_same_hash_is_found(told: Told) -> None:
    """A commit does not read back the keys of rows that die; the audit has seeds of its own."""
    keyed = KeyedRows(KeyedBy(("id",), "from_partition", "from_offset"), KeyReader(Blind()))
    told.world.table = IcebergTable(told.local.catalog, NAME, SINK, threads=False, keyed=keyed)
    told.commit(put(1))
    told.commit(put(2))
    (found,) = told.folded().find_faults()
    assert found.what == "row-lost"
    assert found.evidence.endswith("records topic/0@0")
    with pytest.raises(KeyInTwoPartitions):
        told.commit(put(3, partition=1))


def test_an_update_that_was_dropped_is_found(filled: Told) -> None:
    filled.produce(put(6, "d"))
    assert counts(filled.folded()) == {Fault.OUTDATED: 1}


def test_a_row_that_was_deleted_and_is_there_is_found(filled: Told) -> None:
    filled.produce(gone(6))
    assert counts(filled.folded()) == {Fault.UNDELETED: 1}


def test_a_value_that_was_changed_is_found(filled: Told) -> None:
    filled.instead(33, put(19, "c"), n=1_000, name="x")
    evidence = filled.folded()
    assert counts(evidence) == {Fault.VALUE: 1}
    (found,) = evidence.find_faults()
    assert found.what == "value-differs"
    assert "in n, name: records topic/0@33" in found.evidence


def test_a_row_of_another_record_is_found(filled: Told) -> None:
    """Its coordinates are those of a record with another key."""
    filled.instead(25, put(50, "b"))
    assert counts(filled.folded()) == {Fault.LOST: 1, Fault.INVENTED: 1}


def test_what_the_log_no_longer_holds_is_unproven(filled: Told) -> None:
    """The row of 19 is of a retained record; others' are not, and 3 was deleted by one."""
    evidence = filled.folded({0: 33, 1: 1})
    assert counts(evidence) == {Fault.AGED: 18}
    (said,) = evidence.describe_unproven({})
    assert "18 rows are of records that the source no longer holds" in said
    filled.produce(gone(5))
    assert counts(filled.folded({0: 33, 1: 1})) == {Fault.AGED: 17, Fault.UNDELETED: 1}


def test_what_compaction_removed_is_unproven(filled: Told) -> None:
    """The row of 5 stays until the sink reads what came after it; its record is gone."""
    filled.log = [record for record in filled.log if record.offset != 25]
    evidence = filled.folded()
    assert counts(evidence) == {Fault.VANISHED: 1}
    (said,) = evidence.describe_unproven({"topic": True})
    assert "topic is compacted" in said


def test_a_compacted_topic_has_all_that_the_fold_needs(filled: Told) -> None:
    last = {(record.partition, record.key): record.offset for record in filled.log}
    filled.log = [r for r in filled.log if last[(r.partition, r.key)] == r.offset]
    assert counts(filled.folded()) == {}


def test_keys_in_two_partitions_are_unproven(filled: Told) -> None:
    filled.produce(gone(40), put(40, partition=1))
    evidence = filled.folded()
    assert counts(evidence) == {Fault.CROSSED: 1}
    assert "several partitions" in next(evidence.describe_unproven({}))


def test_of_a_key_the_youngest_partition_has_the_last_record(told: Told) -> None:
    """Whatever its offset; two of one age are unproven as before."""
    younger = {"topic": (2,)}
    told.commit(put(1), put(2), put(3), put(4), gone(3), put(5, partition=1))
    told.produce(put(3, partition=2), put(1, partition=2), gone(2, partition=2))
    assert counts(told.folded(cohorts=younger)) == {
        Fault.LOST: 1,
        Fault.OUTDATED: 1,
        Fault.UNDELETED: 1,
    }
    told.produce(put(4, partition=1))
    assert counts(told.folded(cohorts=younger))[Fault.CROSSED] == 1


def test_quarantined_records_are_no_changes(filled: Told) -> None:
    """They could be read now, and were not then."""
    filled.produce(put(1, "q"))
    at = TopicPartition("topic", 0)
    assert counts(filled.folded()) == {Fault.OUTDATED: 1}
    assert counts(filled.folded(left_out={at: BitMap64([filled.log[-1].offset])})) == {}


def test_tombstones_that_are_skipped_and_bad_records_change_nothing(told: Told) -> None:
    told.commit(put(1), put(2))
    told.produce(gone(1))
    told.produce(put(2), n="no number")
    evidence = told.folded(more='[changes]\ntombstones = "skip"\n')
    assert counts(evidence) == {}
    assert (evidence.read.passed_over, evidence.read.bad) == (1, 1)


def test_a_deletion_vector_that_was_lost_is_found(told: Told) -> None:
    """The table is rolled back to where rows were alive, and its offsets are not."""
    told.commit(*(put(n) for n in range(5)))
    before = told.world.load().current_snapshot()
    assert before
    told.commit(put(1, "b"), gone(2))
    told.world.roll_back(before.snapshot_id)
    assert counts(told.folded()) == {Fault.OUTDATED: 1, Fault.UNDELETED: 1}


def test_keys_that_are_there_twice_are_found(told: Told) -> None:
    """Somebody appends the row of 1 before its update, and that of 2 once more."""
    told.commit(*(put(n) for n in range(5)))
    old = told.world.source.fold[(1,)]
    told.commit(put(1, "b"))
    table = told.world.load()
    table.append(
        pa.Table.from_pylist([old, told.world.source.fold[(2,)]], table.schema().as_arrow())
    )
    assert counts(told.folded()) == {Fault.TWICE: 2}


def test_a_column_that_came_later_is_unproven_where_it_is_empty(told: Told) -> None:
    told.commit(put(1))
    told.produce(put(2), more="later")
    told.world.commit([put(2)])
    with told.world.load().update_schema() as update:
        update.add_column("more", StringType())
    evidence = told.folded()
    assert counts(evidence) == {Fault.NEW_COLUMN: 1}
    assert "were added later (more)" in next(evidence.describe_unproven({}))


NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "other", "kind", "places"),
    [
        ([1.0, NAN, None, 0.5], [1.0, NAN, None, 0.25], pa.float64(), [3]),
        ([1.0, NAN], [NAN, NAN], pa.float32(), [0]),
        ([[NAN], [1.0], None], [[NAN], [2.0], []], pa.list_(pa.float64()), [1, 2]),
        ([{"a": 1}, {"a": None}], [{"a": 1}, None], pa.struct([("a", pa.int32())]), [1]),
        (["a", None, "b"], ["a", "", "b"], pa.string(), [1]),
        ([], [], pa.string(), []),
    ],
)
def test_values_are_compared_one_by_one(
    one: list[Any], other: list[Any], kind: pa.DataType, places: list[int]
) -> None:
    assert positions_of_differences(pa.array(one, kind), pa.array(other, kind)) == places


MARK = '[changes]\non_delete = "mark"\n'


def marked(told: Told, key: int, offset: int, at_ms: int = 0) -> None:
    """What a sink whose deletes mark rows makes of the log's newest record."""
    table = told.world.load()
    if table.scan(f"id = {key}").count():
        table.delete(f"id = {key}")
    row = {"id": key, "from_partition": 0, "from_offset": offset}
    row |= {"deleted_at": dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)}
    table.append(pa.Table.from_pylist([row], table.schema().as_arrow()))


@pytest.fixture
def marking(told: Told) -> Told:
    with told.world.load().update_schema() as update:
        update.add_column("deleted_at", TimestamptzType())
        update.make_column_optional("name")
    told.commit(*(put(n) for n in range(9)))
    told.produce(gone(1))
    marked(told, 1, 9)
    return told


def test_key_13_a_key_whose_last_record_deletes_has_one_row_and_that_is_marked(
    marking: Told,
) -> None:
    evidence = marking.folded(more=MARK)
    assert counts(evidence) == {}
    assert (evidence.faults.rows, evidence.faults.marked) == (9, 1)
    assert counts(marking.folded()) == {Fault.INVENTED: 1}
    marking.produce(gone(2), gone(77))
    assert counts(marking.folded(more=MARK)) == {Fault.OUTDATED: 1, Fault.LOST: 1}
    marked(marking, 2, 10, at_ms=1)
    assert counts(marking.folded(more=MARK)) == {Fault.VALUE: 1, Fault.LOST: 1}
    marked(marking, 77, 11)
    marked(marking, 2, 10)
    assert counts(marking.folded(more=MARK)) == {}
    marking.produce(put(1))
    assert counts(marking.folded(more=MARK)) == {Fault.OUTDATED: 1}


HISTORY = """timestamp = "changed_at"
[changes]
history = true
"""


@dataclass
class Versions:
    """A history, and the log that its versions came from; they need not agree."""

    told: Told

    def __post_init__(self) -> None:
        with self.told.world.load().update_schema() as update:
            update.add_column("deleted_at", TimestamptzType())
            update.add_column("changed_at", TimestamptzType())
            update.make_column_optional("name")

    def take(self, *events: Event) -> None:
        """Write the events into the log, and their versions into the table."""
        self.told.produce(*events)
        self.append(*(self.version_of(record) for record in self.told.log[-len(events) :]))

    def append(self, *rows: dict[str, Any]) -> None:
        table = self.told.world.load()
        table.append(pa.Table.from_pylist([*rows], table.schema().as_arrow()))

    @staticmethod
    def version_of(record: Record) -> dict[str, Any]:
        assert record.key
        at = dt.datetime.fromtimestamp(0, dt.UTC)
        row = {"id": int(record.key)} if record.value is None else json.loads(record.value)
        row |= {"from_partition": record.partition, "from_offset": record.offset}
        return row | {"changed_at": at, "deleted_at": at if record.value is None else None}

    def folded(self, **more: Any) -> ReplayResult:
        return self.told.folded(more=HISTORY, **more)


@pytest.fixture
def versions(told: Told) -> Versions:
    result = Versions(told)
    result.take(*(put(n) for n in range(9)), put(1, "b"), put(1, "b"), gone(1), gone(2), put(1))
    return result


@pytest.mark.parametrize("slice_bytes", [SLICE_BYTES, 500, 50])
def test_key_14_each_change_has_one_version_with_its_values(
    versions: Versions, slice_bytes: int
) -> None:
    evidence = versions.folded(slice_bytes=slice_bytes)
    assert counts(evidence) == {}
    faults = evidence.faults
    assert (faults.rows, faults.keys, faults.marked, faults.records) == (14, 9, 2, 14)
    history = IcebergReader(versions.told.world.load(), SINK, "main").history()
    (said,) = conclude_replay(evidence, history, {}, 0).proven
    assert said.startswith("14 rows are the versions of 9 keys, value by value, 2 of them marked")


def test_key_14_a_version_that_is_missing_added_or_changed_is_found(versions: Versions) -> None:
    told = versions.told
    told.world.load().delete("from_offset = 9")  # neither the first nor the last of its key
    (found,) = versions.folded().find_faults()
    assert (found.what, "1 changes have no version" in found.evidence) == ("row-lost", True)
    assert "topic/0@9" in found.evidence
    versions.append(versions.version_of(told.log[9]), versions.version_of(told.log[9]))
    assert counts(versions.folded()) == {Fault.TWICE: 1}
    told.instead(10, put(1, "c"))
    assert counts(versions.folded()) == {Fault.TWICE: 1, Fault.VALUE: 1}
    told.instead(11, put(1, "d"))  # its version says that the key was deleted
    assert versions.folded().faults.columns[Fault.VALUE] >= {"zone", "deleted_at"}
    told.instead(12, put(50))
    assert counts(versions.folded())[Fault.INVENTED] == counts(versions.folded())[Fault.LOST] == 1


def test_key_14_rows_that_persons_deleted_without_saying_of_which_records_are_unproven(
    versions: Versions,
) -> None:
    versions.told.world.load().delete("from_offset = 9")
    history = IcebergReader(versions.told.world.load(), SINK, "main").history()
    foreign = tuple(replace(each, upkeep=True) for each in history.foreign)
    by_persons = replace(history, foreign=foreign, deleted=DeletedRecords(rows=1))
    said = conclude_replay(versions.folded(), by_persons, {}, 0)
    assert said.findings == []
    assert any("1 change has no version, and" in text for text in said.unproven)
    assert any("persons deleted 1" in text for text in said.unproven)


def test_key_14_what_a_compacted_topic_dropped_since_is_unproven(versions: Versions) -> None:
    versions.told.log = [record for record in versions.told.log if record.offset != 9]
    evidence = versions.folded()
    assert counts(evidence) == {Fault.VANISHED: 1}
    assert counts(versions.folded(begins={0: 10})) == {Fault.AGED: 10}


def test_key_16_versions_in_two_partitions_are_compared_and_their_order_is_unproven(
    versions: Versions,
) -> None:
    versions.take(put(1, partition=1), put(40, partition=1))
    evidence = versions.folded()
    assert counts(evidence) == {Fault.CROSSED: 1}
    assert evidence.faults.rows == 16
    (said,) = evidence.describe_unproven({})
    assert "1 key has records in several partitions" in said
    assert "nothing tells which was first" in said


@pytest.mark.parametrize("before", ['{"topic": {"0": 10}}', "null"])
def test_key_13_what_was_deleted_before_the_choice_changed_may_be_marked_or_gone(
    marking: Told, before: str
) -> None:
    marking.produce(gone(2))
    marking.world.load().delete("id = 2")
    assert counts(marking.folded(more=MARK)) == {Fault.LOST: 1}
    choice = f'{{"marks": 9, "before": {before}}}'
    with marking.world.load().transaction() as changed:
        changed.set_properties({f"headgate.{SINK}.on-delete": choice})
    everywhere = before == "null"
    expected = Fault.FORMER_DELETE if everywhere else Fault.LOST
    evidence = marking.folded(more=MARK)
    assert counts(evidence) == {expected: 1}
    assert (
        any("before changes.on_delete" in t for t in evidence.describe_unproven({})) == everywhere
    )
    assert counts(marking.folded()) == {Fault.FORMER_DELETE: 1}
    marking.produce(put(1))
    assert counts(marking.folded()) == {Fault.OUTDATED: 1}
