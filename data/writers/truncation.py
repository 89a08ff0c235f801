"""Short upper bounds: the least text or bytes of a length that no value with a prefix exceeds."""

from __future__ import annotations

_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
"""Not characters, and not in UTF-8: U+D7FF is followed by U+E000."""


def text_above(value: str, length: int) -> str | None:
    """Return at most ``length`` characters, not below ``value``; ``None`` if there are none."""
    if len(value) <= length:
        return value
    begin = value[:length].rstrip(chr(_LAST))
    if not begin:
        return None
    following = ord(begin[-1]) + 1
    if following in _SURROGATES:
        following = _SURROGATES.stop
    return begin[:-1] + chr(following)


def bytes_above(value: bytes, length: int) -> bytes | None:
    """Return at most ``length`` bytes, not below ``value``; ``None`` if there are no such bytes."""
    if len(value) <= length:
        return value
    begin = value[:length].rstrip(b"\xff")
    return begin[:-1] + bytes([begin[-1] + 1]) if begin else None
