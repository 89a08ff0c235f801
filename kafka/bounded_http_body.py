"""Reads the answers of servers that nobody here vouches for: never too much, never for too long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import requests

_PIECE_BYTES = 16 * 1024


class AnswerTooLong(ValueError):
    """Says that an answer has more bytes than one may have."""


class AnswerTooSlow(ValueError):
    """Says that an answer began, and had not ended in time."""


def read_bounded_body(answer: requests.Response, bytes_max: int, deadline_s: float) -> bytes:
    """Return the body of a streamed answer. Raises ``AnswerTooLong``, ``AnswerTooSlow``.

    ``deadline_s``: by ``time.monotonic``, looked at after each read; the last one may wait for the
    connection's own time-out beyond it. Each read ends with what has come: one that waited for a
    whole piece would let a server that sends a byte every few seconds hold it for hours.
    """
    body = bytearray()
    while piece := answer.raw.read1(_PIECE_BYTES, decode_content=True):
        body += piece
        if len(body) > bytes_max:
            raise AnswerTooLong
        if time.monotonic() > deadline_s:
            raise AnswerTooSlow
    return bytes(body)
