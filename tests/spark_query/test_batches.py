"""Batches without Spark: what is refused by name, how rows are fitted, and where files go."""

from __future__ import annotations

import datetime as dt
import importlib
import pickle
import sys
import time
import traceback
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pyarrow as pa
import pytest
from integration.readers import read_with_duckdb
from pyspark.errors import AnalysisException
from spark_query.histories import History, NoCopies, PlayedCheckpoint, PlayedFrame, PlayedSources

from headgate.config.load import load
from headgate.control_protocol.commit_record import CommitRecord, KeyCounts
from headgate.control_protocol.errors import (
    BatchGap,
    BatchTooOld,
    ConfigurationError,
    KeyChanged,
    KeyedPartitionsAdded,
    KeyTwice,
    RowsUnfit,
    SinkStopped,
    TopicRecreated,
    Unreachable,
)
from headgate.control_protocol.identifiers import Sender, TopicId
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, TableView, TopicState
from headgate.data_plane.formats.field_names import with_lookup_names
from headgate.data_plane.spark.query_rows import cast_to_table_rows
from headgate.operations.control.operator_claim import make_claim
from headgate.spark import batches, query_batch_commits
from headgate.spark.query_batch_commits import QueryTable

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())])


def one_batch(
    history: History, end: int, *, start: int = 0, name: str = "c", stateful: bool = False
) -> batches.Batches:
    """The run of a query whose first batch reaches so far, with the batch planned."""
    checkpoint = PlayedCheckpoint(history.folder / name, dict.fromkeys(range(3), start))
    checkpoint.plan(0, dict.fromkeys(range(3), end))
    return batches.Batches(history.sink, str(checkpoint.root), stateful=stateful)


def frame(begin: int, end: int) -> PlayedFrame:
    return PlayedFrame(dict.fromkeys(range(3), (begin, end)), 2)


def record_now(history: History) -> CommitRecord:
    with reading(history) as table:
        record = table.read_and_require_resumable().record
    assert record is not None
    return record


def reading(history: History) -> QueryTable:
    return QueryTable(history.settings, PlayedSources(history), Sender("person", "one"))


def claim(history: History, command: str, **changes: bool) -> None:
    with reading(history) as table:
        now = table.read_and_require_resumable()
        assert now.record is not None
        table._table.commit(CommitAttempt(now.view, make_claim(now.record, command, **changes)))


def test_query_18_files_lie_in_a_folder_of_the_run(history: History) -> None:
    with closing(one_batch(history, 5)) as query:
        query(frame(0, 5), 0)
        rows = history._catalog().load_table("s.orders").inspect.files()
        folder = f"/data/headgate/orders/1-{query._run}/"
    assert all(folder in path for path in rows["file_path"].to_pylist())


def test_query_18_a_batch_that_took_too_long_is_not_committed(history: History) -> None:
    limit_s = history.settings.coordinator.claim_age_max_ms / 1000
    with closing(one_batch(history, 5)) as query:
        kept = batches.write_frame

        def slow(*given: object) -> object:
            clock = time.monotonic
            moved = patch.object(
                query_batch_commits.time, "monotonic", lambda: clock() + limit_s + 1
            )
            late.append(moved)
            result = kept(*given)
            moved.start()
            return result

        late: list[object] = []
        with patch.object(batches, "write_frame", slow), pytest.raises(BatchTooOld):
            query(frame(0, 5), 0)
        patch.stopall()
    with reading(history) as table:
        assert table.read_and_require_resumable().record is None


def test_query_14_a_stopped_sink_takes_no_batch_and_a_paused_one_waits(history: History) -> None:
    with closing(one_batch(history, 5)) as query:
        query(frame(0, 5), 0)
    claim(history, "pause", paused=True)
    looked: list[float] = []

    def resume(wait_s: float) -> None:
        looked.append(wait_s)
        claim(history, "resume", paused=False)

    with closing(one_batch(history, 9, start=5, name="d")) as query:
        table = query._open_or_reuse_table("q")
        table._wait = resume
        query(frame(5, 9), 0)
    assert looked == [query_batch_commits.LOOK_AGAIN_S]
    assert record_now(history).records == 12
    claim(history, "stop", stopped=True)
    with closing(one_batch(history, 12, start=9, name="e")) as query, pytest.raises(SinkStopped):
        query(frame(9, 12), 0)


def test_query_14_a_paused_query_waits_while_the_catalog_does_not_answer(history: History) -> None:
    """A restart of the catalog is what one pauses for."""
    with closing(one_batch(history, 5)) as query:
        query(frame(0, 5), 0)
    claim(history, "pause", paused=True)
    with closing(one_batch(history, 9, start=5, name="d")) as query:
        table = query._open_or_reuse_table("q")
        read = table._table.read
        looks: list[int] = []

        def read_with_hiccup() -> TableView:
            looks.append(1)
            if len(looks) in (2, 3):
                raise Unreachable("the catalog is being restarted")
            if len(looks) == 4:
                claim(history, "resume", paused=False)
            return read()

        table._wait = lambda _: None
        with patch.object(table._table, "read", read_with_hiccup):
            query(frame(5, 9), 0)
    assert record_now(history).records == 12


def test_query_1_offsets_of_a_topic_that_was_re_created_say_nothing(history: History) -> None:
    with closing(one_batch(history, 5)) as query:
        query(frame(0, 5), 0)
    anew = {"t": TopicState(TopicId("another"), {})}
    with (
        patch.object(PlayedSources, "describe", lambda _: anew),
        closing(one_batch(history, 5, name="d")) as query,
        pytest.raises(TopicRecreated),
    ):
        query(frame(0, 5), 0)


def test_query_6_rows_that_do_not_say_where_they_came_from_are_not_trimmed(
    history: History,
) -> None:
    with closing(one_batch(history, 5)) as query:
        query(frame(0, 5), 0)
    text = history.sink.read_text()
    text = text[: text.index("[table.record_columns]")].replace(", from_record = true", "")
    history.sink.write_text(text)
    with closing(one_batch(history, 9, name="d")) as query, pytest.raises(BatchGap):
        query(frame(0, 9), 0)


def test_query_6_rows_that_may_be_of_a_topic_that_is_not_trimmed_are_not_trimmed(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {name: TopicState(TopicId(name), {}) for name in ("quiet", "t")}
    monkeypatch.setattr(PlayedSources, "describe", lambda _: states)
    history.sink.write_text(history.sink.read_text().replace('["t"]', '["t", "quiet"]'))

    def reach_of(name: str, end: int, end_of_quiet: int) -> batches.Batches:
        query = one_batch(history, end, name=name)
        for path, quiet in (("sources/0/0", 0), ("offsets/0", end_of_quiet)):
            file = history.folder / name / path
            file.write_text(file.read_text().replace("}}", f'}}, "quiet": {{"0": {quiet}}}}}'))
        return query

    with closing(reach_of("c", 5, 0)) as query:
        query(frame(0, 5), 0)
    with closing(reach_of("d", 9, 3)) as query, pytest.raises(BatchGap):
        query(frame(0, 9), 0)


def test_query_19_arrow_batches_are_larger_while_the_batch_runs(history: History) -> None:
    seen: list[str] = []
    rows = frame(0, 5)
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    collect = rows.collect

    def collected() -> object:
        seen.append(rows.sparkSession.conf.get(name))
        return collect()

    with closing(one_batch(history, 5)) as query, patch.object(rows, "collect", collected):
        query(rows, 0)
    assert (seen, rows.sparkSession.conf.get(name)) == (["32768"], "10000")


def test_a_task_leaves_no_archive_to_its_worker_that_spark_has_read_again_before_each_task(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = history.folder / "library.zip"
    with zipfile.ZipFile(archive, "w") as library:
        library.writestr("in_an_archive.py", "")
    monkeypatch.syspath_prepend(str(archive))
    importlib.import_module("in_an_archive")
    assert str(archive) in sys.path_importer_cache
    with closing(one_batch(history, 5)) as query:
        query(frame(0, 5), 0)
    assert str(archive) not in sys.path_importer_cache


def test_query_16_landed_offsets_are_copied_to_the_group(history: History) -> None:
    copied: list[tuple[int, int]] = []

    def copy(_: object, offsets: Offsets, note: str) -> None:
        assert note.startswith("headgate table=")
        copied.extend((at.partition, offset) for at, offset in offsets.items())

    with (
        patch.object(NoCopies, "copy_offsets_to_group", copy),
        closing(one_batch(history, 5)) as query,
    ):
        query(frame(0, 5), 0)
    assert sorted(copied[-3:]) == [(0, 5), (1, 5), (2, 5)]


def test_query_20_each_table_says_itself_which_batch_it_lacks(
    history: History, tmp_path: Path
) -> None:
    folder = tmp_path / "second"
    folder.mkdir()
    second = History(1, folder)
    with closing(one_batch(history, 5)) as query:
        query(frame(0, 5), 0)  # and a crash before the other table
    root = str(history.folder / "c")
    for sink in (history.sink, second.sink):
        with closing(batches.Batches(sink, root)) as query:
            query(frame(0, 5), 0)
    assert [str(record_now(each).transaction) for each in (history, second)] == ["1.1", "1.1"]


def test_query_17_rows_get_the_columns_and_types_of_the_table() -> None:
    rows = pa.RecordBatch.from_pydict({"id": pa.array([1, 2], pa.int32())})
    assert cast_to_table_rows(rows, SCHEMA).to_pydict() == {"id": [1, 2], "city": [None, None]}


@pytest.mark.parametrize(
    "values", [pa.array([1, None], pa.int64()), pa.array([1.5, 2.0]), pa.array(["x", "2"])]
)
def test_query_17_what_would_lose_something_is_refused(values: pa.Array) -> None:
    with pytest.raises(RowsUnfit, match="column id"):
        cast_to_table_rows(pa.RecordBatch.from_pydict({"id": values}), SCHEMA)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([dt.datetime(2026, 1, 1, 13, 5, tzinfo=dt.UTC)]), pa.date32()),
        (pa.array([0.1]), pa.float32()),
        (pa.array([2]), pa.bool_()),
        (pa.array([True]), pa.int64()),
    ],
    ids=["the time of a day", "digits of a double", "a number", "a truth"],
)
def test_query_17_what_arrow_would_cast_with_a_loss_is_refused(
    values: pa.Array, kind: pa.DataType
) -> None:
    with pytest.raises(RowsUnfit, match="column id"):
        cast_to_table_rows(pa.RecordBatch.from_arrays([values], ["id"]), pa.schema({"id": kind}))


def test_query_17_a_column_that_the_table_lacks_is_refused(history: History) -> None:
    rows = frame(0, 5)
    rows.columns = ("id", "surprise")
    with closing(one_batch(history, 5)) as query, pytest.raises(RowsUnfit, match="surprise"):
        query(rows, 0)


AB = pa.struct([("a", pa.int32()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("source", "target", "named"),
    [
        (AB, pa.struct([("a", pa.int64())]), "id.b: "),
        (AB, pa.struct([("a", pa.int64()), ("B", pa.large_string())]), "id.b: "),
        (pa.list_(AB), pa.large_list(pa.struct([("a", pa.int64())])), r"id\[\].b: "),
        (
            pa.map_(pa.string(), pa.struct([("in", AB)])),
            pa.map_(pa.large_string(), pa.struct([("in", pa.struct([("a", pa.int64())]))])),
            r"id\[\].in.b: ",
        ),
        (pa.map_(pa.string(), pa.int64()), pa.struct([("a", pa.int64())]), "id: a map"),
    ],
    ids=["struct", "case", "list", "map", "map into struct"],
)
def test_query_17_a_nested_field_that_the_table_lacks_is_refused(
    source: pa.DataType, target: pa.DataType, named: str
) -> None:
    rows = pa.RecordBatch.from_arrays([pa.nulls(1, source)], ["id"])
    with pytest.raises(RowsUnfit, match=f"column {named}"):
        cast_to_table_rows(rows, pa.schema({"id": target}))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.string(), pa.large_binary()),
        (pa.string(), pa.binary(6)),
        (pa.int64(), pa.timestamp("us", "UTC")),
        (pa.float64(), pa.timestamp("us")),
        (pa.int32(), pa.date32()),
        (pa.int64(), pa.time64("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us")),
        (pa.timestamp("us", "Europe/Berlin"), pa.date32()),
        (pa.list_(pa.string()), pa.large_list(pa.large_binary())),
    ],
    ids=str,
)
def test_query_17_a_value_that_would_be_guessed_is_refused(
    source: pa.DataType, target: pa.DataType
) -> None:
    rows = pa.RecordBatch.from_arrays([pa.nulls(1, source)], ["id"])
    with pytest.raises(RowsUnfit, match=r"column id.*may mean several values"):
        cast_to_table_rows(rows, pa.schema({"id": target}))


@pytest.mark.parametrize(
    ("value", "target"),
    [
        (pa.scalar("00000000-0000-0000-0000-000000000001"), pa.uuid()),
        (pa.scalar("13:05:00"), pa.time64("us")),
        (pa.scalar(dt.datetime(2026, 1, 1, tzinfo=dt.UTC)), pa.timestamp("us", "UTC")),
        (pa.scalar(dt.datetime(2026, 1, 1)), pa.timestamp("ns")),  # noqa: DTZ001 - it has no zone
        (pa.scalar(b"abcdef"), pa.binary(6)),
        (pa.scalar(None), pa.large_binary()),
    ],
    ids=str,
)
def test_query_17_what_can_mean_one_value_only_is_taken(
    value: pa.Scalar, target: pa.DataType
) -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([value.as_py()], value.type)], ["id"])
    assert cast_to_table_rows(rows, pa.schema({"id": target})).num_rows == 1


def test_query_17_a_nested_field_that_is_read_regardless_of_case_is_known() -> None:
    there = pa.schema({"s": pa.struct([("A", pa.int64()), ("b", pa.large_string())])})
    rows = pa.RecordBatch.from_pylist([{"s": {"a": 1, "b": "x"}}], pa.schema({"s": AB}))
    found = cast_to_table_rows(rows, with_lookup_names(there, None, caseless=True))
    assert found.to_pylist() == [{"s": {"A": 1, "b": "x"}}]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[quarantine]\npolicy = "quarantine"\ntable = "s.bad"', "quarantine"),
        ('[transform]\nsql = "SELECT * FROM records"', "transform"),
    ],
)
def test_what_a_query_decides_itself_is_refused_by_name(
    history: History, text: str, named: str
) -> None:
    history.sink.write_text(f"{history.sink.read_text()}\n{text}\n")
    with pytest.raises(ConfigurationError, match=named):
        batches.Batches(history.sink, "anywhere")


@pytest.mark.parametrize(
    ("condition", "raised"),
    [("PATH_NOT_FOUND", FileNotFoundError), ("INSUFFICIENT_PERMISSIONS", AnalysisException)],
)
def test_query_11_a_file_that_spark_does_not_find_is_not_there(
    condition: str, raised: type[Exception]
) -> None:
    frame = MagicMock()
    frame.sparkSession.read.text.side_effect = AnalysisException(f"[{condition}] s3://b/c")
    with pytest.raises(raised, match="s3://b/c"):
        batches._read_text_file(frame, "s3://b/c")


def test_query_17_a_column_with_a_value_of_the_sink_file_is_selected_or_refused(
    history: History,
) -> None:
    """``headgate run`` fills it in, and nothing does in a query: it would be null."""
    text = history.sink.read_text()
    history.sink.write_text(
        text.replace(
            "columns = [", 'columns = [{ name = "region", type = "string", value = "eu" },'
        )
    )
    assert text != history.sink.read_text()
    made = batches.Batches(history.sink, "anywhere")
    rows = frame(0, 5)
    rows.columns = ("id",)
    with pytest.raises(RowsUnfit, match="region"):
        made.require_usable_frame(rows)
    rows.columns = ("id", "region")
    made.require_usable_frame(rows)


class GivenRows(PlayedFrame):
    """A batch with exactly these rows, whatever was read."""

    def __init__(self, **columns: pa.Array) -> None:
        super().__init__({}, 1)
        self._given = pa.RecordBatch.from_pydict(columns)
        self.columns = tuple(columns)

    def _rows(self, _: object) -> pa.RecordBatch:
        return self._given


def of_keys(ids: list[int], offsets: list[int], **more: pa.Array) -> GivenRows:
    return GivenRows(
        id=pa.array(ids, pa.int64()),
        kafka_partition=pa.array([0] * len(ids), pa.int32()),
        kafka_offset=pa.array(offsets, pa.int64()),
        **more,
    )


def test_query_21_a_row_replaces_the_row_of_its_key_and_a_deleted_one_deletes_it(
    keyed: History,
) -> None:
    deleted = pa.array([False, False, False, True])
    with closing(one_batch(keyed, 5)) as query:
        query(of_keys([1, 2, 1, 2], [0, 1, 2, 3], _deleted=deleted), 0)
    record = record_now(keyed)
    assert record.keys == KeyCounts(inserted=1, absent=1, superseded=2)
    assert (record.records, record.skipped, record.source_record_count) == (3, 11, 15)


def test_query_21_a_table_that_was_filled_without_a_key_is_refused(history: History) -> None:
    with closing(one_batch(history, 5)) as query:
        query(frame(0, 5), 0)
    text = history.sink.read_text()
    history.sink.write_text(text.replace("create = true", 'create = true\nkey = ["id"]'))
    with closing(one_batch(history, 9, start=5, name="d")) as query, pytest.raises(KeyChanged):
        query(of_keys([1], [6]), 0)


@pytest.mark.parametrize("offsets", [[5], [None]], ids=["another batch's", "none"])
def test_query_21_a_row_of_a_record_that_is_not_of_the_batch_fails_it(
    keyed: History, offsets: list[int]
) -> None:
    with closing(one_batch(keyed, 5)) as query, pytest.raises(RowsUnfit, match="does not have"):
        query(of_keys([1], offsets), 0)
    with closing(one_batch(keyed, 5, name="d")) as query, pytest.raises(RowsUnfit, match="column"):
        query(GivenRows(id=pa.array([1])), 0)


def test_query_21_whether_a_row_deletes_must_be_said(keyed: History) -> None:
    for number, deleted in enumerate((pa.array([None], pa.bool_()), pa.array(["true"]))):
        with (
            closing(one_batch(keyed, 5, name=f"c{number}")) as query,
            pytest.raises(RowsUnfit, match="_deleted"),
        ):
            query(of_keys([1], [0], _deleted=deleted), 0)


def test_query_23_the_number_of_its_batch_orders_the_rows_of_a_stateful_query(
    keyed: History,
) -> None:
    with closing(one_batch(keyed, 5, stateful=True)) as query:
        query(GivenRows(id=pa.array([7]), seen=pa.array([3])), 0)
        rows = read_with_duckdb(keyed._catalog().load_table("s.orders").metadata_location)
        assert rows.to_pylist() == [{"seen": 3, "id": 7, "kafka_partition": 0, "kafka_offset": 0}]
        PlayedCheckpoint(keyed.folder / "c", {}).plan(1, dict.fromkeys(range(3), 9))
        with pytest.raises(RowsUnfit, match="filled by the sink"):
            query(of_keys([1], [6]), 1)


@pytest.mark.parametrize("stateful", [False, True])
def test_query_24_two_rows_of_a_key_that_nothing_orders_are_refused(
    keyed: History, *, stateful: bool
) -> None:
    rows = GivenRows(id=pa.array([7, 7])) if stateful else of_keys([7, 7], [3, 3])
    with closing(one_batch(keyed, 5, stateful=stateful)) as query, pytest.raises(KeyTwice):
        query(rows, 0)
    assert record_now(keyed).is_claim


def test_query_25_a_keyed_query_ends_where_partitions_were_added(keyed: History) -> None:
    with closing(one_batch(keyed, 5)) as query:
        query(of_keys([1], [0]), 0)
    keyed.log.append(3)
    checkpoint = PlayedCheckpoint(keyed.folder / "d", dict.fromkeys(range(4), 0))
    checkpoint.plan(0, dict.fromkeys(range(4), 7))
    with (
        closing(batches.Batches(keyed.sink, str(checkpoint.root))) as query,
        pytest.raises(KeyedPartitionsAdded, match=r"t/3|t-3|3"),
    ):
        query(of_keys([1], [6]), 0)


def test_another_pyspark_is_refused_by_name(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches.pyspark, "__version__", "4.0.1")
    with pytest.raises(ConfigurationError, match=r"4\.0\.1"):
        batches.Batches(history.sink, "anywhere")


def test_query_27_connect_of_another_pyspark_is_refused_by_name(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote: Callable[..., object] = type("DataFrame", (), {"__module__": "pyspark.sql.connect"})
    monkeypatch.setattr(batches.pyspark, "__version__", "3.5.8")
    with pytest.raises(ConfigurationError, match=r"3\.5\.8 .* Spark Connect"):
        batches.write(remote(), history.sink, "anywhere")


def with_secret(history: History, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the sink file take a password from a variable."""
    text = history.sink.read_text()
    password = '"sasl.password" = "${env:THE_PASSWORD}"'
    history.sink.write_text(text.replace("[catalog]", f"{password}\n[catalog]"))
    monkeypatch.setenv("THE_PASSWORD", "hunter2-hunter2")
    return "hunter2-hunter2"


def on_server(query: batches.Batches) -> Any:
    """What a process of the server has of it."""
    return pickle.loads(pickle.dumps(query))


def test_query_27_a_connect_server_gets_a_path_and_reads_the_file_itself(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = with_secret(history, monkeypatch)
    monkeypatch.chdir(history.folder)
    sent = batches.Batches(history.sink.name, str(one_batch(history, 5)._checkpoint))
    assert secret.encode() not in pickle.dumps(sent)
    monkeypatch.chdir("/")
    for _ in range(2):  # a start each: a run of its own (QUERY-13)
        with closing(on_server(sent)) as called:
            called(frame(0, 5), 0)
            called(frame(0, 5), 0)
    assert record_now(history).records == 15
    runs = {on_server(sent)._build_batches_on_server()._run for _ in range(2)}
    assert len(runs) == 2


def test_query_27_a_sink_file_that_the_server_lacks_is_named_with_the_remedy(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_secret(history, monkeypatch)
    called = on_server(one_batch(history, 5))
    monkeypatch.delenv("THE_PASSWORD")
    with pytest.raises(ConfigurationError, match=r"on the Spark Connect server .*THE_PASSWORD"):
        called(frame(0, 5), 0)
    history.sink.unlink()
    with pytest.raises(ConfigurationError) as raised:
        called(frame(0, 5), 0)
    said = str(raised.value)
    assert said.startswith("HG-100 on the Spark Connect server ")
    assert f"{history.sink}: cannot be read: No such file" in said
    assert "(have the sink file there at the same path, with the secrets that it names" in said


@pytest.mark.parametrize("error", [RowsUnfit("hunter2-hunter2", "why"), OSError("hunter2-hunter2")])
def test_query_27_a_client_is_told_no_secret(
    history: History, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    secret = with_secret(history, monkeypatch)

    def failing(*_: object) -> None:
        raise error from ValueError(secret)

    monkeypatch.setattr(batches, "write_frame", failing)
    with closing(on_server(one_batch(history, 5))) as called, pytest.raises(Exception) as raised:
        called(frame(0, 5), 0)
    told = "".join(traceback.format_exception(raised.value))
    assert secret not in told
    assert ("HG-275 *** (why)" if isinstance(error, RowsUnfit) else "OSError: ***") in told


def test_a_new_checkpoint_begins_where_the_table_is(history: History) -> None:
    assert batches.starting_offsets(history.sink) == "earliest"
    with closing(one_batch(history, 5)) as query:
        query(frame(0, 5), 0)
    history.log.append(3)  # a partition that the table does not know
    found = batches.starting_offsets(history.sink)
    assert found == '{"t": {"0": 5, "1": 5, "2": 5, "3": -2}}'
    assert load(history.sink).name == "orders"
