"""Defines a record format: bytes in, columns of the table's schema out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from headgate.native.kernels import Flags, Integers

NOTHING = pa.schema([pa.field("headgate.nothing", pa.string())])
"""A column that no record fills: decoding into it tells which records can be read."""


class UndecodableRecords(Exception):
    """Says that some records do not fit the schema: ``bad`` maps their row index to the reason.

    ``rest`` holds all others in their order, so that a caller that continues need not decode them
    again.
    """

    def __init__(self, bad: Mapping[int, str], rest: pa.RecordBatch) -> None:
        super().__init__(f"{len(bad)} records do not fit the schema")
        self.bad = dict(bad)
        self.rest = rest


class RecordFormat(Protocol):
    """One way to read record values. An instance serves one thread; it may learn from what it saw.

    Whether a record is bad depends on that record alone, never on its neighbours.
    """

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """Return one row per value, in order, exactly of ``schema``.

        A value is either converted without loss or bad: raises ``UndecodableRecords``.
        """


class RecordNames(NamedTuple):
    """Holds, per value, the index of its record's full name among the ``names``; -1: no record."""

    indices: Integers
    names: Sequence[str]


@runtime_checkable
class DefaultingFormat(RecordFormat, Protocol):
    """Reads what Kafka Connect's converters write, who may write a default instead of a null."""

    keeps_nulls: str
    """The setting in Kafka Connect that tells the converter to leave nulls alone."""

    def nullable_fields_with_default(self, values: Sequence[bytes]) -> Sequence[str]:
        """Return the fields of rows whose nulls may have become a default, by their schemas."""


class RuledFormat(RecordFormat, Protocol):
    """Supports column rules (``column_options``) which need a format's help."""

    rules: frozenset[str]
    """Which rules. It reads marked fields accordingly; with ``default`` it has
    ``flag_absent_field``."""

    def flag_absent_field(self, values: Sequence[bytes], path: Sequence[pa.Field]) -> Flags:
        """Return which records have no field at the end of the path; a null counts as a field."""


# ----------------------------------------------------------------------------------------- bad rows


class Faults:
    """Collects bad rows of a batch by index, with the first reason for each.

    The columns of a bad row may hold anything.
    """

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self._path: list[str] = []

    @contextmanager
    def prefixing_reasons(self, name: str) -> Iterator[None]:
        """Let the reasons that are noted in the body begin with this name."""
        self._path.append(name)
        yield
        self._path.pop()

    def note(self, rows: Iterable[int], reason: str) -> None:
        where = f"{'.'.join(self._path)}: " if self._path else ""
        for row in rows:
            self.reasons.setdefault(int(row), where + reason)
