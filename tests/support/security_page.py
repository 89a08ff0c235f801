"""The rights that docs/guides/security.md gives out, read from the commands that people paste."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/guides/security.md"
Rights = dict[tuple[str, str, str], set[str]]


def rights_by_resource() -> Rights:
    """By principal, kind and name of the resource: the operations of the page's commands."""
    rights: Rights = {}
    for line in PAGE.read_text().splitlines():
        if not line.startswith("kafka-acls "):
            continue
        words = shlex.split(line)
        said = list(pairwise(words))
        principal = dict(said)["--allow-principal"]
        (kind, name) = next(pair for pair in said if pair[0] in ("--topic", "--group"))
        rights[principal, kind, name] = {v.lower() for k, v in said if k == "--operation"}
    return rights
