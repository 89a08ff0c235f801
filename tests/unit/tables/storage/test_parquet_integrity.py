"""What is wrong with a file's bytes is damage; what the store does is none."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.tables.storage.damaged_file_error import FileDamaged
from headgate.tables.storage.parquet_integrity import (
    footer_size,
    read_batches_detecting_damage,
    read_row_count,
)

ROWS = 1_000


@pytest.fixture(scope="module")
def whole() -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"id": range(ROWS)}), stream)
    return stream.getvalue()


def test_the_rows_of_a_whole_file_are_in_its_footer(whole: bytes) -> None:
    assert read_row_count(io.BytesIO(whole)) == ROWS


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: b"",
        lambda _: b"short",
        lambda whole: bytes(len(whole)),
        lambda whole: whole[:-8] + b"\xff\xff\xff\xffPAR1",
        lambda whole: whole[:-8] + bytes(4) + b"PAR1",
        lambda whole: _zeroed(whole, len(whole) - footer_size(whole)),
    ],
    ids=["empty", "short", "zeroed", "length too large", "length of 0", "footer"],
)
def test_a_footer_that_is_damaged_is_a_value_error(whole: bytes, spoil: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_row_count(io.BytesIO(spoil(whole)))


def test_an_error_of_reading_is_damage_only_if_the_bytes_are_damaged(whole: bytes) -> None:
    def fails() -> Iterator[Any]:
        raise OSError("it did not answer, or did not like it")

    spoilt = _zeroed(whole, 4)
    with pytest.raises(FileDamaged, match="a is damaged"):
        list(read_batches_detecting_damage("a", fails, lambda: spoilt))
    with pytest.raises(OSError, match="did not answer"):
        list(read_batches_detecting_damage("a", fails, lambda: whole))


def _zeroed(whole: bytes, begin: int) -> bytes:
    return whole[:begin] + bytes(60) + whole[begin + 60 :]
