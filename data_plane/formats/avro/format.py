"""Implements the format ``avro``: values of one writer, whose schema is known.

The writer's fields go into columns by their names (``field_names``) and by the rules of
``cast_to_table``. A column that the writer does not have is null, or the record is bad if the
column is required. The schema's defaults are never used, so that an explicit null stays one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from headgate.data_plane.formats import column_options
from headgate.data_plane.formats.avro.columns import read_values
from headgate.data_plane.formats.avro.schema import Avro, parse_schema
from headgate.data_plane.formats.avro.schema_inference import columns_of
from headgate.data_plane.formats.casting.cast_to_table import (
    cast_rows,
    flag_absent_field,
    require_no_faults,
)
from headgate.data_plane.formats.format_registry import require_known_options
from headgate.data_plane.formats.record_format import Faults, RecordNames
from headgate.data_plane.formats.unknown_fields import UnknownColumns, UnknownFieldFinder
from headgate.native.kernels import Flags

_SCHEMAS_KEPT = 64


class AvroWriterFormat:
    """Reads bare Avro values of one writer. A ``RecordFormat``."""

    rules = column_options.EVERY
    record_count_with_ignored_fields = 0

    def __init__(self, avro_type: Avro) -> None:
        self.writer = avro_type

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        faults = Faults()
        read = read_values(values, self.writer, list(schema), faults)
        return require_no_faults(cast_rows(read, schema, faults), faults)

    def flag_absent_field(self, values: Sequence[bytes], path: Sequence[pa.Field]) -> Flags:
        wanted = path[-1]
        for field in reversed(path[:-1]):
            wanted = field.with_type(pa.struct([wanted]))
        return flag_absent_field(read_values(values, self.writer, [wanted], Faults()), path)

    def watch_unknown_fields(self, finder: UnknownFieldFinder) -> None:
        self._finder = finder

    def unknown_columns_of_last_decode(
        self, values: Sequence[bytes], _bad_rows: Collection[int], /
    ) -> Iterable[UnknownColumns]:
        """Compare with the writer's schema; the values are not looked at."""
        wanted = self._finder.columns_needed_by_writer(columns_of(self.writer))
        if wanted.fields and len(values):
            yield np.arange(len(values), dtype=np.int64), wanted


class AvroRecords(AvroWriterFormat):
    """Reads bare Avro values, all written with the option ``schema``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(
            _parse_configured_schema(require_known_options(options, required=["schema"])["schema"])
        )

    def names_of_records(self, values: Sequence[bytes]) -> RecordNames:
        """Return the one full name that all values have, or none if the schema is no record's."""
        code = 0 if self.writer.called else -1
        return RecordNames(np.full(len(values), code, np.int64), (self.writer.called,))


@lru_cache(maxsize=_SCHEMAS_KEPT)
def _parse_configured_schema(text: str) -> Avro:
    """Return a sink file's schema, kept for the next batch; a registry's are in its own cache."""
    return parse_schema(text)
