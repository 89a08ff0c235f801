"""Which Delta tables can be filled, and what is read of their log by audit and status."""

from __future__ import annotations

import json
import os
import time
import weakref
from decimal import Decimal
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from contract.delta_table_world import DeltaWorld
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from headgate.control_protocol.columns import Column, ListOf, MapOf, Struct
from headgate.control_protocol.errors import (
    ConfigurationError,
    LogUnreadable,
    RecordUnreadable,
    TableUnfit,
    Unreachable,
)
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import Lineage
from headgate.control_protocol.table_format import TableSpec
from headgate.control_protocol.table_history import Newest
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.data_plane.batch.file_schema_plans import plan_of_file_schema
from headgate.data_plane.batch.writer_task_plan import SourcePlan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.data_plane.files.partitioning import PartitionKey
from headgate.operations.audit.table_records import scan_records
from headgate.tables.delta import open_table
from headgate.tables.delta.columns import (
    columns_from_delta,
    delta_schema_from_columns,
    partition_value_text,
)
from headgate.tables.delta.locations import storage_options
from headgate.tables.delta.log import Log, LogEntry, Walk, walk_effective_versions_back_with
from headgate.tables.delta.open_table import DeltaLocation
from headgate.tables.delta.reader import DeltaReader
from headgate.tables.delta.statistics import bound_as_json
from headgate.tables.delta.table_format import DeltaFormat
from headgate.tables.neutral_schema import file_statistics_of

SINK = SinkName("sink")
EVERY_TYPE = Struct(
    (
        *(
            Column(f"a_{kind}", kind, required=False)
            for kind in ("string", "long", "int", "float", "double", "boolean", "binary", "date")
        ),
        Column("at", "timestamptz", required=True),
        Column("local", "timestamp", required=False),
        Column("price", "decimal(12, 3)", required=False),
        Column("tags", ListOf(Column("", "string", required=False)), required=False),
        Column("by", MapOf("string", Column("", "long", required=True)), required=False),
        Column("deep", Struct((Column("inner", "date", required=False),)), required=False),
    )
)


def test_columns_are_the_same_there_and_back() -> None:
    assert columns_from_delta("t", delta_schema_from_columns(EVERY_TYPE, {})) == EVERY_TYPE


@pytest.mark.parametrize("kind", ["uuid", "time", "fixed[4]", "timestamp_ns"])
def test_types_that_delta_has_not(kind: str) -> None:
    columns = Struct((Column("odd", kind, required=False),))
    with pytest.raises(ConfigurationError, match=r"'odd': Delta has no type"):
        delta_schema_from_columns(columns, {})


def test_years_have_four_digits() -> None:
    year_1 = -719_162 * 86_400_000_000
    assert partition_value_text("timestamptz", year_1) == "0001-01-01T00:00:00.000000Z"
    assert partition_value_text("timestamp", year_1 + 7) == "0001-01-01 00:00:00.000007"
    assert bound_as_json("timestamp", year_1) == "0001-01-01T00:00:00.000000"
    assert partition_value_text("date", -719_162) == "0001-01-01"


@pytest.mark.parametrize(
    ("kind", "unit"), [("timestamptz", 86_400_000_000), ("timestamp", 86_400_000_000), ("date", 1)]
)
def test_days_that_delta_has_no_text_for_bound_nothing(kind: str, unit: int) -> None:
    year_1, year_10_000 = -719_162 * unit, 2_932_897 * unit
    assert bound_as_json(kind, year_1 - 1) is bound_as_json(kind, year_10_000) is None
    assert str(bound_as_json(kind, year_1)).startswith("0001-01-01")
    assert str(bound_as_json(kind, year_10_000 - 1)).startswith("9999-12-31")


def test_folders_of_such_days_are_of_bad_records(tmp_path: Path) -> None:
    day, at = Field("day", PrimitiveType("date")), Field("at", PrimitiveType("timestamp"))
    columns = Schema([Field("id", PrimitiveType("long")), day, at])
    DeltaTable.create(tmp_path, columns, partition_by=["day", "at"])
    values = DeltaFormat().file_schema(TableSpec("db.t", str(tmp_path))).values
    assert values is not None
    days = pa.array([0, None, 2_932_897, 0], pa.date32())
    moments = pa.array([0, None, 0, -(2**62)], pa.timestamp("us", "UTC"))
    unsupported = values.find_unsupported_rows(pa.record_batch({"day": days, "at": moments}))
    assert {row: why.partition(":")[0] for row, why in unsupported.items()} == {2: "day", 3: "at"}


def test_a_decimal_is_told_digit_by_digit() -> None:
    assert partition_value_text("decimal(20, 10)", Decimal("0E-10")) == "0.0000000000"
    assert partition_value_text("decimal(38, 0)", Decimal("1E+30")) == "1" + 30 * "0"


def filled(folder: Path, *fields: Field, **properties: str) -> TableSpec:
    schema = Schema([Field("id", PrimitiveType("long")), *fields])
    DeltaTable.create(folder, schema, configuration=properties)
    return TableSpec("db.t", str(folder))


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"delta.setTransactionRetentionDuration": "interval 3 days"}, "forgets after"),
        ({"delta.logRetentionDuration": "interval 1 day"}, "keeps its log for interval 1 day"),
        ({"delta.logRetentionDuration": "interval 30 hours"}, "keeps its log for"),
        ({"delta.logRetentionDuration": "interval 1 day 23 hours"}, "keeps its log for"),
        ({"delta.constraints.positive": "id > 0"}, "has the constraint positive"),
    ],
)
def test_hg153_properties_that_appends_would_have_to_heed(
    tmp_path: Path, properties: dict[str, str], said: str
) -> None:
    wanted = TableSpec("db.t", str(tmp_path))
    if "constraints" in str(properties):
        table = DeltaTable.create(tmp_path, Schema([Field("id", PrimitiveType("long"))]))
        table.alter.add_constraint({"positive": "id > 0"})
    else:
        filled(tmp_path, **properties)
    with pytest.raises(TableUnfit, match=said):
        DeltaFormat().file_schema(wanted)


@pytest.mark.parametrize("kept", ["2 days", "1 week", "168 hours", "1 day 24 hours 1 second"])
def test_a_log_that_is_kept_for_two_days_or_more_will_do(tmp_path: Path, kept: str) -> None:
    wanted = filled(tmp_path, **{"delta.logRetentionDuration": f"interval {kept}"})
    assert DeltaFormat().file_schema(wanted).columns


def test_hg153_a_generated_column(tmp_path: Path) -> None:
    made = Field("twice", PrimitiveType("long"), metadata={"delta.generationExpression": "id * 2"})
    DeltaTable.create(tmp_path, Schema([Field("id", PrimitiveType("long")), made]))
    with pytest.raises(TableUnfit, match=r"twice|generat"):
        DeltaFormat().file_schema(TableSpec("db.t", str(tmp_path)))


@pytest.mark.parametrize("kind", ["binary", "double"])
def test_hg153_partitions_of_types_whose_values_are_not_written(tmp_path: Path, kind: str) -> None:
    fields = [Field("id", PrimitiveType("long")), Field("by", PrimitiveType(kind))]
    DeltaTable.create(tmp_path, Schema(fields), partition_by=["by"])
    with pytest.raises(TableUnfit, match=f"partitioned by 'by', of type {kind}"):
        DeltaFormat().file_schema(TableSpec("db.t", str(tmp_path)))


def test_a_new_column_is_another_layout_and_older_files_fit(tmp_path: Path) -> None:
    world = DeltaWorld(tmp_path)
    table = world.open()
    view, file = claim_table(table), world.write_file(1)
    more = pa.table({"number": [7], "row": [0], "new": ["x"]})
    write_deltalake(world.uri, more, mode="append", schema_mode="merge")
    after = table.read()
    assert after.schema_id != view.schema_id
    require_landed(commit(table, after, record(1, 1, 3), file))
    assert world.table().to_pyarrow_table().num_rows == 4


@pytest.mark.parametrize("kind", ["variant", "interval"])
def test_columns_of_types_that_are_not_written_may_have_been_there(
    tmp_path: Path, kind: str
) -> None:
    """Somebody replaced the columns, and replaced them again; decided files are older."""
    world = DeltaWorld(tmp_path)
    view, file = claim_table(world.open()), world.write_file(1)
    metadata = world.table().metadata()
    columns = json.loads(world.table().schema().to_json())["fields"]
    for version, added in ((2, kind), (3, "string")):
        new = {"name": "new", "type": added, "nullable": True, "metadata": {}}
        form = {
            "id": str(metadata.id),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": [*columns, new]}),
            "partitionColumns": [],
            "configuration": {},
        }
        path = Path(world.uri) / "_delta_log" / f"{version:020}.json"
        path.write_text(json.dumps({"metaData": form}) + "\n")
    table = world.open()
    assert table.read().head == 3
    require_landed(commit(table, table.read(), record(1, 1, 3), file))
    assert view.schema_id != table.read().schema_id


def test_the_history_tells_whose_commits_moved_which_rows(tmp_path: Path) -> None:
    world = DeltaWorld(tmp_path)
    table, other = world.open(), world.open("other")
    require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    require_landed(
        commit(
            other,
            claim_table(other, sink="other"),
            record(1, 1, 3, sink="other"),
            world.write_file(2),
        )
    )
    world.append_foreign(3)
    world.compact()
    world.table().delete("number = 3")
    reader = DeltaReader(world.place, SINK)
    history = reader.history()
    assert [(c.record.transaction.number, c.added_records) for c in history.commits] == [
        (0, 0),
        (1, 3),
    ]
    assert history.complete
    assert [(f.sink, f.added_records - f.deleted_records) for f in history.foreign] == [
        ("other", 0),
        ("other", 3),
        (None, 3),
        (None, 0),
        (None, -3),
    ]
    assert sum(file.records for file in reader.live_files()) == 6
    assert not reader.has_table_changed()
    world.append_foreign(4)
    assert reader.has_table_changed()


def scanned(reader: DeltaReader, *names: str) -> list[tuple[object, ...]]:
    _, files = reader.scan(names)
    batches = [batch for file in files for batch in file.batches()]
    return sorted(tuple(row[name] for name in names) for b in batches for row in b.to_pylist())


def test_rows_without_a_column_have_null_there_and_partitions_what_the_log_says(
    tmp_path: Path,
) -> None:
    theirs = pa.table({"topic": ["c"], "id": [9]})
    write_deltalake(tmp_path, theirs, partition_by=["topic"])
    rows = pa.table({"topic": ["a", "b"] * 2, "offset": [1, 2, 3, 4], "id": [0] * 4})
    for half in (rows[:2], rows[2:]):
        write_deltalake(tmp_path, half, mode="append", schema_mode="merge")
    DeltaTable(tmp_path).optimize.compact()
    reader = DeltaReader(DeltaLocation.from_spec(TableSpec("db.t", str(tmp_path))), SINK)
    assert scanned(reader, "topic", "id") == [("a", 0), ("a", 0), ("b", 0), ("b", 0), ("c", 9)]
    records = scan_records(
        reader, ("topic", "id", "offset"), frozenset(), on_progress=lambda *_: None
    )
    assert {at.topic: list(seen.offsets) for at, seen in records.partitions.items()} == {
        "a": [1, 3],
        "b": [2, 4],
        "c": [],
    }
    assert records.foreign_rows == 1


def log_version(number: int, operation: str, *actions: object) -> LogEntry:
    lines = ({"commitInfo": {"operation": operation}}, *actions)
    return LogEntry(number, "\n".join(map(json.dumps, lines)))


def file_action(
    name: str, path: str, rows: int, *, marked: int = 0, data_change: bool = True
) -> dict[str, object]:
    """Return an action for a file with a deletion vector of so many rows. A remove has no count."""
    counted = {"stats": json.dumps({"numRecords": rows})} if name == "add" else {}
    vector = {"deletionVector": {"cardinality": marked}} if marked else {}
    return {name: {"path": path, "dataChange": data_change, **counted, **vector}}


@pytest.mark.parametrize(
    ("operation", "rows", "expected"),
    [("OPTIMIZE", 57, (0, -3, 0)), ("DELETE", 50, (50, -10, 7)), ("MERGE", 67, (67, 7, 0))],
)
def test_rows_that_were_marked_as_deleted_go_once_and_leave_with_their_file(
    operation: str, rows: int, expected: tuple[int, int, int]
) -> None:
    changes = operation != "OPTIMIZE"
    walk = Walk()
    for entry in (
        log_version(
            4,
            operation,
            file_action("remove", "a", 60, marked=3, data_change=changes),
            file_action("add", "b", rows, data_change=changes),
        ),
        log_version(
            3,
            "DELETE",
            file_action("remove", "a", 60, marked=1),
            file_action("add", "a", 60, marked=3),
        ),
        log_version(
            2, "DELETE", file_action("remove", "a", 60), file_action("add", "a", 60, marked=1)
        ),
        log_version(1, "WRITE", file_action("add", "a", 60)),
    ):
        walk.add_next_older_entry(entry)
    told = [digest.to_foreign_snapshot(SINK) for digest in reversed(walk.digests)]
    assert [
        (each.added_records, each.added_records - each.deleted_records, each.removed_row_count)
        for each in told
    ] == [(60, 60, 0), (60, 0, 1), (60, 0, 2), expected]


def test_files_in_folders_whose_names_are_escaped_are_found(tmp_path: Path) -> None:
    cities = ["Nord", "Köln", "a/b c", "12:30%"]
    rows = pa.table({"city": cities, "id": list(range(len(cities)))})
    DeltaTable.create(tmp_path, rows.schema, partition_by=["city"])
    write_deltalake(tmp_path, rows, mode="append")
    reader = DeltaReader(DeltaLocation.from_spec(TableSpec("db.t", str(tmp_path))), SINK)
    live = reader.live_files()
    assert [reader.stored_size_and_rows(file) for file in live] == [(f.size_bytes, 1) for f in live]
    assert {file.added_by for file in live} == {1}
    assert scanned(reader, "city", "id") == sorted(zip(cities, range(len(cities)), strict=True))


def test_a_deletion_vector_that_is_gone_is_rows_that_cannot_be_read(tmp_path: Path) -> None:
    world = DeltaWorld(tmp_path)
    world.append_foreign(1)
    log = world.uri / "_delta_log"
    (added,) = LogEntry(1, (log / f"{1:020}.json").read_text()).add_actions
    gone = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1}
    vector = {**gone, "sizeInBytes": 40, "cardinality": 1}
    features = ["deletionVectors"]
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    actions = (
        {"protocol": {**versions, "readerFeatures": features, "writerFeatures": features}},
        file_action("remove", added["path"], 3),
        {"add": {**added, "deletionVector": vector}},
    )
    (log / f"{2:020}.json").write_text(log_version(2, "DELETE", *actions).text)
    reader = DeltaReader(world.place, SINK)
    assert [file.records for file in reader.live_files()] == [3]
    with pytest.raises(ValueError, match=r"deletion vectors cannot be read: .*deletion_vector"):
        reader.scan(["number"])


def test_the_newest_history_asks_for_no_more_versions_than_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = DeltaWorld(tmp_path)
    for number in range(9):
        world.append_foreign(number)
    reader, asked = DeltaReader(world.place, SINK), list[int]()
    entry = Log.read_entry

    def counted(log: Log, version: int) -> LogEntry | None:
        asked.append(version)
        return entry(log, version)

    monkeypatch.setattr(Log, "read_entry", counted)
    history = reader.history(Newest(3, time.time_ns()))
    assert ([each.snapshot_id for each in history.foreign], history.complete) == ([7, 8, 9], False)
    assert asked == [9, 8, 7]
    assert reader.history(Newest(10, time.time_ns())).complete


def test_an_audit_keeps_no_texts_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = DeltaWorld(tmp_path)
    table = world.open()
    view = claim_table(table)
    for number in range(1, 8):
        view = require_landed(
            commit(table, view, record(1, number, number), world.write_file(number))
        )
    read, most = weakref.WeakSet[LogEntry](), 0
    entry = Log.read_entry

    def watched(log: Log, version: int) -> LogEntry | None:
        nonlocal most
        found = entry(log, version)
        if found:
            read.add(found)
        most = max(most, len(read))
        return found

    monkeypatch.setattr(Log, "read_entry", watched)
    reader = DeltaReader(world.place, SINK)
    history = reader.history()
    added = [reader.added_files(each) for each in history.commits]
    assert [sum(rows for _, rows in each or ()) for each in added] == [0] + [3] * 7
    brought = {file.added_by for file in reader.live_files()}
    assert brought == {each.snapshot_id for each in history.commits[1:]}
    assert most <= 3


def test_table_and_view_of_a_reader_are_of_one_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = DeltaWorld(tmp_path)
    world.append_foreign(1)
    load = DeltaLocation.load_table

    def loaded_before_another(place: DeltaLocation) -> DeltaTable:
        table = load(place)
        world.append_foreign(2)
        return table

    with monkeypatch.context() as patched:
        patched.setattr(DeltaLocation, "load_table", loaded_before_another)
        reader = DeltaReader(world.place, SINK)
    assert reader.view().head == 1
    assert reader.has_table_changed()


def test_a_column_with_nan_has_no_maximum(tmp_path: Path) -> None:
    columns = Struct(tuple(Column(name, "double", required=False) for name in ("x", "y")))
    wanted = TableSpec("db.t", str(tmp_path / "t"), create=True, columns=columns)
    DeltaFormat().create(wanted)
    layout = DeltaFormat().file_schema(wanted)
    plan = plan_of_file_schema(layout, "db.t", SourcePlan(kafka={}))
    files = DataFiles(file_shape_of(plan), f"{layout.location}/data", 1 << 20)
    rows = pa.table({"x": [1.0, float("nan")], "y": [1.0, 2.0]})
    files.write(PartitionKey(), rows.cast(plan.shape.arrow_schema()))
    (file,) = files.finish()
    facts = file_statistics_of(file, columns, ())
    assert (facts.minimum, facts.maximum) == ({("x",): 1.0, ("y",): 1.0}, {("y",): 2.0})


def cleaned(world: DeltaWorld, upto: int) -> None:
    """What a writer does once these versions are older than the log's retention."""
    table = world.table()
    table.create_checkpoint()
    for version in range(upto + 1):
        old_s = time.time() - 90 * 24 * 3600
        os.utime(world.uri / "_delta_log" / f"{version:020}.json", (old_s, old_s))
    world.table().cleanup_metadata()
    assert not (world.uri / "_delta_log" / f"{0:020}.json").exists()


def test_the_table_s_own_checkpoints_keep_the_sink_s_place(tmp_path: Path) -> None:
    world = DeltaWorld(tmp_path, properties={"delta.checkpointInterval": "2"})
    table = world.open()
    view = claim_table(table)
    for number in range(1, 6):
        view = require_landed(
            commit(table, view, record(1, number, number), world.write_file(number))
        )
        assert world.open().read() == view
    log = world.uri / "_delta_log"
    assert len(list(log.glob("*.checkpoint.parquet"))) >= 2
    cleaned(world, 3)
    assert world.open().read().record == view.record
    require_landed(commit(world.open(), world.open().read(), record(1, 6, 6), world.write_file(6)))
    assert world.visible_file_numbers() == [1, 2, 3, 4, 5, 6]


def test_an_idle_sink_that_renews_outlives_the_clean_up_of_the_log(tmp_path: Path) -> None:
    world = DeltaWorld(tmp_path)
    table = world.open()
    view = require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    world.append_foreign(2)
    old = world.table().version()
    view = require_landed(commit(table, table.read(), record(1, 2, 3)))
    cleaned(world, old)
    after = world.open().read()
    assert (after.record, after.lineage) == (view.record, Lineage.CONTAINS_TAG)
    require_landed(commit(table, after, record(1, 3, 6), world.write_file(3)))
    assert world.visible_file_numbers() == [1, 2, 3]
    assert not DeltaReader(world.place, SINK).history().complete


def test_a_sink_that_stood_still_for_longer_says_that_its_record_is_gone(
    tmp_path: Path,
) -> None:
    world = DeltaWorld(tmp_path)
    table = world.open()
    claim_table(table)
    world.append_foreign(2)
    world.append_foreign(3)
    cleaned(world, 2)
    with pytest.raises(RecordUnreadable, match="not in the log any more"):
        world.open().read()


@pytest.mark.parametrize("text", ['{"commitInfo": {"timestamp": 1', "\udcff garbage", None])
def test_hg256_a_damaged_log_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.setattr(open_table, "_PAUSE_S", 0.0)
    world = DeltaWorld(tmp_path)
    table = world.open()
    require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    version = world.uri / "_delta_log" / f"{1:020}.json"
    sound = version.read_bytes()
    version.unlink() if text is None else version.write_bytes(text.encode(errors="surrogateescape"))
    for read in (table.read, world.open().read, lambda: DeltaReader(world.place, SINK)):
        with pytest.raises(LogUnreadable, match="_delta_log") as stopped:
            read()
        assert "\n" not in str(stopped.value)
    version.write_bytes(sound)
    assert table.read() == world.open().read()


@pytest.mark.parametrize("version", [3, 7])
def test_a_restore_of_no_earlier_version_leads_nowhere(version: int) -> None:
    """No writer is known that says so; a way back without an end would hold the sink."""
    restore = {"operation": "RESTORE", "operationParameters": {"version": version}}
    entry = LogEntry(3, json.dumps({"commitInfo": restore}))
    way = walk_effective_versions_back_with({3: entry}.get, 3)
    assert list(islice(way, 9)) == [entry, None]


def test_hg256_an_old_version_that_only_histories_read(tmp_path: Path) -> None:
    damaged = LogEntry(3, '{"commitInfo": {"timestamp": 1', "s3://lake/t/_delta_log/3.json")
    with pytest.raises(LogUnreadable, match=r"_delta_log/3\.json: JSONDecodeError"):
        _ = damaged.commit_properties


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85"])
def test_signs_that_end_a_line_of_text_end_none_of_a_log(tmp_path: Path, sign: str) -> None:
    world = DeltaWorld(tmp_path)
    table = world.open()
    view = claim_table(table)
    theirs = pa.table({"number": [7], "row": [0], "name": [f"a{sign}b"]})
    write_deltalake(world.uri, theirs, mode="append", schema_mode="merge")
    world.table().delete(f"name = 'a{sign}b'")
    assert table.read().record == view.record
    history = DeltaReader(world.place, SINK).history()
    assert [(each.added_records, each.deleted_records) for each in history.foreign] == [
        (1, 0),
        (0, 1),
    ]


def test_a_log_that_is_sound_when_it_is_read_again_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = DeltaWorld(tmp_path)
    version = world.uri / "_delta_log" / f"{0:020}.json"
    sound = version.read_bytes()
    version.write_bytes(sound[:-30])
    monkeypatch.setattr(open_table.time, "sleep", lambda _: version.write_bytes(sound))
    assert world.open().read().head is None


def test_a_store_that_does_not_answer_is_asked_again_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = DeltaWorld(tmp_path)

    def silent(*_: object, **__: object) -> DeltaTable:
        raise OSError("Kernel error: Generic S3 error\n   0: <unknown>\n   1: <unknown>")

    monkeypatch.setattr(open_table, "DeltaTable", silent)
    with pytest.raises(Unreachable, match="cannot be read: OSError: Kernel error") as asked_again:
        world.open().read()
    assert "unknown" not in str(asked_again.value)


def test_keys_of_a_store_are_told_in_delta_s_names() -> None:
    storage = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "key", "s3.region": "r"}
    assert storage_options("/lake/t", storage) == {}
    assert storage_options("s3://lake/t", storage) == {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_REGION": "r",
        "AWS_ALLOW_HTTP": "true",
        "connect_timeout": "3000ms",
        "timeout": "15000ms",
        "retry_timeout": "15000ms",
        "aws_conditional_put": "etag",
    }
    patient = storage_options("s3://lake/t", {"s3.request-timeout": "2.5"})
    assert (patient["timeout"], patient["retry_timeout"]) == ("2500ms", "2500ms")
