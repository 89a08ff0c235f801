"""Writes rows into Avro files by Iceberg's specification: the schema holds the field ids.

Avro is a row format, and fastavro writes it value by value: a file costs many times the work of one
in Parquet (docs/reference/performance.md).
"""

from __future__ import annotations

import io
import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from pyiceberg.io import OutputStream
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headgate.data_plane.files.file_format import Encoder, read_choice
from headgate.data_plane.files.metrics import Leaf, RowMetrics
from headgate.data_plane.files.physical_types import (
    Stored,
    TypeMapping,
    large_types_as_small,
    times_as_numbers,
)

_BLOCK_BYTES = 256 * 1024
"""In Arrow memory; a block is compressed as a whole."""

_CODECS = {
    "gzip": "deflate",
    "zstd": "zstandard",
    "snappy": "snappy",
    "uncompressed": "null",
}
_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_METADATA = fastavro.parse_schema({"type": "map", "values": "bytes"})
_LONG = fastavro.parse_schema({"type": "long"})

_NAMES: dict[type[IcebergType], Any] = {
    BooleanType: "boolean",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimeType: {"type": "long", "logicalType": "time-micros"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    TimestamptzType: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
}


class AvroEncoding:
    """Makes the files of one table. Raises ``ConfigurationError`` for impossible options."""

    name = "avro"
    write_rows_max = 64 * 1024
    write_bytes_max = 16 * 1024 * 1024

    def __init__(
        self, schema: Schema, properties: Mapping[str, str], leaves: Sequence[Leaf]
    ) -> None:
        self.struct = schema.as_struct()
        self.leaves = tuple(leaves)
        codec = read_choice(properties, "write.avro.compression-codec", _CODECS, "gzip")
        names = avro_names_by_id(self.struct)
        self.types = TypeMapping(
            _storage_conversion, lambda f: names[f.field_id], lambda _: {}, maps_as_lists=True
        )
        record_schema = _record_schema(self.struct, "table", names)
        metadata = {"avro.schema": json.dumps(record_schema).encode(), "avro.codec": codec.encode()}
        self._header = _MAGIC + _encode(_METADATA, metadata)
        self.codec = codec
        self.rows = fastavro.parse_schema({"type": "array", "items": record_schema})

    def can_hold_rows(self, rows: pa.Table) -> bool:  # noqa: ARG002
        return True

    def begin_file(self, stream: OutputStream, rows: pa.Table) -> Encoder:  # noqa: ARG002
        sync = os.urandom(_SYNC_BYTES)
        stream.write(self._header + sync)
        return _AvroFile(self, stream, sync)


class _AvroFile:
    def __init__(self, encoding: AvroEncoding, stream: OutputStream, sync: bytes) -> None:
        self._encoding = encoding
        self._stream = stream
        self._sync = sync
        self._metrics = RowMetrics(encoding.leaves)

    def write(self, rows: pa.Table) -> None:
        stored = self._encoding.types.stored_rows(rows, self._encoding.struct)
        portion = max(1, int(_BLOCK_BYTES * rows.num_rows / max(1, rows.nbytes)))
        for begin in range(0, rows.num_rows, portion):
            self._write_block(stored.slice(begin, portion).to_pylist())
        self._metrics.add_rows(rows)

    def close(self) -> None:
        """Do nothing: nothing follows the rows of an Avro file."""

    def row_count_and_statistics(self) -> tuple[int, dict[str, Any]]:
        return self._metrics.rows, self._metrics.statistics_without_footer()

    def _write_block(self, rows: list[dict[str, Any]]) -> None:
        """Write the rows as an array: their number, each of them, and a zero."""
        count = _encode(_LONG, len(rows))
        listed = _encode(self._encoding.rows, rows)
        packed = _compress(self._encoding.codec, listed[len(count) : -1])
        self._stream.write(count + _encode(_LONG, len(packed)) + packed + self._sync)


def _record_schema(struct: StructType, name: str, names: Mapping[int, str]) -> dict[str, Any]:
    """Return the Avro record of an Iceberg struct, with the ids of its fields."""
    return {
        "type": "record",
        "name": name,
        "fields": [_avro_field(field, names) for field in struct.fields],
    }


def _avro_field(field: NestedField, names: Mapping[int, str]) -> dict[str, Any]:
    own = names[field.field_id]
    result: dict[str, Any] = {
        "name": own,
        "type": _type_of_field(field, names),
        "field-id": field.field_id,
    }
    if field.optional:
        result["default"] = None
    if own != field.name:
        result["iceberg-field-name"] = field.name
    return result


def _type_of_field(field: NestedField, names: Mapping[int, str]) -> Any:
    kind = _avro_type(field.field_type, field.field_id, names)
    return kind if field.required else ["null", kind]


def _avro_type(iceberg_type: IcebergType, field_id: int, names: Mapping[int, str]) -> Any:
    """Return the type; names use the field's id, since each may be defined once only."""
    if isinstance(iceberg_type, StructType):
        return _record_schema(iceberg_type, f"r{field_id}", names)
    if isinstance(iceberg_type, ListType):
        items = _type_of_field(iceberg_type.element_field, names)
        return {"type": "array", "items": items, "element-id": iceberg_type.element_id}
    if isinstance(iceberg_type, MapType):
        pair = {
            "type": "record",
            "name": f"k{iceberg_type.key_id}_v{iceberg_type.value_id}",
            "fields": [
                _avro_field(field, names)
                for field in (iceberg_type.key_field, iceberg_type.value_field)
            ],
        }
        return {"type": "array", "items": pair, "logicalType": "map"}
    if isinstance(iceberg_type, DecimalType):
        labels = {
            "logicalType": "decimal",
            "precision": iceberg_type.precision,
            "scale": iceberg_type.scale,
        }
        return _fixed_type(
            f"decimal_{field_id}", _decimal_byte_count(iceberg_type.precision), labels
        )
    if isinstance(iceberg_type, UUIDType):
        return _fixed_type(f"uuid_{field_id}", 16, {"logicalType": "uuid"})
    if isinstance(iceberg_type, FixedType):
        return _fixed_type(f"fixed_{field_id}", len(iceberg_type), {})
    return _NAMES[type(iceberg_type)]


def _fixed_type(name: str, size: int, labels: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **labels}


def _decimal_byte_count(precision: int) -> int:
    """Return how many bytes hold every decimal of so many digits, and its sign."""
    largest: int = 10**precision - 1
    return largest.bit_length() // 8 + 1


def avro_names_by_id(iceberg_type: IcebergType) -> dict[int, str]:
    """Return the names of all fields inside: their own where Avro allows it, else as Iceberg makes
    them, and with the field's id where another one of the record has that name."""
    fields = _fields_inside(iceberg_type)
    taken = {field.name for field in fields}
    result: dict[int, str] = {}
    for field in fields:
        name = _name_allowed_by_avro(field.name)
        while name != field.name and name in taken:
            name = f"{name}_{field.field_id}"
        taken.add(name)
        result |= {field.field_id: name, **avro_names_by_id(field.field_type)}
    return result


def _fields_inside(iceberg_type: IcebergType) -> Sequence[NestedField]:
    if isinstance(iceberg_type, StructType):
        return iceberg_type.fields
    if isinstance(iceberg_type, ListType):
        return (iceberg_type.element_field,)
    if isinstance(iceberg_type, MapType):
        return iceberg_type.key_field, iceberg_type.value_field
    return ()


def _name_allowed_by_avro(name: str) -> str:
    result = re.sub(r"[^A-Za-z0-9_]", lambda odd: f"_x{ord(odd[0]):X}", name)
    return f"_{result}" if result[:1].isdigit() else result


def _storage_conversion(iceberg_type: PrimitiveType) -> Stored:
    if isinstance(iceberg_type, DecimalType):
        size = _decimal_byte_count(iceberg_type.precision)
        return lambda values: _decimals_as_bytes(values, size)
    if isinstance(iceberg_type, StringType | BinaryType | BooleanType | FixedType | UUIDType):
        return large_types_as_small
    if isinstance(iceberg_type, IntegerType | LongType | FloatType | DoubleType):
        return large_types_as_small
    return times_as_numbers


def _decimals_as_bytes(values: pa.Array, size: int) -> pa.Array:
    """Return decimals as the bytes that Avro has for them, the highest first."""
    whole = np.frombuffer(values.buffers()[1], np.uint8).reshape(-1, 16)
    used = whole[values.offset : values.offset + len(values), :size][:, ::-1]
    data = pa.py_buffer(np.ascontiguousarray(used))
    valid = None
    if values.null_count:
        valid = values.is_valid().buffers()[1]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(values), [valid, data])


def _compress(codec: str, block: bytes) -> bytes:
    if codec == "deflate":
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        return packer.compress(block) + packer.flush()
    if codec == "zstandard":
        return bytes(pa.Codec("zstd").compress(block, asbytes=True))
    if codec == "snappy":
        packed = bytes(pa.Codec("snappy").compress(block, asbytes=True))
        return packed + zlib.crc32(block).to_bytes(4, "big")
    return block


def _encode(schema: Any, value: Any) -> bytes:
    into = io.BytesIO()
    fastavro.schemaless_writer(into, schema, value)
    return into.getvalue()
