"""Measures decoding alone: values in memory into Arrow columns, no Kafka and no files.

    python benchmarks/decoding.py [--records 400000]

The same ten columns as JSON, as JSON with rules, as Avro and as Protobuf; and Protobuf by Google's
library, a message at a time, into lists (which needs ``protobuf``). Printed are records per
CPU-second, the best of the rounds, which go round the formats in turn.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from headgate.data_plane.formats.column_options import ColumnRule
from headgate.data_plane.formats.format_registry import create_record_format
from headgate.data_plane.formats.format_with_column_options import RuledColumns
from headgate.native.byte_arrays import Packed

SEED, ROUNDS, CHUNK = 7, 4, 20_000
MOMENT = pa.timestamp("us", tz="UTC")
KINDS: dict[str, tuple[pa.DataType, str, int]] = {
    "id": (pa.int64(), "long", 3),
    "vendor": (pa.int32(), "int", 5),
    "zone": (pa.large_string(), "string", 9),
    "pickup_at": (MOMENT, "moment", 11),
    "dropoff_at": (MOMENT, "moment", 11),
    "passengers": (pa.int32(), "int", 5),
    "distance": (pa.float64(), "double", 1),
    "fare": (pa.float64(), "double", 1),
    "payment": (pa.large_string(), "string", 9),
    "shared": (pa.bool_(), "boolean", 8),
}
"""By column its type, Avro's, and Protobuf's number for it."""
SCHEMA = pa.schema([(name, kind) for name, (kind, _, _) in KINDS.items()])
RULES = {
    "pickup_at": ColumnRule(("pickup_at",), unit="us"),
    "dropoff_at": ColumnRule(unit="us"),
    "zone": ColumnRule(as_text=True),
}
_MOMENT_AVRO = {"type": "long", "logicalType": "timestamp-micros"}


def rows(count: int) -> Iterator[dict[str, Any]]:
    dice = random.Random(SEED)
    for number in range(count):
        at = 1_785_585_600_000_000 + number * 1_000_003
        yield {
            "id": number,
            "vendor": dice.randrange(4),
            "zone": f"zone {dice.randrange(265)}",
            "pickup_at": at,
            "dropoff_at": at + dice.randrange(10**9),
            "passengers": dice.randrange(1, 7),
            "distance": dice.randrange(4_000) / 100,
            "fare": dice.randrange(20_000) / 100,
            "payment": dice.choice(["card", "cash"]),
            "shared": dice.random() < 0.1,
        }


def row_file() -> Any:
    """Return a descriptor of the message, as ``protoc`` would write it."""
    made = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    made.dependency.append("google/protobuf/timestamp.proto")
    message = made.message_type.add(name="Row")
    for number, (name, (_, _, kind)) in enumerate(KINDS.items(), start=1):
        field = message.field.add(name=name, number=number, type=kind, label=1)
        if kind == descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE:
            field.type_name = ".google.protobuf.Timestamp"
    return made


class Formats:
    """The rows in each format, and what decodes a part of them."""

    def __init__(self, count: int) -> None:
        listed = list(rows(count))
        avro = [
            {"name": name, "type": _MOMENT_AVRO if kind == "moment" else kind}
            for name, (_, kind, _) in KINDS.items()
        ]
        avro_schema = {"type": "record", "name": "Row", "fields": avro}
        octets = [json.dumps(row).encode() for row in listed]
        file = row_file()
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        pool.Add(file)
        self._class = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Row"))
        messages = [self._message(row) for row in listed]
        descriptor = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
        options = {"descriptor": base64.b64encode(descriptor).decode(), "message": "t.Row"}
        micros = [row | {k: row[k] // 1000 for k in ("pickup_at", "dropoff_at")} for row in listed]
        plain = [json.dumps(row).encode() for row in micros]
        ruled = RuledColumns(create_record_format("json", {}), RULES, SCHEMA)
        in_avro = create_record_format("avro", {"schema": json.dumps(avro_schema)})
        self.all: dict[str, tuple[list[bytes], Callable[[Packed], Any]]] = {
            "json": (plain, _decoding(create_record_format("json", {}))),
            "json, three columns with rules": (octets, _decoding(ruled)),
            "avro": ([_avro(avro_schema, row) for row in listed], _decoding(in_avro)),
            "protobuf": (messages, _decoding(create_record_format("protobuf", options))),
            "protobuf, by Google's library": (messages, self._by_google),
        }

    def _message(self, row: dict[str, Any]) -> bytes:
        made = self._class()
        for name, value in row.items():
            if KINDS[name][1] == "moment":
                seconds, micros = divmod(value, 10**6)
                getattr(made, name).seconds = seconds
                getattr(made, name).nanos = micros * 1_000
            else:
                setattr(made, name, value)
        octets: bytes = made.SerializeToString()
        return octets

    def _by_google(self, values: Packed) -> Any:
        columns: dict[str, list[Any]] = {name: [] for name in KINDS}
        for value in values:
            row = self._class.FromString(value)
            for name, (_, kind, _) in KINDS.items():
                found = getattr(row, name)
                if kind == "moment":
                    found = found.seconds * 10**6 + found.nanos // 1_000
                columns[name].append(found)
        return pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in KINDS})


def _avro(schema: Any, row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, row)
    return out.getvalue()


def _decoding(format_: Any) -> Callable[[Packed], Any]:
    return lambda values: format_.decode(values, SCHEMA)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=400_000)
    count = parser.parse_args().records
    formats = Formats(count)
    best = dict.fromkeys(formats.all, 0.0)
    for _ in range(ROUNDS):
        for name, (values, decode) in formats.all.items():
            share = count // 8 if "Google" in name else count
            parts = [Packed.from_values(values[at : at + CHUNK]) for at in range(0, share, CHUNK)]
            begun_s = time.process_time()
            for part in parts:
                decode(part)
            best[name] = max(best[name], share / (time.process_time() - begun_s))
    for name, rate in best.items():
        size = sum(map(len, formats.all[name][0])) / count
        print(f"{name:32} {size:4.0f} bytes {rate:12,.0f} records/CPU-s")


if __name__ == "__main__":
    main()
