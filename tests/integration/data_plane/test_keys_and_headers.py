"""Keys and headers of a real topic in separate columns; names found as the table says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from integration.data_plane.filling import produce
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
)
from support.local_catalog import LocalCatalog

from headgate.control_protocol.errors import ConfigurationError, PoisonRecord
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.writer_task_plan import SourcePlan, load_table_and_plan
from headgate.data_plane.write.write_batch import write_ranges
from headgate.kafka.record_fetch import ReadRequest, read_ranges

pytestmark = pytest.mark.integration

ID = NestedField(1, "id", LongType())
Write = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def write(sqlite_catalog: LocalCatalog, bootstrap: str, topic_factory: Callable[..., str]) -> Write:
    """Produces messages of (value, key, headers), writes their range, gives the file's rows."""

    def written(
        schema: Schema,
        messages: Sequence[tuple[bytes, bytes | None, Any]],
        properties: Mapping[str, str] | None = None,
        **source: Any,
    ) -> list[dict[str, Any]]:
        topic = topic_factory()
        for value, key, headers in messages:
            produce(bootstrap, topic, [value], key=key, headers=headers)
        table = sqlite_catalog.catalog.create_table(
            "db.t", schema, properties=dict(properties or {})
        )
        start = TableStart(
            table="db.t",
            uuid=str(table.metadata.table_uuid),
            schema_id=table.schema().schema_id,
            spec_id=table.spec().spec_id,
            file_prefix=f"{table.location()}/data/nonce",
        )
        plan = load_table_and_plan(
            sqlite_catalog.catalog, start, SourcePlan({"bootstrap.servers": bootstrap}, **source)
        )
        transaction = TransactionId(Epoch(1), TransactionNumber(1))
        ranges = {TopicPartition(topic, 0): OffsetRange(0, len(messages))}
        done = write_ranges(plan, Batch(1, transaction, start, ranges, 1 << 27))
        paths = [file.path.removeprefix("file://") for file in done.files]
        return list(pa.concat_tables([pq.ParquetFile(p).read() for p in paths]).to_pylist())

    return written


def events(*more: tuple[bytes | None, Any]) -> list[tuple[bytes, bytes | None, Any]]:
    return [(b'{"id":%d}' % at, key, headers) for at, (key, headers) in enumerate(more)]


@pytest.mark.parametrize(
    ("kind", "source", "key", "expected"),
    [
        (BinaryType(), {}, b"\xff\x00", b"\xff\x00"),
        (StringType(), {}, "é".encode(), "é"),
        (LongType(), {"key_format_name": "string"}, b"42", 42),
        (
            LongType(),
            {"key_format_name": "avro", "key_format_options": {"schema": '"int"'}},
            b"\x54",
            42,
        ),
        (
            StructType(NestedField(7, "b", IntegerType()), NestedField(8, "a", StringType())),
            {"key_format_name": "json"},
            b'{"a":"x","b":2}',
            {"b": 2, "a": "x"},
        ),
    ],
)
def test_keys_are_decoded_into_their_column(
    write: Write, kind: PrimitiveType, source: dict[str, Any], key: bytes, expected: Any
) -> None:
    schema = Schema(ID, NestedField(2, "k", kind))
    rows = write(
        schema,
        events((key, None), (None, None), (key, None)),
        record_columns={"key": "k"},
        **source,
    )
    assert [row["id"] for row in rows] == [0, 1, 2]
    assert [row["k"] for row in rows] == [expected, None, expected]


def test_a_key_that_its_format_refuses_is_a_bad_record(write: Write) -> None:
    schema = Schema(ID, NestedField(2, "k", StringType()))
    with pytest.raises(PoisonRecord, match="offset 1: key: is not UTF-8"):
        write(schema, events((b"a", None), (b"\xff", None)), record_columns={"key": "k"})


def test_a_required_key_must_be_there(write: Write) -> None:
    schema = Schema(ID, NestedField(2, "k", StringType(), required=True))
    with pytest.raises(PoisonRecord, match="offset 0: k: the record has no key"):
        write(schema, events((None, None)), record_columns={"key": "k"})


BINARY_MAP = MapType(4, StringType(), 5, BinaryType(), value_required=False)
TEXT_MAP = MapType(4, StringType(), 5, StringType(), value_required=False)
PAIRS = ListType(
    4,
    StructType(NestedField(5, "key", StringType()), NestedField(6, "value", BinaryType())),
)


def test_headers_go_into_maps_and_lists(write: Write) -> None:
    headers = [("a", b"1"), ("b", None)]
    rows = write(
        Schema(ID, NestedField(2, "h", BINARY_MAP)),
        events((None, headers), (None, None)),
        record_columns={"headers": "h"},
    )
    assert [row["h"] for row in rows] == [[("a", b"1"), ("b", None)], []]


def test_headers_as_text_must_be_text(write: Write) -> None:
    schema = Schema(ID, NestedField(2, "h", TEXT_MAP))
    with pytest.raises(PoisonRecord, match="offset 1: the header 'a' is not UTF-8"):
        write(
            schema,
            events((None, [("a", b"x")]), (None, [("a", b"\xff")])),
            record_columns={"headers": "h"},
        )


def test_a_repeated_header_needs_a_list(write: Write) -> None:
    twice = events((None, [("a", b"1"), ("a", b"2")]))
    rows = write(Schema(ID, NestedField(2, "h", PAIRS)), twice, record_columns={"headers": "h"})
    assert rows[0]["h"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]


def test_a_repeated_header_is_a_bad_record_for_a_map(write: Write) -> None:
    twice = events((None, [("a", b"1"), ("a", b"2")]))
    with pytest.raises(PoisonRecord, match="offset 0: h: has a key twice"):
        write(Schema(ID, NestedField(2, "h", BINARY_MAP)), twice, record_columns={"headers": "h"})


def test_a_column_that_cannot_hold_headers_is_refused(write: Write) -> None:
    schema = Schema(ID, NestedField(2, "h", StringType()))
    with pytest.raises(ConfigurationError, match="h cannot hold headers"):
        write(schema, events((None, None)), record_columns={"headers": "h"})


def test_t18_t19_names_are_found_as_the_table_and_the_sink_file_say(write: Write) -> None:
    mapping = [{"field-id": 1, "names": ["id", "old_id"]}, {"field-id": 2, "names": ["zone"]}]
    values = [b'{"id":0,"ZONE":"a"}', b'{"Old_Id":1,"zone":"b"}']
    rows = write(
        Schema(ID, NestedField(2, "zone", StringType())),
        [(value, None, None) for value in values],
        {"schema.name-mapping.default": json.dumps(mapping)},
        format_options={"case-insensitive": "true"},
    )
    assert rows == [{"id": 0, "zone": "a"}, {"id": 1, "zone": "b"}]


def test_t19_columns_that_differ_in_case_only_cannot_be_matched_without_it(write: Write) -> None:
    with pytest.raises(ConfigurationError, match=r"db\.t: more than one column"):
        write(
            Schema(ID, NestedField(2, "ID", StringType())),
            events((None, None)),
            format_options={"case-insensitive": "true"},
        )


def test_what_nobody_asks_for_is_not_read(bootstrap: str, topic_factory: Any) -> None:
    topic = topic_factory()
    produce(bootstrap, topic, [b"v"], key=b"k", headers=[("h", b"x")])
    at = {TopicPartition(topic, 0): OffsetRange(0, 1)}
    kafka = {"bootstrap.servers": bootstrap}
    (plain,) = read_ranges(ReadRequest(kafka, at, {}))
    assert (plain.keys, plain.headers) == (None, None)

    chunks = read_ranges(ReadRequest(kafka, at, {}, with_keys=True, with_headers=True))
    whole = next(chunks)
    assert whole.keys is not None
    assert whole.headers is not None
    some = whole.filter(np.array([True]))
    assert (list(whole.keys), list(whole.headers)) == ([b"k"], [[("h", b"x")]])
    assert some.headers is not None
    assert some.headers[0] == [("h", b"x")]

    # lent by the client: gone with the chunk, and never read from memory that is not theirs
    assert next(chunks, None) is None
    for lent in (whole.headers, some.headers):
        with pytest.raises(RuntimeError, match="lent"):
            lent[0]
