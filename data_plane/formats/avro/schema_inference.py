"""Derives the columns that an Avro writer schema asks for."""

from __future__ import annotations

from functools import reduce

from headgate.control_protocol.columns import Column, ListOf, MapOf, Struct, Type, unify_columns
from headgate.data_plane.formats.avro.schema import Avro

_PLAIN = {
    **{kind: kind for kind in ("boolean", "int", "long", "float", "double", "string")},
    "bytes": "binary",
    "enum": "string",
}
_LOGICAL = {
    "date": "date",
    "time-millis": "time",
    "time-micros": "time",
    "timestamp-millis": "timestamptz",
    "timestamp-micros": "timestamptz",
    "timestamp-nanos": "timestamptz_ns",
    "local-timestamp-millis": "timestamp",
    "local-timestamp-micros": "timestamp",
    "local-timestamp-nanos": "timestamp_ns",
    "uuid": "uuid",
}


def columns_of(written: Avro) -> Struct:
    """Return the columns of a record; any other type proposes none."""
    kind = _infer_type(written)
    return kind if isinstance(kind, Struct) else Struct()


def _infer_column(name: str, written: Avro) -> Column | None:
    kind = _infer_type(written)
    return None if kind is None else Column(name, kind, required=not _is_nullable(written))


def _is_nullable(written: Avro) -> bool:
    branches = written.children if written.type == "union" else (written,)
    return any(branch.type == "null" for branch in branches)


def _infer_type(written: Avro) -> Type | None:
    match written.type:
        case "record":
            named = zip(written.names, written.children, strict=True)
            columns = [column for name, kind in named if (column := _infer_column(name, kind))]
            return Struct(tuple(columns)) if columns else None
        case "array":
            item = _infer_column("", written.children[0])
            return None if item is None else ListOf(item)
        case "map":
            item = _infer_column("", written.children[0])
            return None if item is None else MapOf("string", item)
        case "union":
            branches = (_infer_type(branch) for branch in written.children)
            columns_ = [Struct((Column("", kind),)) for kind in branches if kind is not None]
            return reduce(unify_columns, columns_).fields[0].type if columns_ else None
        case "null":
            return None
        case _:
            return _infer_primitive(written)


def _infer_primitive(written: Avro) -> Type:
    if written.logical == "decimal":
        return f"decimal({written.precision}, {written.scale})"
    if written.logical in _LOGICAL:
        return _LOGICAL[written.logical]
    return f"fixed({written.size})" if written.type == "fixed" else _PLAIN[written.type]
