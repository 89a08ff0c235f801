"""The limits of the house, as far as counting can see them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from repository.tree import functions, modules

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
POSITIONAL_MAX = 4

# A folder or module names a role or an idea; these name neither.
NAMELESS = {"base", "common", "core", "helper", "helpers", "manager", "managers", "misc", "utils"}

every_module = pytest.mark.parametrize("path", modules().values(), ids=list(modules()))


@every_module
def test_a_module_can_be_read_at_a_sitting(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MODULE_LINES_MAX


@every_module
def test_functions_are_short_and_take_few_positions(path: Path) -> None:
    long = [
        function.name
        for function in functions(path)
        if (function.end_lineno or 0) - function.lineno >= FUNCTION_LINES_MAX
    ]
    wide = [function.name for function in functions(path) if positions(function) > POSITIONAL_MAX]
    assert (long, wide) == ([], [])


def positions(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_every_name_means_something() -> None:
    assert {name for name in modules() if NAMELESS & set(name.split("."))} == set()
