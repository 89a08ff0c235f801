"""Reads bytes as text, and separates what is not UTF-8."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headgate.native.kernels import Flags


def decode_text(data: pa.Array, note_fault: Callable[[Flags, str], None]) -> pa.Array:
    """Return the column as text; invalid values become null and are passed to ``note_fault``."""
    try:
        return data.cast(pa.large_string())
    except pa.ArrowInvalid:
        texts = [_decode_or_none(value) for value in data.to_pylist()]
        valid = data.is_valid().to_numpy(zero_copy_only=False)
        note_fault(
            valid & np.array([text is None for text in texts]), "holds text that is not UTF-8"
        )
        return pa.array(texts, pa.large_string())


def _decode_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
