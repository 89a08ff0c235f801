"""What benchmarks import from the product exists: nothing else runs them."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository.tree import ROOT

SCRIPTS = sorted((ROOT / "benchmarks").rglob("*.py"))


def imported_names(source: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headgate"):
            yield from ((str(node.module), each.name) for each in node.names)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_exists(script: Path) -> None:
    for module, name in imported_names(script.read_text()):
        found = importlib.import_module(module)
        if not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
