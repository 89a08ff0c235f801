"""Each value of the state has one owner: only there, and in the value itself, is a copy changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import headgate.coordinator as coordinator
from headgate.coordinator.state import State, Term

OF_TERM = {
    "primary": "state",
    "sources": "state",
    "progress": "state",
    "collection": "state",
    "tokens": "file_admission",
    "pause": "epoch_claim",
    "delivery": "secondary_delivery",
    "suspensions": "table_suspension",
    "changes": "schema_changes",
}
VALUES = {
    **OF_TERM,
    "call": "phase_steps",
    "watch": "state",
    "recovery": "epoch_claim",
    "suspicion": "state",
}
FACTS = {
    "phase": {"phase_steps"},
    "topics": {"phase_steps"},
    "held": {"added_partitions"},
    "pause_asked": {"epoch_claim"},
    "table_uuid": {"epoch_claim"},
    "wall_ahead_ms": {"epoch_claim"},
    "refused": {"repeated_refusals"},
    "settings": {"driver"},
}
"""Facts that outlive an epoch, and which module alone notes another one."""

CONSTANT = {"identity", "limits"}
SHARED = {"term", "deadlines"}
"""A term is made of values; what is due when, whoever waits for it says."""

CLASSES = {
    "Progress": {"epoch_claim"},
    "StatusCollection": {"epoch_claim"},
    "PrimaryState": {"epoch_claim"},
    "SourceState": {"epoch_claim", "machine"},
    "PauseState": {"epoch_claim"},
    "Delivery": {"epoch_claim"},
    "Suspensions": {"epoch_claim"},
    "SchemaChanges": set[str](),
    "Tokens": {"epoch_claim"},
    "Call": {"phase_steps"},
    "EpochWatch": set[str](),
    "Recovery": {"epoch_claim"},
    "Suspicion": {"epoch_claim"},
}
"""Where a value begins, and is nobody's changed copy: with the epoch, the phase or the claim."""

FOLDER = Path(coordinator.__path__[0])
MODULES = sorted(FOLDER.glob("*.py"))


def _calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for call in ast.walk(ast.parse(path.read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            yield call.func.id, call


def test_every_value_and_every_fact_has_an_owner() -> None:
    assert {each.name for each in fields(Term)} == {"epoch", *OF_TERM}
    of_state = VALUES.keys() - OF_TERM.keys() | FACTS.keys() | CONSTANT | SHARED
    assert {each.name for each in fields(State)} == of_state


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_value_is_changed_by_its_owner_only(module: Path) -> None:
    strangers = [
        f"{module.stem}:{call.lineno} changes {of.attr}"
        for name, call in _calls(module)
        if name == "replace" and isinstance(of := call.args[0], ast.Attribute)
        if of.attr in VALUES and VALUES[of.attr] != module.stem
    ]
    assert strangers == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_fact_is_noted_by_its_owner_only(module: Path) -> None:
    strangers = [
        f"{module.stem}:{call.lineno} notes {each.arg}"
        for name, call in _calls(module)
        if name == "enter_phase" or (name == "replace" and isinstance(call.args[0], ast.Name))
        for each in call.keywords
        if module.stem not in FACTS.get(each.arg or "", {module.stem})
        if name == "enter_phase" or _is_a_state(call.args[0])
    ]
    assert strangers == []


def _is_a_state(of: ast.expr) -> bool:
    """Whatever has a name may be one; what a table came to is none."""
    return isinstance(of, ast.Name) and of.id != "found"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_value_begins_with_what_it_is_of(module: Path) -> None:
    strangers = [
        f"{module.stem}:{call.lineno} makes {name}"
        for name, call in _calls(module)
        if module.stem not in CLASSES.get(name, {module.stem})
    ]
    assert strangers == []


def test_the_machine_changes_no_value_itself() -> None:
    """It says what happens; how a value changes by that, the value's owner knows."""
    of = [
        ast.unparse(call.args[0])
        for name, call in _calls(FOLDER / "machine.py")
        if name == "replace" and isinstance(call.args[0], ast.Attribute)
    ]
    assert [each for each in of if each.rpartition(".")[2] in VALUES] == []
