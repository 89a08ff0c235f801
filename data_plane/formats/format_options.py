"""Takes a format's options as a whole: an unknown one is an error, never ignored."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence


def take_options(
    options: Mapping[str, str],
    defaults: Mapping[str, str] | None = None,
    *,
    required: Sequence[str] = (),
) -> dict[str, str]:
    """Return the options over their defaults. Raises ``ValueError``."""
    known = {*(defaults or {}), *required}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ValueError(f"there is no option {unknown[0]!r}{nearest(unknown[0], known)}")
    missing = [name for name in required if not options.get(name)]
    if missing:
        raise ValueError(f"the option {missing[0]!r} is missing")
    return {**(defaults or {}), **options}


def nearest(word: str, known: Sequence[str] | set[str]) -> str:
    matches = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]}?" if matches else ""
