"""Distributions of their own in examples/ keep to what is public, and to the rules of the house."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from repository.test_dependencies import distribution
from repository.test_house_style import (
    FUNCTION_LINES_MAX,
    MODULE_LINES_MAX,
    POSITIONAL_MAX,
    positions,
)
from repository.tree import PROJECT, ROOT, functions, imports, modules

EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/pyproject.toml"))
MODULES = sorted(path for folder in EXAMPLES for path in folder.glob("*/*.py"))

every_module = pytest.mark.parametrize(
    "path", MODULES, ids=[str(path.relative_to(ROOT / "examples")) for path in MODULES]
)


def public() -> set[str]:
    """The modules that the page names as public."""
    page = (ROOT / "docs/writing-a-table.md").read_text()
    told = page.partition("## What a package may use")[2].partition("\n\n[")[0]
    paragraph = told.partition("all of `headgate.control_protocol`")[0]
    names = re.findall(r"`([\w.]+)`", paragraph)
    return {f"headgate.control_protocol.{name.rpartition('.')[2]}" for name in names}


def test_what_the_page_names_as_public_is_there() -> None:
    assert len(public()) > 10
    assert public() - {"headgate.control_protocol.testing"} <= modules().keys()


@every_module
def test_point_4_an_example_imports_nothing_of_headgate_but_what_is_public(path: Path) -> None:
    ours = {name for name in imports(path) if name.split(".")[0] == "headgate"}
    allowed = public()
    private = {name for name in ours if not any(f"{name}.".startswith(f"{p}.") for p in allowed)}
    assert private == set()


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_point_4_headgate_knows_and_needs_nothing_of_an_example(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    package = project["name"].replace("-", "_")
    assert not any(package in path.read_text() for path in modules().values())
    own = {distribution(line) for line in PROJECT["project"]["dependencies"]}
    users = [
        extra
        for name, extra in PROJECT["project"]["optional-dependencies"].items()
        if name != "test"
    ]
    own |= {distribution(line) for extra in users for line in extra}
    for needed in {distribution(line) for line in project["dependencies"]} - {
        "headgate",
        "pyarrow",
    }:
        assert needed not in own


@every_module
def test_an_example_keeps_the_rules_of_the_house(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MODULE_LINES_MAX
    for function in functions(path):
        assert (function.end_lineno or 0) - function.lineno < FUNCTION_LINES_MAX, function.name
        assert positions(function) <= POSITIONAL_MAX, function.name
    assert ast.get_docstring(ast.parse(path.read_text()))
