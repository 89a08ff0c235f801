"""Avro: the formats ``avro`` (one fixed writer schema) and ``avro-registry`` (a schema id each).

The writer's fields go into columns by their names (``names``) and by the rules of ``fitting``. A
column that the writer does not have is null, or the record is bad when the column is required; the
schema's defaults are never used, so that an explicit null stays one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.participant.formats.avro_columns import read_values
from headgate.participant.formats.avro_schema import Avro, UnfitSchema, parse_schema
from headgate.participant.formats.faults import Faults
from headgate.participant.formats.fitting import fitted_rows, without_bad
from headgate.participant.formats.options import take_options
from headgate.participant.formats.retyped import rows_from
from headgate.participant.formats.schema_registry import NoSuchSchema, SchemaRegistry
from headgate.participant.packed import Packed

_PREFIX_BYTES = 5
_MAGIC = 0
_VALUE_BYTES_MAX = 2**31


def _rows(values: Sequence[bytes], kind: Avro, schema: pa.Schema, faults: Faults) -> pa.RecordBatch:
    return fitted_rows(read_values(values, kind, list(schema), faults), schema, faults)


class AvroRecords:
    """A ``RecordFormat``: bare Avro values, all written with the option ``schema``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        text = take_options(options, required=["schema"])["schema"]
        self._kind = parse_schema(text)

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        faults = Faults()
        return without_bad(_rows(values, self._kind, schema, faults), faults)


class RegistryAvroRecords:
    """A ``RecordFormat``: a zero byte, the writer schema's id in four bytes, the Avro value.

    Options ``registry.*`` are the client's own (``registry.url`` is required). An id that the
    registry does not know makes its records bad; a registry that does not answer fails the batch,
    which is done again.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        prefix = "registry."
        foreign = sorted(name for name in options if not name.startswith(prefix))
        take_options({name: options[name] for name in foreign})
        self._registry = SchemaRegistry(
            {name.removeprefix(prefix): value for name, value in options.items()}
        )

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        faults = Faults()
        octets = Packed.whole(values).array
        prefixes = pc.binary_slice(octets, 0, _PREFIX_BYTES).dictionary_encode()
        # With an end: without one, Arrow's reckoning of the result's size overflows.
        behind = pc.binary_slice(octets, _PREFIX_BYTES, _VALUE_BYTES_MAX)
        codes = np.asarray(prefixes.indices)
        groups = [np.flatnonzero(codes == code) for code in range(len(prefixes.dictionary))]
        parts = [
            self._part(prefix.as_py(), Packed(behind.take(pa.array(rows))), schema)
            for prefix, rows in zip(prefixes.dictionary, groups, strict=True)
        ]
        for rows, (_, found) in zip(groups, parts, strict=True):
            for row, reason in found.reasons.items():
                faults.note([rows[row]], reason)
        if len(parts) == 1:
            return without_bad(parts[0][0], faults)
        empty = rows_from([], schema)
        together = pa.concat_batches([empty, *(rows for rows, _ in parts)])
        order = np.argsort(np.concatenate([np.zeros(0, np.int64), *groups]))
        return without_bad(together.take(pa.array(order)), faults)

    def _part(
        self, prefix: bytes, values: Sequence[bytes], schema: pa.Schema
    ) -> tuple[pa.RecordBatch, Faults]:
        faults = Faults()
        try:
            return _rows(values, self._writer(prefix), schema, faults), faults
        except (NoSuchSchema, UnfitSchema) as error:
            faults.note(range(len(values)), str(error))
        columns = [pa.nulls(len(values), field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema), faults

    def _writer(self, prefix: bytes) -> Avro:
        if len(prefix) < _PREFIX_BYTES or prefix[0] != _MAGIC:
            raise NoSuchSchema("does not begin with a zero byte and a schema id of four bytes")
        return self._registry.schema(int.from_bytes(prefix[1:], "big"))
