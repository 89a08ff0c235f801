"""Reads octets as text, and separates what is not UTF-8."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headgate.native.kernels import Flags


def text_of(octets: pa.Array, fail: Callable[[Flags, str], None]) -> pa.Array:
    """Return the column as text; invalid values become null and are passed to ``fail``."""
    try:
        return octets.cast(pa.large_string())
    except pa.ArrowInvalid:
        texts = [_decoded(value) for value in octets.to_pylist()]
        valid = octets.is_valid().to_numpy(zero_copy_only=False)
        fail(valid & np.array([text is None for text in texts]), "holds text that is not UTF-8")
        return pa.array(texts, pa.large_string())


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
