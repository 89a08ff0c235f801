"""Singles out records that make decoding raise unforeseen errors; the others become rows.

A chunk that cannot be read is halved until the records at fault stand alone. That costs nothing
unless something is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.control_protocol.errors import Unforeseen
from headgate.data.formats.retyped import rows_from
from headgate.data.writers.failures import narrowable
from headgate.kafka.fetch import Chunk

BAD_EXCEPTION = "exception"
"""The ``error_class`` in the quarantine of a record that made its batch fail."""

REASON_CHARACTERS_MAX = 500
_ALONE_MAX = 64
"""If so many records fail and none succeeds, the records are not at fault."""


@dataclass(frozen=True, slots=True)
class Read:
    """The rows of a chunk's good records, and why its other records are bad, by error class."""

    rows: pa.RecordBatch
    bad: Sequence[tuple[Mapping[int, str], str]] = ()


def read_apart(chunk: Chunk, schema: pa.Schema, read: Callable[[Chunk], Read]) -> Read:
    """Read the chunk; a record for which ``read`` raises an unforeseen error is bad.

    Raises ``Unforeseen`` when it raises for each of many, and whatever else ``read`` raises.
    """
    try:
        return read(chunk)
    except Exception as error:
        if not narrowable(error):
            raise
    return _Search(chunk, read).found(schema)


class _Search:
    def __init__(self, chunk: Chunk, read: Callable[[Chunk], Read]) -> None:
        self._chunk = chunk
        self._read = read
        self._parts: list[pa.RecordBatch] = []
        self._bad: dict[str, dict[int, str]] = {BAD_EXCEPTION: {}}
        self._well = False

    def found(self, schema: pa.Schema) -> Read:
        waiting = [np.arange(len(self._chunk.offsets), dtype=np.int64)]
        while waiting:
            rows = waiting.pop()
            if not self._take(rows):
                first, second = np.array_split(rows, 2)
                waiting += [second, first]
        empty = rows_from([], schema)
        together = pa.concat_batches([empty, *self._parts])
        return Read(together, [(bad, why) for why, bad in self._bad.items() if bad])

    def _take(self, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
        """Return whether the outcome of each of these rows is known."""
        wanted = np.zeros(len(self._chunk.offsets), np.bool_)
        wanted[rows] = True
        try:
            part = self._read(self._chunk.where(wanted))
        except Exception as error:
            if not narrowable(error):
                raise
            if len(rows) == 1:
                self._condemn(int(rows[0]), error)
            return len(rows) == 1
        self._well = True
        self._parts.append(part.rows)
        for bad, why in part.bad:
            reasons = {int(rows[row]): reason for row, reason in bad.items()}
            self._bad.setdefault(why, {}).update(reasons)
        return True

    def _condemn(self, row: int, error: Exception) -> None:
        reason = reason_of(error)
        alone = self._bad[BAD_EXCEPTION]
        alone[row] = reason
        if not self._well and len(alone) >= _ALONE_MAX:
            raise Unforeseen(f"none of the first {_ALONE_MAX} records can be read: {reason}")


def reason_of(error: Exception) -> str:
    """Return the error's text, bounded."""
    return f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
