"""Which values of a parsed JSON column probably do not fit its type, told for all at once.

A guess that saves time: what is suspected is tried alone, what is not has to pass with the others.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

Flags = np.ndarray[Any, np.dtype[np.bool_]]

_TIME = r"\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?"
_FORMS = {
    "date": r"^\d{4}-\d\d-\d\d$",
    "timestamp": rf"^\d{{4}}-\d\d-\d\d([T ]{_TIME}(Z|[+-]\d\d(:?\d\d)?)?)?$",
    "time": rf"^{_TIME}$",  # behind the longer name
    "decimal": r"^[+-]?[0-9]{1,38}(\.[0-9]{1,38})?$",
    "uuid": r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
}


def suspects_of(
    field: pa.Field, rough: pa.Array, places: np.ndarray[Any, np.dtype[np.int64]]
) -> Flags:
    """``rough`` as the parser read it: doubles for numbers, else text."""
    here = rough.take(pa.array(places))
    found: Flags = np.zeros(len(places), np.bool_)
    if kinds.is_floating(here.type):
        found = _numbers(field.type, here)
    elif kinds.is_large_string(here.type):
        found = _texts(field.type, here)
    if not field.nullable:
        found = found | np.asarray(here.is_null())
    return found


def _numbers(target: pa.DataType, numbers: pa.Array) -> Flags:
    with np.errstate(all="ignore"):
        found = numbers.fill_null(0.0).to_numpy(zero_copy_only=False)
        wrong: Flags = ~np.isfinite(found)
        if kinds.is_decimal(target):
            scaled = found * 10.0**target.scale
            wrong |= np.abs(found) >= 10.0 ** (target.precision - target.scale)
            wrong |= np.abs(scaled - np.rint(scaled)) > 1e-6 * np.maximum(1.0, np.abs(scaled))
        elif not kinds.is_floating(target):
            bits = target.bit_width if kinds.is_integer(target) else 63
            wrong |= (found != np.floor(found)) | (np.abs(found) >= 2.0 ** (bits - 1))
            # the smallest integer is the one whose magnitude is too large
            wrong &= found != -(2.0 ** (bits - 1))
        elif target.bit_width == 32:
            wrong |= np.abs(found) > np.finfo(np.float32).max
    return wrong


def _texts(target: pa.DataType, texts: pa.Array) -> Flags:
    form = next((name for name in _FORMS if str(target).startswith(name)), "")
    if target == pa.uuid():
        form = "uuid"
    if form:
        fits = pc.match_substring_regex(texts, _FORMS[form]).fill_null(fill_value=True)
        return ~np.asarray(fits)
    if kinds.is_fixed_size_binary(target) or kinds.is_large_binary(target):
        return np.array([not _is_base64(text) for text in texts.to_pylist()], np.bool_)
    return np.zeros(len(texts), np.bool_)


def _is_base64(text: str | None) -> bool:
    try:
        return text is None or base64.b64decode(text, validate=True) is not None
    except (binascii.Error, ValueError):
        return False
