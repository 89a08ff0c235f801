"""Reads the value at the end of a path of keys in each of many JSON objects, as it is written.

This tells a null from a missing field, and a number from its double. The C code does it for all
records (``kernels``); ambiguous ones (keys with escapes), and everything if C is missing, are done
here one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headgate.data_plane.formats import field_names
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Flags, Picks, loops

MISSING, NULL, TEXT, ESCAPED, NUMBER, WORD, NESTED, NO_OBJECT, DOUBT = range(9)
"""``ESCAPED``: a text with escapes. ``WORD``: true or false.

``NO_OBJECT``: on the way there is a value that has no fields.
"""

# Whole numbers stay text: Python's own have at most so many digits, those of records have not.
_DECODER = json.JSONDecoder(strict=False, parse_int=str)
_SPACE = re.compile(r"[ \t\r\n]*")
_KINDS = {'"': TEXT, "n": NULL, "t": WORD, "f": WORD, "{": NESTED, "[": NESTED}

Kinds = np.ndarray[tuple[int], np.dtype[np.uint8]]
_Pick = tuple[int, str]


def pick_values_at_path(values: Packed, path: Sequence[str]) -> tuple[Kinds, pa.Array]:
    """Return each value's kind, and its text in UTF-8 (null if missing; a JSON text unquoted).

    The values are JSON objects that were found valid.
    """
    result = loops().pick_json(values.array, [name.encode() for name in path])
    if result is None:
        each = [_pick_value_at_path(value, path) for value in values]
        kinds = np.array([kind for kind, _ in each], np.uint8)
        return kinds, _build_texts_marking_lone_surrogates(kinds, [text for _, text in each])
    kinds, texts = result.kinds, _texts_of_picks(result)
    looked = np.flatnonzero((kinds == DOUBT) | (kinds == ESCAPED))
    if len(looked):
        some = [_pick_value_at_path(value, path) for value in values.take(looked)]
        looked_kinds = np.array([kind for kind, _ in some], np.uint8)
        rest = np.ones(len(kinds), np.bool_)
        rest[looked] = False
        parts = [
            texts.filter(pa.array(rest)),
            _build_texts_marking_lone_surrogates(looked_kinds, [text for _, text in some]),
        ]
        kinds[looked] = looked_kinds
        order = np.argsort(np.concatenate([np.flatnonzero(rest), looked]))
        texts = pa.concat_arrays(parts).take(pa.array(order))
    return kinds, texts


def flag_absent_field(
    values: Packed, path: Sequence[pa.Field], outer_keys: Sequence[str] = ()
) -> Flags:
    """Return which records have no field at the path's end, which begins after ``outer_keys``."""
    if all(map(field_names.is_found_by_exact_names, path)):
        kinds, _ = pick_values_at_path(values, [*outer_keys, *(field.name for field in path)])
        return np.asarray(kinds == MISSING)
    return np.array(
        [_lacks_field(_DECODER.decode(value.decode()), path, outer_keys) for value in values],
        np.bool_,
    )


def _lacks_field(value: object, path: Sequence[pa.Field], outer_keys: Sequence[str]) -> bool:
    for key in outer_keys:
        value = value.get(key) if isinstance(value, dict) else None
    for field in path:
        if not isinstance(value, dict):
            return False
        keys = list(value)
        place = field_names.match_fields([field], keys)[0]
        if place is None:
            return True
        value = value[keys[place]]
    return False


def _texts_of_picks(found: Picks) -> pa.Array:
    there = np.isin(found.kinds, (TEXT, NUMBER, WORD, NESTED))
    data = loops().gather(np.where(there, found.addresses, 0), np.where(there, found.sizes, 0))
    return data.cast(pa.large_string())


def _build_texts_marking_lone_surrogates(kinds: Kinds, texts: list[str]) -> pa.Array:
    there = np.isin(kinds, (TEXT, ESCAPED, NUMBER, WORD, NESTED))
    data = [
        text.encode("utf-8", "surrogatepass") if valid else None
        for text, valid in zip(texts, there, strict=True)
    ]
    try:
        return pa.array(data, pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:  # half a surrogate pair: the kind reports the record
        for place, text in enumerate(texts):
            if not _has_no_lone_surrogate(text):
                kinds[place], data[place] = DOUBT, None
        return pa.array(data, pa.large_binary()).cast(pa.large_string())


def _has_no_lone_surrogate(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _pick_value_at_path(value: bytes, path: Sequence[str]) -> _Pick:
    text = value.decode()
    at = _skip_space(text, 0)
    for name in path:
        if text[at] != "{":
            return (NULL if text[at] == "n" else NO_OBJECT), ""
        result = _find_value_start(text, at, name)
        if result is None:
            return MISSING, ""
        at = result
    kind = _KINDS.get(text[at], NUMBER)
    parsed, end = _DECODER.raw_decode(text, at)
    return kind, parsed if kind == TEXT else text[at:end]


def _find_value_start(text: str, at: int, wanted: str) -> int | None:
    """Return where the value of this key begins, in the object that begins here."""
    at = _skip_space(text, at + 1)
    while text[at] != "}":
        if text[at] == ",":
            at = _skip_space(text, at + 1)
        key, at = _DECODER.raw_decode(text, at)
        at = _skip_space(text, _skip_space(text, at) + 1)
        if key == wanted:
            return at
        at = _skip_space(text, _DECODER.raw_decode(text, at)[1])
    return None


def _skip_space(text: str, at: int) -> int:
    result = _SPACE.match(text, at)
    assert result is not None, "it matches nothing too"
    return result.end()
