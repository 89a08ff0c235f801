"""Finds values that the database did not log because they did not change (TOAST).

Debezium writes a placeholder there, which its setting ``unavailable.value.placeholder`` may change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import md5
from typing import NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types

from headgate.data_plane.cdc.policy import PLACEHOLDER
from headgate.data_plane.formats.record_format import Faults
from headgate.native.kernels import Flags

_HEX = "hex:"


class ReplacedPlaceholders(NamedTuple):
    """Holds rows with nulls in place of placeholders, and flags of these by column."""

    rows: pa.RecordBatch
    replaced: Mapping[str, Flags]


class Placeholder:
    """Finds one placeholder, in each form in which Debezium writes it.

    ``encoded``: in binary values, and one after the other in lists of numbers and dates.
    """

    def __init__(self, placeholder: str) -> None:
        """``placeholder``: as Debezium's setting has it. Raises ``ValueError``."""
        if placeholder.startswith(_HEX):
            self.encoded = bytes.fromhex(placeholder.removeprefix(_HEX))
        else:
            self.encoded = placeholder.encode()
        if not self.encoded:
            raise ValueError("a placeholder has at least one character")
        self._text = self.encoded.decode(errors="replace")
        # Java's UUID.nameUUIDFromBytes
        self._uuid = UUID(bytes=md5(self.encoded, usedforsecurity=False).digest(), version=3)
        hstore = {self._text: self._text}
        written = json.dumps(hstore, ensure_ascii=False, separators=(",", ":"))
        self._texts = (self._text, written, str(self._uuid))

    def replace_with_nulls(self, rows: pa.RecordBatch) -> ReplacedPlaceholders:
        """Return the rows with nulls in place of placeholders, and where these were."""
        result: dict[str, Flags] = {}
        columns = list(rows.columns)
        for place, column in enumerate(rows.schema):
            unknown = self._flag_placeholders(rows.column(place))
            if unknown is not None and unknown.any():
                result[column.name] = unknown
                at = pa.array(np.arange(len(unknown), dtype=np.int64), mask=unknown)
                columns[place] = columns[place].take(at)
        if result:
            rows = pa.RecordBatch.from_arrays(columns, schema=rows.schema)
        return ReplacedPlaceholders(rows, result)

    def note_faults(self, found: Mapping[str, Flags], faults: Faults) -> None:
        """Make these values faults of their records."""
        for name, unknown in found.items():
            faults.note(
                np.flatnonzero(unknown),
                f"{name}: Debezium writes {self._text}: the database does not log it; set REPLICA "
                "IDENTITY FULL, or use Debezium's reselect post processor",
            )

    def _flag_placeholders(self, values: pa.Array) -> Flags | None:
        """Return where a value is the placeholder; ``None``: nowhere."""
        kind = values.type
        if pa_types.is_list(kind) or pa_types.is_large_list(kind):
            item = kind.value_type
            numbers = (
                pa_types.is_integer(item) or pa_types.is_floating(item) or pa_types.is_date32(item)
            )
            return (
                self._flag_placeholder_byte_lists(values)
                if numbers
                else self._flag_lists_with_placeholder(values)
            )
        if pa_types.is_map(kind):
            if not _is_text(kind.key_type):
                return None
            return self._flag_placeholders(
                pc.map_lookup(values, pa.scalar(self._text, kind.key_type), "first")
            )
        if _is_text(kind):
            written = pa.array(self._texts, kind)
        elif pa_types.is_binary(kind) or pa_types.is_large_binary(kind):
            written = pa.array([self.encoded], kind)
        elif kind == pa.uuid():
            written = pa.array([self._uuid.bytes], kind.storage_type)
        else:
            return None
        stored = values.storage if isinstance(values, pa.ExtensionArray) else values
        return np.asarray(pc.is_in(stored, written))

    def _flag_lists_with_placeholder(self, values: pa.Array) -> Flags | None:
        """Return where an item of the list is a placeholder."""
        items = self._flag_placeholders(values.flatten())
        if items is None:
            return None
        result = np.zeros(len(values), np.bool_)
        result[np.asarray(pc.list_parent_indices(values))[items]] = True
        return result

    def _flag_placeholder_byte_lists(self, values: pa.Array) -> Flags:
        """Return where the numbers of the list are the placeholder's bytes."""
        length = len(self.encoded)
        fitting = pc.fill_null(pc.equal(pc.list_value_length(values), length), fill_value=False)
        numbers = values.filter(fitting).flatten()
        written = pa.array(list(self.encoded) * (len(numbers) // length), numbers.type)
        alike = np.asarray(pc.fill_null(pc.equal(numbers, written), fill_value=False))
        result = np.array(fitting)
        result[result] = alike.reshape(-1, length).all(axis=1)
        return result


@lru_cache(maxsize=16)
def placeholder_of(text: str = PLACEHOLDER) -> Placeholder:
    """Return the placeholder's forms. Raises ``ValueError``."""
    return Placeholder(text)


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa_types.is_string(data_type) or pa_types.is_large_string(data_type))
