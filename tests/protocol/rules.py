"""The pages of the protocol, the rules that they write down, and who cites a rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ROOT / "control_protocol" / "PROTOCOL.md"
CHAPTERS = tuple(sorted((ROOT / "control_protocol" / "protocol").glob("*.md")))
PAGES = (CORE, *CHAPTERS)

_RULE = re.compile(r"^- \*\*([A-Z]+-\d+)\*\*", re.MULTILINE)
_HEADING = re.compile(r"^### (.+)$", re.MULTILINE)
_CONTRACT = ("control_protocol/testing",)
_NO_PRODUCT = ("tests", "control_protocol/testing", "docs", "examples", "benchmarks", "build")
_CITING = {".py", ".md"}


@cache
def written() -> tuple[str, ...]:
    """Return the rules in the order of the pages."""
    return tuple(rule for page in PAGES for rule in _RULE.findall(page.read_text()))


def failures() -> list[str]:
    """Return the headings of the failures that the pages describe."""
    return [heading for page in PAGES for heading in _HEADING.findall(page.read_text())]


@cache
def prefixes() -> frozenset[str]:
    return frozenset(rule.split("-")[0] for rule in written())


def cited(text: str) -> set[str]:
    """Return what a text cites by a prefix of the protocol, whether there is such a rule or not."""
    words = "|".join(sorted(prefixes()))
    found = set(re.findall(rf"\b((?:{words})-\d+)\b", text))
    named = re.findall(rf"\btest_({words.lower()})_(\d+)_", text)
    return found | {f"{word.upper()}-{number}" for word, number in named}


def files() -> Iterator[Path]:
    """Yield every file of the repository that may cite a rule, except the protocol's own pages."""
    for folder in sorted(ROOT.iterdir()):
        if folder.name.startswith(".") or folder.name == "build":
            continue
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            if path.suffix in _CITING and path not in PAGES:
                yield path


def is_product(path: Path) -> bool:
    return not _is_below(path, _NO_PRODUCT)


def is_test(path: Path) -> bool:
    return path.stem.startswith("test_") or _is_below(path, _CONTRACT)


def _is_below(path: Path, folders: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(ROOT / folder) for folder in folders)
