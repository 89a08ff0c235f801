"""A rule that the product or its documents cite is written in PROTOCOL.md."""

from __future__ import annotations

import re
from pathlib import Path

from headgate import control_protocol

ROOT = Path(__file__).parents[2]
PROTOCOL = Path(control_protocol.__path__[0]) / "PROTOCOL.md"
RULE = re.compile(r"^- \*\*([A-Z]\d+)\*\*", re.MULTILINE)
NOT_CITING = {"tests", "build", "benchmarks"}


def test_every_cited_rule_is_written_down() -> None:
    rules = set(RULE.findall(PROTOCOL.read_text()))
    cited = re.compile(rf"\b([{''.join({rule[0] for rule in rules})}]\d{{1,2}})\b")
    unknown = [
        f"{path.relative_to(ROOT)}: {rule}"
        for folder in ROOT.iterdir()
        if folder.is_dir() and not folder.name.startswith(".") and folder.name not in NOT_CITING
        for path in folder.rglob("*.py")
        if "testing" not in path.parts
        for rule in set(cited.findall(path.read_text())) - rules
    ]
    assert unknown == []
