"""Reads a few columns of an Avro data file, which pyiceberg's scans do not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.typedef import Record
from pyiceberg.types import StructType

_ROWS = 8_192


def read_avro_columns(
    files: FileIO, task: FileScanTask, schema: Schema, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of these names, a dotted one from its struct, found by their ids.

    Raises ``ValueError`` where deletes are to be applied, or the file cannot be decompressed here.
    """
    if task.delete_files:
        raise ValueError(f"{task.file.file_path}: deletes from an Avro file are not applied here")
    kinds = [schema_to_pyarrow(schema.find_type(name)) for name in names]
    ids = [schema.find_field(name).field_id for name in names]
    try:
        with AvroFile[Record](files.new_input(task.file.file_path)) as records:
            places = [_path_to_field(records.schema.as_struct(), field_id) for field_id in ids]
            once = (record for record in records)  # asked again after its end, pyiceberg reads on
            while some := list(islice(once, _ROWS)):
                columns = [
                    pa.array([_value_at(record, place) for record in some], data_type)
                    for place, data_type in zip(places, kinds, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, names=list(names))
    except ImportError as error:  # a codec whose library is not installed
        raise ValueError(f"{task.file.file_path}: {error}") from error


def _path_to_field(struct: StructType, field_id: int) -> tuple[int, ...] | None:
    """Return where the field is, struct by struct; ``None`` where the file is older than it."""
    for at, field in enumerate(struct.fields):
        if field.field_id == field_id:
            return (at,)
        inside = field.field_type
        inner = _path_to_field(inside, field_id) if isinstance(inside, StructType) else None
        if inner is not None:
            return (at, *inner)
    return None


def _value_at(record: Any, place: tuple[int, ...] | None) -> Any:
    for at in place or ():
        record = None if record is None else record[at]
    return None if place is None else record
