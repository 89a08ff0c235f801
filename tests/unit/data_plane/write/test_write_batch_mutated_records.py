"""Records that were corrupted: each is a row, a bad record or a named stop, and soon.

Sound records of every format are mutated byte by byte, by token and by nesting, with odd keys,
headers and timestamps, and written in batches to a partitioned and sorted table. Thousands here,
from fixed seeds; a million with ``-m soak``.
"""

from __future__ import annotations

import io
import json
import random
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from support.local_catalog import LocalCatalog, local_catalog
from unit.data_plane.formats import protobuf_worlds

from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.errors import PoisonRecord, StopSink
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchFailed, BatchWritten
from headgate.control_protocol.quarantine_policy import BadRecordLimits, Disposal
from headgate.data_plane.batch.writer_task_plan import Handling, Plans, SourcePlan
from headgate.data_plane.formats.column_options import ColumnRule
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.write_batch import write_chunk_around_poison
from headgate.kafka.push_source import Record
from headgate.tables.iceberg.table_creation import create_table_if_missing

INSIDE = StructType(
    NestedField(30, "x", LongType()), NestedField(31, "y", StringType(), required=True)
)
TABLE = Schema(
    NestedField(1, "i", IntegerType()),
    NestedField(2, "l", LongType()),
    NestedField(3, "f", FloatType()),
    NestedField(4, "d", DoubleType()),
    NestedField(5, "m", DecimalType(9, 2)),
    NestedField(6, "b", BooleanType()),
    NestedField(7, "t", StringType()),
    NestedField(8, "day", DateType()),
    NestedField(9, "at", TimeType()),
    NestedField(10, "ts", TimestamptzType()),
    NestedField(11, "naive", TimestampType()),
    NestedField(12, "u", UUIDType()),
    NestedField(13, "raw", BinaryType()),
    NestedField(14, "fix", FixedType(3)),
    NestedField(15, "s", INSIDE),
    NestedField(16, "list", ListType(40, LongType(), element_required=False)),
    NestedField(17, "map", MapType(41, StringType(), 42, DoubleType(), value_required=False)),
    NestedField(18, "k", StringType()),
    NestedField(19, "h", MapType(43, StringType(), 44, BinaryType(), value_required=False)),
    NestedField(20, "stamp", TimestamptzType()),
)
SPEC = PartitionSpec(
    PartitionField(10, 1000, DayTransform(), "ts_day"),
    PartitionField(2, 1001, BucketTransform(4), "l_bucket"),
    PartitionField(7, 1002, TruncateTransform(2), "t_truncated"),
    PartitionField(8, 1003, YearTransform(), "day_year"),
)
ORDER = SortOrder(SortField(4, IdentityTransform()), SortField(7, IdentityTransform()))
PLAIN: dict[str, Any] = {
    "i": 1,
    "l": -5,
    "f": 1.5,
    "d": 2.25,
    "m": "12.34",
    "b": True,
    "t": "text \u00e9 \u2603",
    "day": "2020-02-29",
    "at": "01:02:03.5",
    "ts": "2026-01-02T03:04:05Z",
    "naive": "1960-01-02T03:04:05.123456",
    "u": "123e4567-e89b-12d3-a456-426614174000",
    "raw": "AAEC",
    "fix": "AAEC",
    "s": {"x": 1, "y": "z"},
    "list": [1, None, 3],
    "map": {"a": 1.0, "b": None},
    "other": [{"deep": [1, {"er": None}]}],
}
CONNECT = {
    "type": "struct",
    "fields": [
        {"field": "i", "type": "int32", "optional": True},
        {"field": "l", "type": "int64", "optional": True},
        {"field": "d", "type": "double", "optional": True},
        {"field": "t", "type": "string", "optional": True},
        {"field": "b", "type": "boolean", "optional": True},
        {"field": "list", "type": "array", "items": {"type": "int64"}, "optional": True},
        {
            "field": "s",
            "type": "struct",
            "optional": True,
            "fields": [{"field": "y", "type": "string"}],
        },
    ],
}
AVRO = fastavro.parse_schema(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "i", "type": ["null", "int", "string"]},
            {"name": "l", "type": "long"},
            {"name": "d", "type": ["double", "null"]},
            {"name": "t", "type": "string"},
            {
                "name": "m",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2},
            },
            {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "fix", "type": {"type": "fixed", "name": "three", "size": 3}},
            {
                "name": "s",
                "type": [
                    "string",
                    {
                        "type": "record",
                        "name": "q",
                        "fields": [
                            {"name": "x", "type": "long"},
                            {"name": "y", "type": ["null", "string"]},
                        ],
                    },
                ],
            },
            {"name": "list", "type": {"type": "array", "items": ["null", "long"]}},
            {"name": "map", "type": {"type": "map", "values": "double"}},
            {
                "name": "nobody",
                "type": {"type": "array", "items": {"type": "map", "values": "int"}},
            },
        ],
    }
)
TOKENS = [
    *(
        b"null",
        b"true",
        b"{}",
        b"[]",
        b'""',
        b'"',
        b"\\",
        b",",
        b":",
        b"{",
        b"}",
        b"[",
        b"]",
        b"\0",
    ),
    *(b"NaN", b"-0", b"1e400", b"1e-400", b"01", b"9" * 40, b"9" * 5_000, b"1." + b"0" * 400),
    *(b"9223372036854775808", b"-9223372036854775809", b"1e18", b"0.1e1", b"\xff", b"\xed\xa0\x80"),
    *(b'"\\ud800"', b'"\\u0000"', b'"\\ud840\\udc00"', b'"2020-13-41"', b'"24:00:00"', b'"a":1,'),
    *(b"[" * 40 + b"]" * 40, b"[" * 400 + b"]" * 400, b'{"a":' * 300 + b"1" + b"}" * 300),
    *(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x80" * 11, b"\x01", b"\x02", b"\x7f"),
    *('"\U00020000"'.encode(), '"\u0130"'.encode(), b'"0001-01-01"', b'"9999-12-31T23:59:59Z"'),
]
STAMPS = [
    -1,
    0,
    1,
    1_785_585_600_123,
    2**53,
    (2**63 - 1) // 1000,
    (2**63 - 1) // 1000 + 1,
    2**63 - 1,
]
NAMES = ["h", "", "h\udcff", "\udc80", "\u00e9", "x" * 300]


@dataclass(frozen=True)
class World:
    """One format, and what a sound value of it is."""

    options: dict[str, str]
    sound: Callable[[random.Random], bytes]
    rules: Mapping[str, ColumnRule] = field(default_factory=dict)


def sound_json(dice: random.Random) -> bytes:
    chosen = {name: value for name, value in PLAIN.items() if dice.random() < 0.9}
    return json.dumps(chosen, ensure_ascii=dice.random() < 0.5).encode()


def sound_connect(dice: random.Random) -> bytes:
    names = [part["field"] for part in CONNECT["fields"]]  # type: ignore[index]
    payload = {name: PLAIN[name] for name in names}
    schema = CONNECT if dice.random() < 0.9 else None
    return json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode()


def sound_avro(dice: random.Random) -> bytes:
    record = {
        "i": dice.choice([None, 5, "7"]),
        "l": dice.randrange(-(2**63), 2**63),
        "d": dice.choice([None, 1.5]),
        "t": "t" * dice.randrange(5),
        "m": Decimal("12.34"),
        "ts": dice.randrange(2**41),
        "day": dice.randrange(20_000),
        "fix": b"abc",
        "s": dice.choice(["text", {"x": 1, "y": "z"}]),
        "list": [1, None],
        "map": {"a": 1.5},
        "nobody": [{"k": 1}],
    }
    to = io.BytesIO()
    fastavro.schemaless_writer(to, AVRO, record)
    return to.getvalue()


def sound_csv(_: random.Random) -> bytes:
    return b'1,-5,1.5,"te""xt",true,2020-02-29,2026-01-02T03:04:05Z'


def sound_protobuf(dice: random.Random) -> bytes:
    row = PROTOBUF.row(f_int64=dice.randrange(2**62), f_string="t\u00e9" * dice.randrange(4))
    row.r_int64.extend([1, -2] * dice.randrange(3))
    row.inner.x, row.inner.y = 5, "y"
    row.at.seconds = dice.randrange(2**31)
    row.counts["a"] = 1
    row.f_bytes, row.f_double, row.f_uint64 = b"abc", dice.random(), dice.randrange(2**64)
    if dice.random() < 0.5:
        row.other.y = "z"
    found: bytes = row.SerializeToString()
    return found


MESSAGE_RULES = {
    "l": ColumnRule(("f_int64",)),
    "i": ColumnRule(("f_int32",), default=1),
    "d": ColumnRule(("f_double",)),
    "t": ColumnRule(("f_string",)),
    "ts": ColumnRule(("at",)),
    "raw": ColumnRule(("f_bytes",)),
    "s": ColumnRule(("inner",)),
    "list": ColumnRule(("r_int64",)),
    "map": ColumnRule(("counts",)),
    "m": ColumnRule(("other", "x"), default="1.5"),
    "b": ColumnRule(value=True),
}
RULES = {
    "l": ColumnRule(("s", "x"), default=5),
    "m": ColumnRule(default="1.5"),
    "t": ColumnRule(as_text=True),
    "ts": ColumnRule(("l",), unit="s"),
    "u": ColumnRule(value="123e4567-e89b-12d3-a456-426614174000"),
}
PROTOBUF = protobuf_worlds.World("proto3")
WORLDS = {
    "protobuf": World(PROTOBUF.options, sound_protobuf, MESSAGE_RULES),
    "json": World({}, sound_json),
    "json, with rules": World({}, sound_json, RULES),
    "json, whatever the case": World({"case-insensitive": "true"}, sound_json),
    "connect-json": World({}, sound_connect),
    "avro": World({"schema": json.dumps(AVRO)}, sound_avro),
    "csv": World({"columns": "i,l,d,t,b,day,ts"}, sound_csv),
    "string": World({"column": "t"}, sound_csv),
}


def mutated(value: bytes, dice: random.Random) -> bytes | None:
    if dice.random() < 0.02:
        return dice.choice([None, b"", b"\x00" * dice.randrange(20), value * 2])
    octets = bytearray(value)
    for _ in range(dice.choice([0, 0, 1, 1, 2, 8])):
        at = dice.randrange(len(octets) + 1)
        match dice.randrange(6):
            case 0 if at < len(octets):
                octets[at] = dice.randrange(256)
            case 1:
                del octets[at : at + dice.choice([1, 1, 2, 8, 1_000])]
            case 2:
                octets[at:at] = dice.choice(TOKENS)
            case 3:
                octets[at : at + dice.randrange(12)] = dice.choice(TOKENS)
            case 4:
                begin = dice.randrange(len(octets) + 1)
                octets[at:at] = octets[begin : begin + dice.randrange(40)]
            case _ if at < len(octets):
                octets[at] ^= 1 << dice.randrange(8)
    return bytes(octets)


def record(world: World, offset: int, dice: random.Random) -> Record:
    value = mutated(world.sound(dice), dice)
    key = dice.choice([None, b"key", b"\xff\xfe", b"", b"k" * 1_000])
    headers = [
        (dice.choice(NAMES), dice.choice([None, b"", b"\xff", b"v"]))
        for _ in range(dice.choice([0] * 9 + [1, 2]))
    ]
    stamp = dice.choice(STAMPS) if dice.random() < 0.1 else 1_785_585_600_123
    return Record("t", 0, offset, stamp, value, key if dice.random() < 0.1 else b"k", headers)


class Desk:
    """A table with a quarantine, and the writer of an embedded participant."""

    def __init__(self, local: LocalCatalog, name: str, world: World, policy: Disposal) -> None:
        self._local = local
        limits = BadRecordLimits(per_thousand_max=1_000)
        self._source = SourcePlan(
            {},
            format_name=name.partition(",")[0],
            format_options=world.options,
            record_columns={"key": "k", "headers": "h", "timestamp": "stamp"},
            rules=world.rules,
            handling=Handling(policy, policy, limits, "headgate-sink"),
            sink="sink",
        )
        self._plans = Plans(local.catalog)
        self._starts = self._start("db.t"), self._start("db.q")

    def _start(self, name: str) -> TableStart:
        table = self._local.catalog.load_table(name)
        return TableStart(
            table=name,
            uuid=str(table.metadata.table_uuid),
            schema_id=table.schema().schema_id,
            spec_id=table.spec().spec_id,
            file_prefix=f"{table.location()}/data/7",
        )

    def write(self, records: list[Record]) -> BatchWritten | BatchFailed:
        begin = records[0].offset
        batch = Batch(
            number=1,
            transaction=TransactionId(Epoch(1), TransactionNumber(1)),
            table=self._starts[0],
            ranges={TopicPartition("t", 0): OffsetRange(begin, begin + len(records))},
            target_file_bytes=1 << 27,
            topic_ids={"t": TopicId("id")},
            quarantine=self._starts[1],
        )
        plan = self._plans.load_plan(batch, self._source)
        outcome = write_chunk_around_poison(plan, batch, chunk_of([records]))
        for path in self._local.warehouse.rglob("*.parquet"):
            path.unlink()
        return outcome


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCatalog]:
    made = local_catalog(tmp_path)
    made.catalog.create_table("db.t", TABLE, partition_spec=SPEC, sort_order=ORDER)
    create_table_if_missing(made.catalog, "db.q", quarantine_declaration())
    yield made
    made.catalog.close()


def thrown(desk: Desk, world: World, seed: int, count: int) -> None:
    """A batch of ``count`` mutated records: each a row, a bad record or a tombstone."""
    dice = random.Random(seed)
    records = [record(world, offset, dice) for offset in range(count)]
    begun_s = time.process_time()  # the machine may have others to serve
    outcome = desk.write(records)
    took_s = time.process_time() - begun_s
    assert isinstance(outcome, BatchWritten), f"seed {seed}: {outcome}"
    (result,) = outcome.partitions.values()
    assert result.records + result.quarantined == count, f"seed {seed}"
    assert sum(file.records for file in outcome.files) == result.records, f"seed {seed}"
    assert 0 < result.records < count, f"seed {seed}: neither all good nor all bad"
    assert took_s < 10 + 0.03 * count, f"seed {seed}"


@pytest.mark.parametrize("name", WORLDS)
def test_mutated_records_are_rows_or_bad_records(local: LocalCatalog, name: str) -> None:
    world = WORLDS[name]
    desk = Desk(local, name, world, Disposal.QUARANTINE)
    for seed in range(2):
        thrown(desk, world, seed, 250)


@pytest.mark.parametrize("name", WORLDS)
def test_each_of_them_alone_is_a_row_or_a_named_stop(local: LocalCatalog, name: str) -> None:
    world = WORLDS[name]
    desk = Desk(local, name, world, Disposal.FAIL)
    dice = random.Random(7)
    for offset in range(60):
        outcome = desk.write([record(world, offset, dice)])
        if isinstance(outcome, BatchFailed):
            assert isinstance(outcome.fatal, PoisonRecord | StopSink), outcome
            assert f"t partition 0 offset {offset}: " in outcome.reason


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", WORLDS)
def test_a_million_mutated_records(local: LocalCatalog, name: str) -> None:
    world = WORLDS[name]
    desk = Desk(local, name, world, Disposal.QUARANTINE)
    batches = 1_000_000 // len(WORLDS) // 1_000 + 1
    thrown(desk, world, 999, 1_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(1_000, 1_000 + batches):
        thrown(desk, world, seed, 1_000)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 1024 * 1024
