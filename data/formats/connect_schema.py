"""The schemas that Kafka Connect's JSON converter sends along, as Arrow types.

Logical types: Connect's own Decimal, Date, Time and Timestamp, and Debezium's, which count in other
units. Other names are ignored: the value is then what its physical type says.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headgate.data.formats.counted import Counted, counted_as

_DEPTH_MAX = 64
_PLAIN = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.large_string(),
    "bytes": pa.large_binary(),
}
_LOGICAL = {
    ("int32", "org.apache.kafka.connect.data.Date"): pa.date32(),
    ("int32", "org.apache.kafka.connect.data.Time"): pa.time64("us"),
    ("int64", "org.apache.kafka.connect.data.Timestamp"): pa.timestamp("us", tz="UTC"),
}
_DECIMAL = ("bytes", "org.apache.kafka.connect.data.Decimal")
_DIGITS_MAX = 38


class Unscaled(pa.ExtensionType):  # type: ignore[misc] # pyarrow has no types
    """A decimal as its unscaled bytes, before anyone knows whether 38 digits hold it."""

    def __init__(self, scale: int) -> None:
        self.scale = scale
        super().__init__(pa.large_binary(), "headgate.unscaled")

    def __arrow_ext_serialize__(self) -> bytes:
        return str(self.scale).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, _: pa.DataType, serialized: bytes) -> Unscaled:
        return cls(int(serialized))


def connect_type(schema: Any, depth: int = 0) -> pa.DataType:
    """The Arrow type of a schema's values. Raises ``ValueError``."""
    if not isinstance(schema, dict) or depth > _DEPTH_MAX:
        raise ValueError("the schema is none of Connect's")
    kind, name = schema.get("type"), schema.get("name")
    if kind == "struct":
        fields = schema.get("fields")
        if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
            raise ValueError("a struct of the schema has no list of fields")
        names = [str(field.get("field")) for field in fields]
        if len(set(names)) < len(names):
            raise ValueError("a struct of the schema has a field twice")
        types = [connect_type(field, depth + 1) for field in fields]
        return pa.struct(list(zip(names, types, strict=True)))
    if kind == "array":
        return pa.large_list(connect_type(schema.get("items"), depth + 1))
    if kind == "map":
        keys = schema.get("keys")
        if not isinstance(keys, dict) or keys.get("type") != "string":
            raise ValueError("the schema has a map whose keys are not strings")
        return pa.map_(pa.large_string(), connect_type(schema.get("values"), depth + 1))
    if (kind, name) == _DECIMAL:
        return _decimal(schema.get("parameters"))
    counted = counted_as(str(name))
    if counted and kind in ("int32", "int64"):
        return counted
    if (kind, name) in _LOGICAL:
        return _LOGICAL[str(kind), str(name)]
    if kind not in _PLAIN:
        raise ValueError(f"the schema has the type {kind!r}, which is none of Connect's")
    return _PLAIN[kind]


def _decimal(parameters: Any) -> pa.DataType:
    scale = parameters.get("scale") if isinstance(parameters, dict) else None
    if not str(scale).lstrip("-").isdecimal() or not 0 <= int(str(scale)) <= _DIGITS_MAX:
        raise ValueError(f"a decimal of the schema has the scale {scale!r}")
    return Unscaled(int(str(scale)))


def storage(kind: pa.DataType) -> pa.DataType:
    """The type as JSON spells it: decimals are base64, Debezium's times are numbers."""
    if isinstance(kind, Unscaled | Counted):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, storage(child.type)) for child in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(storage(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, storage(kind.item_type))
    return kind
