"""Installs the format of docs/table-formats/writing-a-table-format.md as its package would."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from repository.tree import ROOT
from support.entry_point import register

PAGE = (ROOT / "docs/table-formats/writing-a-table-format.md").read_text()
MODULE = "headgate_folder"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def load() -> Any:
    """Return the page's module by itself, which no sink finds."""
    module = ModuleType(MODULE)
    exec(compile(blocks("python")[0], MODULE, "exec"), vars(module))
    return module


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the page's package in the folder, registered as the page says; return its module."""
    (folder / f"{MODULE}.py").write_text(blocks("python")[0])
    registered = tomllib.loads(blocks("toml")[0])["project"]["entry-points"]["headgate.tables"]
    register(folder, monkeypatch, "headgate.tables", registered)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return __import__(MODULE)
