"""Implements the format ``protobuf``: messages of one type, whose descriptor is known.

Fields go into columns by their names (``field_names``) and by the rules of ``cast_to_table``. A
missing field with presence is null. Any other missing field has the value that the writer means by
leaving it out: zero, no text, no items.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import DescriptorUnfit
from headgate.data_plane.formats import column_options
from headgate.data_plane.formats.casting.cast_to_table import cast_rows, require_no_faults
from headgate.data_plane.formats.format_registry import did_you_mean_suffix, require_known_options
from headgate.data_plane.formats.protobuf.columns import Reader
from headgate.data_plane.formats.protobuf.descriptors import (
    Message,
    Types,
    UnfitTypes,
    parse_types,
    split_descriptor_set,
)
from headgate.data_plane.formats.protobuf.schema_inference import columns_of
from headgate.data_plane.formats.record_format import Faults
from headgate.data_plane.formats.unknown_fields import UnknownColumns, UnknownFieldFinder
from headgate.native.kernels import Flags


class ProtobufWriterFormat:
    """Reads bare messages of one type. A ``RecordFormat``. Raises ``UnfitTypes`` if it cannot."""

    rules = column_options.EVERY
    record_count_with_ignored_fields = 0

    def __init__(self, types: Types, message_type: Message) -> None:
        self._types, self._kind = types, message_type
        self._reader = Reader(types)

    @cached_property
    def _columns(self) -> Struct:
        return columns_of(self._types, self._kind)

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        faults = Faults()
        read = self._reader.read_records(values, self._kind, list(schema), faults)
        return require_no_faults(cast_rows(read, schema, faults), faults)

    def flag_absent_field(self, values: Sequence[bytes], _: Sequence[pa.Field]) -> Flags:
        """Flag all: only records with a null are asked about, and the wire has no nulls."""
        return np.ones(len(values), np.bool_)

    def watch_unknown_fields(self, finder: UnknownFieldFinder) -> None:
        self._finder = finder

    def unknown_columns_of_last_decode(
        self, values: Sequence[bytes], _bad_rows: Collection[int], /
    ) -> Iterable[UnknownColumns]:
        """Compare with the descriptor; the messages are not looked at."""
        wanted = self._finder.columns_needed_by_writer(self._columns)
        if wanted.fields and len(values):
            yield np.arange(len(values), dtype=np.int64), wanted


class ProtobufRecords(ProtobufWriterFormat):
    """Reads bare messages of one type.

    Options: ``descriptor``, a descriptor set in base64 with all its imports; ``message``, the full
    name of the type.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        taken = require_known_options(options, required=["descriptor", "message"])
        try:
            raw = base64.b64decode(taken["descriptor"], validate=True)
        except binascii.Error as error:
            raise DescriptorUnfit(
                "format.options descriptor is not base64",
                "write ${base64:PATH} with what protoc --include_imports --descriptor_set_out made",
            ) from error
        try:
            types = parse_types(split_descriptor_set(raw))
        except UnfitTypes as error:
            raise DescriptorUnfit(f"format.options descriptor: {error}") from error
        wanted = taken["message"]
        if wanted not in types.messages:
            raise DescriptorUnfit(
                f"format.options descriptor has no message {wanted!r}",
                did_you_mean_suffix(wanted, set(types.messages)).lstrip("; ")
                or "use its full name",
            )
        super().__init__(types, types.require_message(wanted))

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        try:
            return super().decode(values, schema)
        except UnfitTypes as error:
            raise DescriptorUnfit(
                f"{self._kind.name}: {error}", "take the column out, or declare it as a struct"
            ) from error
