"""Sets rows aside on disk by the hash of their key, so that one slice of them fits into memory."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from headgate.control_protocol.errors import Unreachable
from headgate.native.kernels import Words

HIGH, LOW, SOURCE, OFFSET, DELETES = (
    f"headgate.{part}" for part in ("high", "low", "source", "offset", "deletes")
)
"""Extra columns: the key's hash, and the record's partition number, offset, and whether it deletes.

If the record is unknown, number and offset are negative.
"""

OURS = pa.schema(
    [
        (HIGH, pa.uint64()),
        (LOW, pa.uint64()),
        (SOURCE, pa.int32()),
        (OFFSET, pa.int64()),
        (DELETES, pa.bool_()),
    ]
)
SLICE_BYTES = 64 * 1024 * 1024
SLICES_MAX = 4_096
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(slots=True)
class Slicing:
    """The number of slices, derived from the size of the first rows.

    ``rows``: about how many there will be; ``bytes_max``: the limit of one slice.
    """

    rows: int
    bytes_max: int = SLICE_BYTES
    count: int = 0

    def decide(self, rows: pa.Table) -> int:
        if not self.count:
            a_row = rows.nbytes / max(1, rows.num_rows)
            self.count = min(SLICES_MAX, 1 + int(self.rows * a_row / self.bytes_max))
        return self.count


@dataclass(slots=True)
class Slices:
    """Rows that were added, to be read back slice by slice from files ``name`` in the folder."""

    folder: Path
    name: str
    schema: pa.Schema
    slicing: Slicing
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _bytes: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows of the schema, which ends with ``OURS``.

        Raises ``Unreachable`` without room.
        """
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= self.slicing.bytes_max:
            self.flush()

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def flush(self) -> None:
        """Write what is buffered. Raises ``Unreachable`` without room."""
        rows = pa.Table.from_batches(self._waiting, self.schema)
        self._waiting, self._bytes = [], 0
        numbers = _slice_numbers(rows, self.slicing.decide(rows))
        order = np.argsort(numbers, kind="stable")
        rows = rows.take(pa.array(order))
        begins = np.searchsorted(numbers[order], np.arange(self.slicing.count + 1))
        for number in np.flatnonzero(np.diff(begins)).tolist():
            begin, end = int(begins[number]), int(begins[number + 1])
            self._append(number, rows.slice(begin, end - begin))

    def read(self, number: int) -> pa.Table:
        path = self._path(number)
        found = list(_streams(path)) if path.exists() else []
        return pa.concat_tables([self.schema.empty_table(), *found]).combine_chunks()

    def _append(self, number: int, rows: pa.Table) -> None:
        try:
            with (
                self._path(number).open("ab") as file,
                pa.ipc.new_stream(file, self.schema, options=_COMPRESSED) as stream,
            ):
                stream.write_table(rows)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise Unreachable(
                f"{self.folder} has no room for the records that the audit sets aside",
                "name a folder with more room in TMPDIR, or audit with --no-source",
            ) from error

    def _path(self, number: int) -> Path:
        return self.folder / f"{self.name}-{number}.arrow"


def _slice_numbers(rows: pa.Table, count: int) -> Words:
    high: Words = rows.column(HIGH).to_numpy()
    return high % np.uint64(count)


def _streams(path: Path) -> Iterator[pa.Table]:
    """Yield the tables of a file, each appended by one ``flush``."""
    with path.open("rb") as file:
        end = path.stat().st_size
        while file.tell() < end:
            yield pa.ipc.open_stream(file).read_all()
