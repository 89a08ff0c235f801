"""How errors of other libraries are quoted in our messages."""

from __future__ import annotations

_CHARACTERS_MAX = 500


def first_line(error: BaseException) -> str:
    """Return type and first line: the rest of a driver's message is for its own authors."""
    text = str(error).strip().partition("\n")[0][:_CHARACTERS_MAX]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
