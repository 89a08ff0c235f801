"""Each value of the term has one owner: only there, and in the value itself, is a copy changed."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import headgate.coordinator as coordinator
from headgate.coordinator.state import Term

OWNERS = {
    "primary": "state",
    "sources": "machine",
    "progress": "machine",
    "collection": "machine",
    "tokens": "commit_tokens",
    "pause": "epoch_claim",
    "delivery": "pending_delivery",
    "suspensions": "secondary_tables",
    "changes": "schema_changes",
}
FOLDER = Path(coordinator.__path__[0])


def test_every_value_of_the_term_has_an_owner() -> None:
    assert {each.name for each in fields(Term)} == {"epoch", *OWNERS}


def test_a_value_is_changed_by_its_owner_only() -> None:
    strangers = [
        f"{path.stem}:{call.lineno} changes {of.attr}"
        for path in sorted(FOLDER.glob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        if call.func.id == "replace" and isinstance(of := call.args[0], ast.Attribute)
        if of.attr in OWNERS and OWNERS[of.attr] != path.stem
    ]

    assert strangers == []
