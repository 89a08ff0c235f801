"""Records mode without Spark: a query hands Kafka's records over, the sink file makes rows."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from integration.readers import read_with_duckdb
from pyiceberg.types import BinaryType, MapType, StringType, TimestamptzType
from spark_query.histories import History, PlayedFrame
from spark_query.test_batches import one_batch, record_now

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.errors import (
    ConfigurationError,
    PoisonRecord,
    RowsUnfit,
    UnknownField,
)
from headgate.data_plane.spark.query_records import SOURCE_COLUMNS
from headgate.spark import batches

RECORD = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)
AT = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def record(partition: int, offset: int, value: object, **more: object) -> dict[str, Any]:
    text = value if isinstance(value, bytes | None) else json.dumps(value).encode()
    placed = {"topic": "t", "partition": partition, "offset": offset, "timestamp": AT}
    return {"value": text, **placed, **more}


class GivenRecords(PlayedFrame):
    """A batch of these records, in two tasks."""

    columns = tuple(RECORD.names)

    def __init__(self, records: Sequence[dict[str, Any]]) -> None:
        super().__init__({}, 2)
        self._records = records

    def select(self, *names: str) -> GivenRecords:
        self.columns = names
        return self

    def _places(self) -> Any:
        return self._records

    def _rows(self, records: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(records, RECORD).select(list(self.columns))


def in_records_mode(history: History, end: int, **named: Any) -> batches.Batches:
    with ExitStack() as stack:
        made = batches.Batches

        def with_records(*given: Any, **more: Any) -> batches.Batches:
            return made(*given, **more, records=True)

        stack.enter_context(patch.object(batches, "Batches", with_records))
        return one_batch(history, end, **named)


def add_settings(history: History, text: str) -> None:
    history.sink.write_text(f"{history.sink.read_text()}\n{text}\n")


def rows_of(history: History) -> list[dict[str, Any]]:
    location = history._catalog().load_table("s.orders").metadata_location
    rows: list[dict[str, Any]] = read_with_duckdb(location).to_pylist()
    return sorted(rows, key=lambda row: (row["kafka_partition"], row["kafka_offset"]))


def test_query_26_records_become_rows_as_the_sink_file_says(history: History) -> None:
    columns = '  { name = "id", type = "long", required = true },'
    text = history.sink.read_text()
    history.sink.write_text(text.replace(columns, f'{columns}\n  {{ name = "x", type = "int" }},'))
    add_settings(history, '[shape]\nwhere = "id <> 3"')
    records = [record(p, o, {"id": o, "surprise": 1}) for p in range(3) for o in range(5)]
    with closing(in_records_mode(history, 5)) as query:
        query(GivenRecords(records), 0)
    found = [(row["id"], row["kafka_partition"], row["kafka_offset"]) for row in rows_of(history)]
    assert found == [(o, p, o) for p in range(3) for o in range(5) if o != 3]
    committed = record_now(history)
    assert (committed.records, committed.skipped) == (12, 3)


def test_query_26_a_batch_that_begins_below_is_trimmed_without_columns_of_the_table(
    history: History,
) -> None:
    records = [record(p, o, {"id": o}) for p in range(3) for o in range(9)]
    with closing(in_records_mode(history, 5)) as query:
        query(GivenRecords([each for each in records if each["offset"] < 5]), 0)
    with closing(in_records_mode(history, 9, name="d")) as query:
        query(GivenRecords(records), 0)
    found = [(row["kafka_partition"], row["kafka_offset"]) for row in rows_of(history)]
    assert found == [(p, o) for p in range(3) for o in range(9)]


@pytest.mark.parametrize(
    "stranger",
    [{"topic": "u"}, {"partition": 7}, {"partition": -1}, {"offset": 5}, {"offset": None}],
    ids=str,
)
def test_query_26_a_record_that_is_not_of_its_batch_fails_it(
    history: History, stranger: dict[str, Any]
) -> None:
    records = [record(0, 0, {"id": 1}), record(1, 1, {"id": 1}) | stranger]
    with closing(in_records_mode(history, 5)) as query, pytest.raises(RowsUnfit):
        query(GivenRecords(records), 0)
    assert record_now_or_none(history) is None


def record_now_or_none(history: History) -> object:
    return history._catalog().load_table("s.orders").current_snapshot()


def test_query_26_a_bad_record_ends_the_query_or_is_skipped(history: History) -> None:
    records = [record(0, 0, {"id": 1}), record(0, 1, b"{"), record(0, 2, None)]
    with (
        closing(in_records_mode(history, 5)) as query,
        pytest.raises(PoisonRecord, match="t partition 0 offset"),
    ):
        query(GivenRecords(records), 0)
    add_settings(history, '[quarantine]\npolicy = "skip"\ntombstones = "skip"')
    with closing(in_records_mode(history, 5, name="d")) as query:
        query(GivenRecords(records), 0)
    assert [row["id"] for row in rows_of(history)] == [1]
    assert (record_now(history).records, record_now(history).skipped) == (1, 14)


def test_query_26_a_field_without_a_column_ends_the_query_where_it_is_to(history: History) -> None:
    add_settings(history, '[table.schema]\nunknown_fields = "fail"')
    with closing(in_records_mode(history, 5)) as query, pytest.raises(UnknownField):
        query(GivenRecords([record(0, 0, {"id": 1, "new": 2})]), 0)


def test_query_26_key_headers_and_timestamp_of_a_record_reach_their_columns(
    history: History,
) -> None:
    text = history.sink.read_text()
    new = """
  { name = "key", type = "binary", from_record = true },
  { name = "at", type = "timestamptz", from_record = true },
  { name = "sent", type = "map<string, string>", from_record = true },"""
    text = text.replace("columns = [", f"columns = [{new}")
    history.sink.write_text(f'{text}\nkey = "key"\ntimestamp = "at"\nheaders = "sent"\n')
    with history._catalog().load_table("s.orders").update_schema() as change:
        change.add_column("key", BinaryType())
        change.add_column("at", TimestamptzType())
        change.add_column("sent", MapType(100, StringType(), 101, StringType()))
    with closing(in_records_mode(history, 5)) as query:
        headers = [{"key": "a", "value": b"1"}]
        query(GivenRecords([record(0, 0, {"id": 1}, key=b"k", headers=headers)]), 0)
    (row,) = rows_of(history)
    assert (row["key"], row["at"], dict(row["sent"])) == (b"k", AT, {"a": "1"})


def test_query_26_changes_of_a_keyed_table_are_read_as_the_sink_file_says(keyed: History) -> None:
    with closing(in_records_mode(keyed, 5)) as query:
        records = [
            record(0, 0, {"id": 1, "seen": 0}, key=b"1"),
            record(0, 1, {"id": 2, "seen": 1}, key=b"2"),
            record(0, 2, {"id": 1, "seen": 2}, key=b"1"),
            record(0, 3, None, key=b"2"),
        ]
        query(GivenRecords(records), 0)
    assert [(row["id"], row["seen"]) for row in rows_of(keyed)] == [(1, 2)]
    assert record_now(keyed).keys == KeyCounts(inserted=1, absent=1, superseded=2)


def test_query_26_a_frame_that_is_none_of_records_is_refused_by_name(history: History) -> None:
    frame = GivenRecords([])
    frame.columns = ("key", "value", "topic", "partition", "offset", "surprise")
    query = in_records_mode(history, 5)
    with closing(query), pytest.raises(ConfigurationError, match=r"lacks timestamp and has surp"):
        query(frame, 0)
    assert set(RECORD.names) == SOURCE_COLUMNS


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[table.schema]\nunknown_fields = "evolve"', "unknown_fields"),
        ('[quarantine]\npolicy = "quarantine"\ntable = "s.bad"', "quarantine"),
    ],
)
def test_query_26_what_a_query_cannot_do_is_refused_by_name(
    history: History, text: str, named: str
) -> None:
    add_settings(history, text)
    with pytest.raises(ConfigurationError, match=named):
        batches.Batches(history.sink, "anywhere", records=True)


def test_query_26_a_query_that_remembers_hands_no_records_over(history: History) -> None:
    with pytest.raises(ConfigurationError, match="stateful"):
        batches.Batches(history.sink, "anywhere", records=True, stateful=True)


def test_query_26_what_nothing_would_hide_is_refused(history: History) -> None:
    add_settings(history, '[shape]\nwhere = "id <> 3"')
    with pytest.raises(ConfigurationError, match="shape"):
        batches.Batches(history.sink, "anywhere")
