"""Rows that a function of the sink's own gives in this process: each record once or left out,
checked as a transform by Spark is (SHAPE-5)."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support import user_functions
from support.local_catalog import LocalCatalog, local_catalog
from support.user_functions import NEEDLE
from unit.data_plane.write.test_row_shape import KEY, everything_in
from unit.data_plane.write.test_write_batch_multi_table import BY_TOPIC, KEPT, Desk, rows_in

from headgate.config.sink_sections import TransformSettings
from headgate.config.table_declaration import quarantine_declaration, transform_plan
from headgate.config.table_settings import ColumnSettings
from headgate.control_protocol.errors import (
    ConfigurationError,
    PoisonRecord,
    RecordUnmatched,
    TooManyBadRecords,
    TransformFailed,
)
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome, BatchWritten
from headgate.control_protocol.quarantine_policy import BadRecordLimits, Disposal
from headgate.data_plane.batch.row_rules import Expectation, RowRules
from headgate.data_plane.batch.transform_and_distribution import Shaping, TransformPlan
from headgate.data_plane.batch.writer_task_plan import Handling, Plans, SourcePlan, WriterPlan
from headgate.data_plane.quarantine.poison_search import ALONE_MAX
from headgate.data_plane.routing.routes import Route
from headgate.data_plane.write import write_batch
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.write_batch import write_ranges_around_poison
from headgate.kafka.push_source import Record
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

COLUMNS = {
    "id": "long not null",
    "zone": "string",
    "fare": "double",
    "part": "int",
    "place": "long",
}
PARTS = {"partition": "part", "offset": "place"}
TOPIC = "trips"
FIRST, SECOND = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


class OneTable:
    """A table, and batches of two partitions that are read in chunks of a few records each."""

    def __init__(
        self,
        home: Path,
        function: str,
        *,
        handling: Handling = KEPT,
        rules: RowRules | None = None,
        chunk_records: int = 10,
        columns: Mapping[str, str] = COLUMNS,
    ) -> None:
        self.local = local_catalog(home)
        create_table_if_missing(self.local.catalog, "db.trips", TableDeclaration(columns))
        create_table_if_missing(self.local.catalog, "db.q", quarantine_declaration())
        transform = TransformPlan(
            function=f"support.user_functions:{function}" if ":" not in function else function,
            in_process=True,
        )
        self._plans = Plans(self.local.catalog, Shaping(transform, rules=rules))
        self._source = SourcePlan({}, record_columns=PARTS, handling=handling, sink="sink")
        self._chunk_records = chunk_records

    def outcome(self, monkeypatch: pytest.MonkeyPatch, *partitions: Sequence[Any]) -> BatchOutcome:
        records = [
            [_record(number, offset, value) for offset, value in enumerate(values)]
            for number, values in enumerate(partitions)
        ]
        batch = Batch(
            number=1,
            transaction=TransactionId(Epoch(3), TransactionNumber(7)),
            table=self._start("db.trips"),
            ranges={
                TopicPartition(TOPIC, number): OffsetRange(0, len(values))
                for number, values in enumerate(partitions)
            },
            target_file_bytes=1 << 27,
            topic_ids={TOPIC: TopicId(TOPIC)},
            quarantine=self._start("db.q"),
            folder="headgate/shop/3-a1/7",
        )

        def chunks(_: WriterPlan, part: Batch) -> Iterator[Any]:
            wanted = [
                record
                for place, span in enumerate(part.ranges.values())
                for record in records[place][span.begin : span.end]
            ]
            wanted.sort(key=lambda each: each.offset)  # partitions take turns, as they are fetched
            for begin in range(0, len(wanted), self._chunk_records):
                some = wanted[begin : begin + self._chunk_records]
                yield chunk_of([[r for r in some if r.partition == n] for n in range(len(records))])

        monkeypatch.setattr(write_batch, "read_source_in_chunks", chunks)
        plan = self._plans.load_plan(batch, self._source)
        return write_ranges_around_poison(plan, batch)

    def _start(self, name: str) -> TableStart:
        table = self.local.catalog.load_table(name)
        prefix = f"{table.location()}/data/headgate/shop/3-a1/7"
        uuid, schema = str(table.metadata.table_uuid), table.schema().schema_id
        return TableStart(name, uuid, schema, table.spec().spec_id, prefix)


def _record(partition: int, offset: int, value: Any) -> Record:
    octets = value if isinstance(value, bytes | None) else json.dumps(value).encode()
    return Record(TOPIC, partition, offset, 1_785_585_600_123, octets, b"key", [])


def trips(*ids: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": n, "zone": "abc"[n % 3], "fare": float(n), **more} for n in ids]


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    user_functions.calls.clear()


def taken(outcome: BatchOutcome, *read: int) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    """Its rows by place, and where the quarantined records are; all ``read`` are accounted for."""
    assert isinstance(outcome, BatchWritten), outcome
    counted = [
        (each.records + each.quarantined + each.skipped, each.records)
        for each in outcome.partitions.values()
    ]
    assert [total for total, _ in counted] == list(read)
    rows = sorted(rows_in(outcome.files), key=lambda row: (row["part"], row["place"]))
    assert [sum(r["part"] == n for r in rows) for n in range(len(read))] == [n for _, n in counted]
    aside = [(row["partition"], row["offset"]) for row in rows_in(outcome.quarantined)]
    return rows, sorted(aside)


# ------------------------------------------------------------------------------------ what is right


def test_a_function_derives_and_leaves_out_and_what_it_left_out_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = OneTable(tmp_path, "cheap")
    outcome = table.outcome(monkeypatch, trips(1, 200, 3), trips(4, 300, 301))
    rows, aside = taken(outcome, 3, 3)
    assert [(r["part"], r["place"], r["id"], r["zone"]) for r in rows] == [
        *((0, 0, 1, "B"), (0, 2, 3, "A"), (1, 0, 4, "B"))
    ]
    assert aside == []
    assert isinstance(outcome, BatchWritten)
    filtered = [(each.filtered, each.skipped, each.bad) for each in outcome.partitions.values()]
    assert filtered == [(1, 1, 0), (2, 2, 0)]


@pytest.mark.parametrize("function", ["backwards", "as_table"])
def test_the_order_of_rows_and_columns_is_the_functions_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    given = trips(*range(30)), trips(*range(50, 75))
    rows, _ = taken(OneTable(tmp_path, function).outcome(monkeypatch, *given), 30, 25)
    assert [row["id"] for row in rows] == [*range(30), *range(50, 75)]
    assert [row["place"] for row in rows] == [*range(30), *range(25)]


def test_a_function_that_leaves_out_everything_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = OneTable(tmp_path, "nothing").outcome(monkeypatch, trips(1, 2))
    assert taken(outcome, 2) == ([], [])
    assert isinstance(outcome, BatchWritten)
    assert outcome.all_files == ()


def test_it_gets_no_call_without_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = OneTable(tmp_path, "count_calls")
    assert taken(table.outcome(monkeypatch, [None, b"{broken"]), 2)[1] == [(0, 0), (0, 1)]
    assert user_functions.calls == []


@pytest.mark.parametrize(("zone", "size"), [("string", 64), ("fixed(32)", 32), ("binary", 32)])
def test_it_gets_rows_after_shape_which_hides_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str, size: int
) -> None:
    seen: list[pa.RecordBatch] = []
    monkeypatch.setattr(user_functions, "count_calls", lambda rows: seen.append(rows) or rows)
    rules = RowRules(
        where="fare >= 1",
        expectations=(Expectation("fare", "fare < 100"),),
        hashed=("zone",),
        key=KEY,
    )
    hidden = replace(KEPT, excerpts=False, keeps_content=False)
    columns = {**COLUMNS, "zone": zone}
    table = OneTable(tmp_path, "count_calls", rules=rules, handling=hidden, columns=columns)
    values = [*trips(0, 1, 2, zone=NEEDLE), *trips(200, zone=NEEDLE)]
    rows, aside = taken(table.outcome(monkeypatch, values), 4)
    assert ([row["id"] for row in rows], aside) == ([1, 2], [(0, 3)])
    assert all(len(row["zone"]) == size for row in rows)
    assert NEEDLE not in repr([each.to_pylist() for each in seen])
    assert [name for each in seen for name in each.schema.names[-1:]] == ["_headgate_record"]


# ------------------------------------------------------------------------------------ what is wrong

WRONG = {
    "double": (TransformFailed, "gives 1 row more than it got records, as of trips partition 0"),
    "renumber": (TransformFailed, "rows of records that were not read, as number 1000"),
    "renumber_within": (TransformFailed, "2 rows of records that were not read, as number -1"),
    "nullify": (TransformFailed, "gives rows without _headgate_record"),
    "as_floats": (ConfigurationError, "gives _headgate_record as double"),
    "without_number": (ConfigurationError, "loses the column _headgate_record"),
    "of_another_type": (TransformFailed, "gives list, not a batch of Arrow's"),
    "column_of_another_type": (ConfigurationError, "gives 'id' as large_string, the table has"),
    "with_a_strange_column": (ConfigurationError, "gives a column 'more', which the table has not"),
    "later_of_another_type": (ConfigurationError, "gives 'id' as large_string, the table has"),
    "keeping_rows": (TransformFailed, "rows of records that were not read, as trips partition 0"),
    "overwriting": (TransformFailed, "gives 99 rows more than it got records"),
    "raising": (TransformFailed, "ZeroDivisionError"),
}


@pytest.mark.parametrize("policy", [Disposal.QUARANTINE, Disposal.FAIL])
@pytest.mark.parametrize("function", WRONG)
def test_a_wrong_function_stops_the_sink_by_name_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, policy: Disposal
) -> None:
    if function == "raising" and policy is Disposal.FAIL:
        pytest.skip("there it stops before the first record, like any other bad one")
    table = OneTable(tmp_path, function, handling=replace(KEPT, policy=policy), chunk_records=100)
    if function in ("keeping_rows", "later_of_another_type"):
        table._chunk_records = 10
    outcome = table.outcome(monkeypatch, trips(*range(100)), trips(*range(100)))
    assert isinstance(outcome, BatchFailed)
    kind, said = WRONG[function]
    assert type(outcome.fatal) is kind
    assert f"transform.python (support.user_functions:{function})" in outcome.fatal.message
    assert said in outcome.fatal.message
    assert list(table.local.warehouse.rglob("*.parquet")) == []


def test_a_function_that_always_raises_is_tried_little_more_than_once_for_each_of_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = OneTable(tmp_path, "raising", chunk_records=5_000)
    outcome = table.outcome(monkeypatch, trips(*range(5_000)))
    assert isinstance(outcome, BatchFailed)
    assert f"with each of the first {ALONE_MAX} records" in outcome.reason
    assert len(user_functions.calls) < 3 * ALONE_MAX


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("support.user_functions:absent", "cannot be loaded"),
        ("support.no_such_module:f", "cannot be loaded"),
        ("support.user_functions", "cannot be loaded"),
        ("support.user_functions:NEEDLE", "is not a function"),
    ],
)
def test_what_is_no_function_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, said: str
) -> None:
    if ":" not in path:
        path += ":"
    outcome = OneTable(tmp_path, path).outcome(monkeypatch, trips(1))
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, ConfigurationError)
    assert said in outcome.fatal.message


# ------------------------------------------------------------------------- what is wrong with a few


@pytest.mark.parametrize("chunk_records", [1, 7, 1_000])
def test_records_for_which_it_raises_are_bad_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_records: int
) -> None:
    table = OneTable(tmp_path, "raising_for_some", chunk_records=chunk_records)
    outcome = table.outcome(
        monkeypatch, [b"{broken", *trips(*range(1, 40))], [None, *trips(*range(1, 10))]
    )
    rows, aside = taken(outcome, 40, 10)
    assert [row["id"] for row in rows if row["part"] == 0] == [
        n for n in range(1, 40) if n % 10 != 7
    ]
    assert aside == [(0, 0), (0, 7), (0, 17), (0, 27), (0, 37), (1, 0), (1, 7)]
    assert isinstance(outcome, BatchWritten)
    (found,) = [r for r in rows_in(outcome.quarantined) if (r["partition"], r["offset"]) == (0, 27)]
    assert found["error_class"] == "exception"
    assert "raising_for_some): KeyError: 'a'" in found["message"]
    assert json.loads(found["value"])["id"] == 27
    assert [each.bad for each in outcome.partitions.values()] == [5, 1]
    assert [each.filtered for each in outcome.partitions.values()] == [0, 0]


def test_its_exceptions_count_towards_the_limits_of_bad_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = BadRecordLimits(per_thousand_max=1_000, records_max=2)
    table = OneTable(tmp_path, "raising_for_some", handling=replace(KEPT, limits=limits))
    outcome = table.outcome(monkeypatch, trips(*range(40)))
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, TooManyBadRecords)
    assert "raising_for_some" in outcome.fatal.message


@pytest.mark.parametrize("function", ["raising_for_some", "nulling"])
def test_batch_2_the_sink_stops_before_the_first_of_each_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """Found in one pass, however many chunks lie between them."""
    policy = Disposal.FAIL if function == "raising_for_some" else Disposal.QUARANTINE
    number = 7 if function == "raising_for_some" else 3
    handling = replace(KEPT, policy=policy)
    table = OneTable(tmp_path, function, handling=handling, chunk_records=6)
    values = trips(*(n for n in range(40) if n % 10 != 7 and n != 3))
    first = [*values[:5], *trips(number), *values[5:], *trips(number)]
    second = [*values[:20], *trips(number)]
    outcome = table.outcome(monkeypatch, first, second)
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, PoisonRecord)
    assert outcome.fatal.first == Offsets({FIRST: 5, SECOND: 20})
    assert f"user_functions:{function})" in outcome.fatal.message
    assert list(table.local.warehouse.rglob("*.parquet")) == []


def test_another_system_that_is_away_is_asked_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = OneTable(tmp_path, "unreachable").outcome(monkeypatch, trips(1, 2))
    assert isinstance(outcome, BatchFailed)
    assert (outcome.fatal, outcome.unforeseen) == (None, False)
    assert "the service of exchange rates is away" in outcome.reason


def test_a_function_that_exits_makes_its_record_a_bad_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, aside = taken(OneTable(tmp_path, "exiting").outcome(monkeypatch, trips(*range(20))), 20)
    assert (len(rows), aside) == (19, [(0, 7)])


@pytest.mark.parametrize("function", ["raising", "raising_for_some"])
def test_what_it_raises_shows_no_content_where_none_may_be_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    function: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    hidden = replace(KEPT, excerpts=False, keeps_content=False)
    table = OneTable(tmp_path, function, handling=hidden, chunk_records=100)
    outcome = table.outcome(monkeypatch, trips(*range(100), zone=NEEDLE))
    seen = repr(outcome) + caplog.text
    if isinstance(outcome, BatchWritten):
        aside = rows_in(outcome.quarantined)
        assert len(aside) == 10
        seen += repr(aside)
    else:
        assert isinstance(outcome.fatal, TransformFailed)
        seen += outcome.fatal.message + repr(outcome.fatal.__cause__)
        assert b"erika" not in everything_in(table.local.warehouse)
    assert NEEDLE not in seen


# -------------------------------------------------------------------------------------- many tables

BY_TABLE = Route(field="_table", to="db.zone_{field}")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCatalog]:
    made = local_catalog(tmp_path)
    create_table_if_missing(made.catalog, "db.ledger", TableDeclaration({"note": "string"}))
    create_table_if_missing(made.catalog, "db.q", quarantine_declaration())
    for name in "ab":
        create_table_if_missing(
            made.catalog, f"db.zone_{name}", TableDeclaration({"id": "long not null"})
        )
    yield made
    made.catalog.close()


def many(local: LocalCatalog, function: str, **handling: Any) -> Desk:
    columns = tuple(
        ColumnSettings(name=name, type=kind) for name, kind in (("id", "long"), ("zone", "string"))
    )
    settings = TransformSettings(python=f"support.user_functions:{function}", columns=columns)
    plan = transform_plan(settings, {}, in_process=True)
    return Desk(local, (BY_TABLE,), replace(KEPT, **handling), shaping=Shaping(plan))


def only_id(records: pa.RecordBatch) -> pa.RecordBatch:
    return user_functions.to_tables(records).drop_columns(["zone"])


def test_routes_look_at_what_the_function_names(
    local: LocalCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_functions, "to_tables_only", only_id, raising=False)
    desk = many(local, "to_tables_only")
    found = desk.write({TOPIC: trips(0, 1, 2, 3, 4, 5)})
    assert found == {"zone_a": [0, 3], "zone_b": [1, 4], "q": [2, 5]}


def test_a_column_that_one_of_the_tables_lacks_sends_its_rows_aside(local: LocalCatalog) -> None:
    found = many(local, "to_tables").messages({TOPIC: trips(0, 2)})
    assert any("gives 'zone', which db.zone_a has not" in each for each in found)


def as_text(records: pa.RecordBatch) -> pa.RecordBatch:
    return user_functions.column_of_another_type(only_id(records))


@pytest.mark.parametrize("odd_ids", [{0}, {3}], ids=["first", "later"])
@pytest.mark.parametrize(
    ("odd", "named"),
    [
        (user_functions.to_tables, "gives 'zone', which db.zone_a has not"),
        (as_text, "db.zone_a: .* gives 'id' as"),
    ],
)
def test_each_result_of_a_function_is_compared_with_its_tables(
    local: LocalCatalog,
    monkeypatch: pytest.MonkeyPatch,
    odd_ids: set[int],
    odd: Callable[[pa.RecordBatch], pa.RecordBatch],
    named: str,
) -> None:
    def changing(records: pa.RecordBatch) -> pa.RecordBatch:
        (one,) = records["id"].to_pylist()  # raises for several, and gets each alone then
        return odd(records) if one in odd_ids else only_id(records)

    monkeypatch.setattr(user_functions, "changing", changing, raising=False)
    desk = many(local, "changing")
    assert desk.write({TOPIC: trips(0, 3)}) == {"zone_a": list({0, 3} - odd_ids), "q": [*odd_ids]}
    (said,) = desk.messages({TOPIC: trips(0, 3)})
    assert re.search(named, said)


def test_records_for_a_suspended_table_go_aside_too(
    local: LocalCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_functions, "to_tables_only", only_id, raising=False)
    desk = many(local, "to_tables_only")
    desk.suspended = {"db.zone_a": "HG-1 its owner did something"}
    assert desk.write({TOPIC: trips(0, 1, 3)}) == {"zone_b": [1], "q": [0, 3]}


def test_what_it_writes_to_the_memory_of_its_rows_does_not_reach_the_quarantine(
    local: LocalCatalog,
) -> None:
    outcome = many(local, "overwriting_values").outcome({TOPIC: trips(1, 2)})
    assert isinstance(outcome, BatchWritten)
    kept = [json.loads(row["value"]) for row in rows_in(outcome.quarantined)]
    assert kept == trips(1, 2)


def test_unmatched_records_of_a_function_may_be_skipped_or_stop_the_sink(
    local: LocalCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_functions, "to_tables_only", only_id, raising=False)
    skipped = many(local, "to_tables_only", unmatched=Disposal.SKIP).outcome({TOPIC: trips(0, 2)})
    assert isinstance(skipped, BatchWritten)
    (result,) = skipped.partitions.values()
    assert (result.records, result.skipped, result.filtered, result.quarantined) == (1, 1, 0, 0)
    stopped = many(local, "to_tables_only", unmatched=Disposal.FAIL).outcome({TOPIC: trips(0, 2)})
    assert isinstance(stopped, BatchFailed)
    assert isinstance(stopped.fatal, RecordUnmatched)
    assert stopped.fatal.first == Offsets({FIRST: 1})


def test_a_route_by_topic_needs_no_column(local: LocalCatalog) -> None:
    create_table_if_missing(
        local.catalog, "db.all", TableDeclaration({"id": "long not null", "zone": "string"})
    )
    desk = many(local, "backwards")
    desk = replace(desk, routes=(replace(BY_TOPIC, topic=TOPIC, to="db.all"),))
    assert desk.write({TOPIC: trips(*range(9))}) == {"all": list(range(9))}


def test_types_that_spark_does_not_have_go_through_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"id": "long", "u": "uuid", "t": "time", "f": "fixed(2)", "s": "timestamptz"}
    local = local_catalog(tmp_path)
    create_table_if_missing(local.catalog, "db.ledger", TableDeclaration({"note": "string"}))
    create_table_if_missing(local.catalog, "db.q", quarantine_declaration())
    create_table_if_missing(local.catalog, "db.all", TableDeclaration(columns))
    declared = tuple(ColumnSettings(name=name, type=kind) for name, kind in columns.items())
    settings = TransformSettings(python="support.user_functions:backwards", columns=declared)
    shaping = Shaping(transform_plan(settings, {}, in_process=True))
    desk = Desk(local, (replace(BY_TOPIC, topic=TOPIC, to="db.all"),), KEPT, shaping=shaping)
    value = {
        "id": 1,
        "u": "123e4567-e89b-12d3-a456-426614174000",
        "t": "06:00:01.5",
        "f": "YWI=",
        "s": "2026-01-01T00:00:00Z",
    }
    outcome = desk.outcome({TOPIC: [value, {"id": 2}]})
    assert isinstance(outcome, BatchWritten)
    assert rows_in(outcome.quarantined) == []
    (files,) = outcome.secondary_files.values()
    rows = sorted(rows_in(files), key=lambda row: row["id"])
    assert str(rows[0]["u"]) == value["u"]
    assert (rows[0]["f"], rows[0]["t"].microsecond, rows[1]["u"]) == (b"ab", 500_000, None)
