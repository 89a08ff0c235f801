"""Tells a damaged Parquet file from a store that does not answer.

pyarrow raises ``OSError`` for both. So the bytes are read first, and decoded from memory: what
fails there is damage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO

from headgate.control_protocol.errors import type_and_first_line_of
from headgate.tables.storage.damaged_file_error import FileDamaged

_LENGTH_AND_MAGIC_BYTES = 8


def read_row_count(stream: Any) -> int:
    """Return how many rows a file's footer names. Raises as ``decode_row_count``, and ``OSError``
    without an answer."""
    stream.seek(0, os.SEEK_END)
    size = stream.tell()
    stream.seek(max(0, size - _LENGTH_AND_MAGIC_BYTES))
    wanted = min(size, footer_size(stream.read(_LENGTH_AND_MAGIC_BYTES)))
    stream.seek(size - wanted)
    return decode_row_count(stream.read(wanted))


def decode_row_count(last_bytes: bytes) -> int:
    """Return the rows that the footer in a file's last bytes names. Raises ``ValueError``."""
    import pyarrow.parquet as pq  # slow to import, and not needed by every command

    try:
        return int(pq.read_metadata(pa.BufferReader(last_bytes)).num_rows)
    except OSError as error:
        raise ValueError(f"its footer is damaged: {type_and_first_line_of(error)}") from error


def footer_size(last_bytes: bytes) -> int:
    """Return the length of a file's footer, with what stands behind it."""
    return int.from_bytes(last_bytes[-8:-4], "little") + _LENGTH_AND_MAGIC_BYTES


def read_batches_detecting_damage(
    path: str, batches: Callable[[], Iterator[Any]], read_whole: Callable[[], bytes]
) -> Iterator[Any]:
    """Yield the batches of a Parquet file.

    Raises as ``reread_and_raise_if_damaged``, and what they raise.
    """
    try:
        yield from batches()
    except (OSError, pa.ArrowInvalid) as error:
        reread_and_raise_if_damaged(path, error, read_whole)
        raise


def reread_and_raise_if_damaged(
    path: str, error: Exception, read_whole: Callable[[], bytes]
) -> None:
    """Raise ``FileDamaged`` if what a Parquet file's reader raised comes of the file's content.

    ``read_whole`` asks the store again, and raises ``OSError`` without an answer.
    """
    if isinstance(error, (FileNotFoundError, PermissionError)):
        return
    if why := _describe_damage(read_whole()):
        raise FileDamaged(path, why) from error


def read_whole_file(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open() as stream:
        return stream.read()


def _describe_damage(data: bytes) -> str:
    import pyarrow.parquet as pq

    try:
        for _ in pq.ParquetFile(pa.BufferReader(data)).iter_batches():
            pass
    except (OSError, ValueError) as error:
        return type_and_first_line_of(error)
    return ""
