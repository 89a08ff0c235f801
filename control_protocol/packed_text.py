"""Long texts in the properties of a snapshot: compressed, and bounded when read again."""

from __future__ import annotations

import base64
import binascii
import zlib

PLAIN_CHARS_MAX = 2_000

_DEFLATED = "zlib:"


def packed(text: str) -> str:
    """Return the text as it is while it is short, else deflated, as ``zlib:<base64>``."""
    if len(text) <= PLAIN_CHARS_MAX:
        return text
    return _DEFLATED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def inflated(text: str, bytes_max: int) -> str:
    """Return what was packed. Raises ``ValueError`` for more than ``bytes_max`` bytes of it."""
    if len(text) > bytes_max:
        raise ValueError(f"{len(text)} characters, at most {bytes_max} are read")
    if not text.startswith(_DEFLATED):
        return text
    try:
        deflated = base64.b64decode(text[len(_DEFLATED) :], validate=True)
    except binascii.Error as problem:
        raise ValueError(f"no base64: {problem}") from problem
    inflater = zlib.decompressobj()
    try:
        inflated_bytes = inflater.decompress(deflated, bytes_max)
    except zlib.error as problem:
        raise ValueError(f"not deflated: {problem}") from problem
    if not inflater.eof or inflater.unused_data:
        raise ValueError(f"not one deflated text of at most {bytes_max} bytes")
    return inflated_bytes.decode()
