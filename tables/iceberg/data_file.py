"""Encodes the entry of a data file in Iceberg's manifests, without path, records and size.

Statuses carry it as ``WrittenFile.detail``: one byte for the version, then Avro by
``schemas/files/iceberg-v1.avsc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from io import BytesIO
from typing import Any, Self

import fastavro

from headgate.control_protocol.events import WrittenFile
from headgate.schemas import file_detail_schema

_VERSION = b"\x01"
_SCHEMA = fastavro.parse_schema(file_detail_schema("iceberg-v1"))
_BY_COLUMN = (
    *("column_sizes", "value_counts", "null_value_counts", "nan_value_counts"),
    *("lower_bounds", "upper_bounds"),
)


@dataclass(frozen=True, slots=True)
class FileDetail:
    """One data file as Iceberg needs it (table spec, manifest entry).

    ``partition`` holds one value per field of partition spec ``spec_id``, in the spec's order, and
    the bounds one per column's field id, all in Iceberg's single-value binary serialisation
    (``None``: null). Sizes are in bytes.
    """

    spec_id: int = 0
    partition: tuple[bytes | None, ...] = ()
    file_format: str = "parquet"
    sort_order_id: int | None = None
    column_sizes: Mapping[int, int] = field(default_factory=dict)
    value_counts: Mapping[int, int] = field(default_factory=dict)
    null_value_counts: Mapping[int, int] = field(default_factory=dict)
    nan_value_counts: Mapping[int, int] = field(default_factory=dict)
    lower_bounds: Mapping[int, bytes] = field(default_factory=dict)
    upper_bounds: Mapping[int, bytes] = field(default_factory=dict)
    split_offsets: tuple[int, ...] = ()

    def to_written_file(self, path: str, row_count: int, size_bytes: int) -> WrittenFile:
        """Return the written file with this detail."""
        return WrittenFile(path, row_count, size_bytes, detail=self.encode())

    def encode(self) -> bytes:
        form: dict[str, Any] = {part.name: getattr(self, part.name) for part in fields(self)}
        for name in _BY_COLUMN:
            form[name] = {"columns": list(form[name]), "values": list(form[name].values())}
        out = BytesIO()
        out.write(_VERSION)
        fastavro.schemaless_writer(out, _SCHEMA, form)
        return out.getvalue()

    @classmethod
    def decode(cls, detail: bytes) -> Self:
        """Decode a detail. Raises ``ValueError`` for anything but a detail of this version."""
        stream = BytesIO(detail)
        if stream.read(1) != _VERSION:
            raise ValueError("the detail of a file is of another version")
        try:
            form: Any = fastavro.schemaless_reader(stream, _SCHEMA, None)
        except Exception as error:  # whatever fastavro raises for arbitrary bytes
            raise ValueError(f"the detail of a file is not readable: {error!r}") from error
        if stream.read(1):
            raise ValueError("the detail of a file has bytes behind its end")
        parts = {part.name: form[part.name] for part in fields(cls)}
        parts |= {name: _by_column_id(form[name]) for name in _BY_COLUMN}
        lists = {name: tuple(form[name]) for name in ("partition", "split_offsets")}
        return cls(**(parts | lists))


def _by_column_id(form: Mapping[str, list[Any]]) -> dict[int, Any]:
    values = dict(zip(form["columns"], form["values"], strict=True))
    if len(values) < len(form["columns"]):
        raise ValueError("the detail of a file names a column twice")
    return values
