"""Skips one Avro value after another in plain Python, for long arrays in few records.

``avro_bytes`` moves through all records at once, whose cost per item rises the fewer records there
are. This is the alternative. It only tells where a valid value ends, by the same rules; everything
else is left to ``avro_bytes`` to find at fault.
"""

from __future__ import annotations

from headgate.data.formats.avro_schema import Avro

UNSOUND = -1
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_WIDTHS = {"null": 0, "float": 4, "double": 8}


def end_of(kind: Avro, raw: bytes, at: int, end: int) -> int:
    """Return where the value that begins at ``at`` ends, at most ``end``; else ``UNSOUND``."""
    name = kind.kind
    if name in _WIDTHS or name == "fixed":
        at += _WIDTHS.get(name, kind.size)
        return at if at <= end else UNSOUND
    if name == "record":
        for child in kind.children:
            at = end_of(child, raw, at, end)
            if at == UNSOUND:
                return UNSOUND
        return at
    if name == "boolean":
        return at + 1 if at < end and raw[at] <= 1 else UNSOUND
    if name in ("array", "map"):
        return _end_of_blocks(kind, raw, at, end)
    number, at = _long(raw, at, end)
    if at == UNSOUND or name == "long":
        return at
    if name == "int":
        return at if _INT_MIN <= number <= _INT_MAX else UNSOUND
    if name in ("string", "bytes"):
        return at + number if 0 <= number <= end - at else UNSOUND
    if name == "enum":
        return at if 0 <= number < len(kind.names) else UNSOUND
    if not 0 <= number < len(kind.children):
        return UNSOUND
    return end_of(kind.children[number], raw, at, end)


def _long(raw: bytes, at: int, end: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= end:
            return 0, UNSOUND
        octet = raw[at]
        at += 1
        number |= (octet & 127) << shift
        if octet < 128:
            return (number >> 1) ^ -(number & 1), at if number < 2**64 else UNSOUND
    return 0, UNSOUND


def _end_of_blocks(kind: Avro, raw: bytes, at: int, end: int) -> int:
    item, text = kind.children[0], Avro("string")
    if item.bytes_min == 0 and kind.kind == "array":
        return UNSOUND  # of no bytes: avro_columns bounds how many may be claimed
    while True:
        count, at = _long(raw, at, end)
        if at == UNSOUND or count < 0:
            return UNSOUND  # a negative count has a size, which avro_bytes checks
        if count == 0:
            return at
        for _ in range(count):
            if kind.kind == "map":
                at = end_of(text, raw, at, end)
            at = end_of(item, raw, at, end) if at != UNSOUND else UNSOUND
            if at == UNSOUND:
                return UNSOUND
