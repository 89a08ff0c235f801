"""Finds JSON values that are not objects, and values that probably do not fit their column.

It looks at all values at once. What it reports is tried alone; the rest must pass together. For
columns it is a guess that saves time; for objects the parser would not notice: it accepts ``{"a":1
"b":01,}``.
"""

from __future__ import annotations

import base64
import binascii
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from headgate.data.formats import json_values
from headgate.native.loops import Fields, Flags, Integers, Octets, loops

_DAY = r"\d{4}-(\d\d-[0-2]\d|(0[13-9]|1[0-2])-30|(0[13578]|1[02])-31)"
_TIME = r"([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d{1,9})?)?)?"
_FORMS = {
    "date": rf"^{_DAY}$",
    "timestamp": rf"^{_DAY}([T ]{_TIME}(Z|[+-]\d\d(:?\d\d)?)?)?$",
    "time": rf"^{_TIME}$",  # after the longer name
    "decimal": r"^[+-]?[0-9]{1,38}(\.[0-9]{1,38})?$",
    "uuid": r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
}

_SPACE = r"[ \t\r\n]*"
_CHARACTER = "|".join(
    (
        r'[^"\\\x00\x80-\xff]',  # ASCII; then UTF-8 of two to four bytes, and escapes
        r"[\xc2-\xdf][\x80-\xbf]",
        r"[\xe0-\xef][\x80-\xbf]{2}",
        r"[\xf0-\xf4][\x80-\xbf]{3}",
        r'\\["\\/bfnrt]',
        # Not what is beyond the parser: zero, and pairs for characters from U+20000 on.
        r"\\u(?:[1-9a-cefA-CEF]HHH|0(?:XHH|0(?:XH|0X))|[dD](?:[0-7c-fC-F]HH|8[0-3]H))",
    )
)
_CHARACTER = _CHARACTER.replace("H", "[0-9a-fA-F]").replace("X", "[1-9a-fA-F]")
_STRING = rf'"(?:{_CHARACTER})*"'
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_SINGLE = rf"{_STRING}|{_NUMBER}|true|false|null|\[{_SPACE}\]|\{{{_SPACE}\}}"


# One copy of what repeats keeps the expression short: a comma may stand for the opening bracket.
def _object(depth: int) -> str:
    """Return a regular expression for objects; below that depth, brackets need not match."""
    return rf"(?:[{{,]{_SPACE}{_STRING}{_SPACE}:{_SPACE}{_value(depth - 1)}{_SPACE})+\}}"


def _value(depth: int) -> str:
    if depth:
        array = rf"(?:[\[,]{_SPACE}{_value(depth - 1)}{_SPACE})+\]"
        return f"(?:{_SINGLE}|{array}|{_object(depth)})"
    begins, ends = rf"(?:[\[{{ \t\r\n]|{_STRING}{_SPACE}:)*", r"[\]} \t\r\n]*"
    return rf"(?:{_SINGLE}|(?:[\[{{,]{begins}(?:{_SINGLE}){ends})+)"


# Every text from left to right, so that none begins inside another; the colon makes it a key.
_KEYS = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?', re.DOTALL)
_OBJECT = rf"^{_SPACE}(?:\{{{_SPACE}\}}|{_object(3)}){_SPACE}$"


def judged(
    values: pa.LargeBinaryArray, fields: Fields | None = None
) -> tuple[Flags, Flags, Octets | None]:
    """Return which values are not one JSON object each (RFC 8259), and which name a key twice.

    Of the latter, a few may be listed wrongly. Control characters in strings pass; escapes that the
    parser gets wrong, and what is deeper than 64 levels, do not.

    With ``fields``: also the marks of each value as in ``Loops.judged``, if the C code gives them.
    """
    found = loops().judged(values, fields)
    if found is not None:
        told = found & 3
        marks = (found >> 2).astype(np.uint8) if fields else None
        return told == 1, told == 2, marks
    # The expression does not count depth: what may be too deep is parsed alone.
    opened = pc.add(pc.count_substring(values, "["), pc.count_substring(values, "{"))
    deep = np.asarray(pc.greater(opened, json_values.DEPTH_MAX))
    ill_formed: Flags = ~np.asarray(pc.match_substring_regex(values, _OBJECT)) | deep
    twice = np.zeros(len(values), np.bool_)
    for row in np.flatnonzero(~ill_formed).tolist():
        twice[row] = _names_twice(values[row].as_py())
    return ill_formed, twice, None


def _names_twice(value: bytes) -> bool:
    """Return whether an object in a well-formed value names a key twice."""
    keys = [text for text, colon in _KEYS.findall(value) if colon]
    if len(set(keys)) == len(keys) and not any(b"\\" in key for key in keys):
        return False
    try:
        json_values.parse(value)
    except json_values.KeyTwice:
        return True
    except ValueError:
        pass
    return False


def suspects_of(field: pa.Field, rough: pa.Array, places: Integers) -> Flags:
    """Find suspects; ``rough`` is as the parser read it: doubles for numbers, else text."""
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
            # The smallest integer is the one whose magnitude is too large.
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
        wrong: Flags = ~np.asarray(fits)
        return wrong if form != "timestamp" or wrong.any() else _less_usual_zones(texts)
    if kinds.is_fixed_size_binary(target) or kinds.is_large_binary(target):
        return np.array([not _is_base64(text) for text in texts.to_pylist()], np.bool_)
    return np.zeros(len(texts), np.bool_)


def _less_usual_zones(texts: pa.Array) -> Flags:
    """Flag the minority with or without a zone: the column is read in one of the two ways."""
    zoned = np.asarray(
        pc.match_substring_regex(texts, r"(Z|:.*[+-].*)$").fill_null(fill_value=False)
    )
    odd: Flags = zoned if 2 * zoned.sum() < len(zoned) else ~zoned
    there: Flags = np.asarray(texts.is_valid())
    return odd & there


def _is_base64(text: str | None) -> bool:
    try:
        return text is None or base64.b64decode(text, validate=True) is not None
    except (binascii.Error, ValueError):
        return False
