"""Registers an entry point for one test, as an installed package would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest


def register(
    folder: Path, monkeypatch: pytest.MonkeyPatch, group: str, points: Mapping[str, str]
) -> None:
    """Make a package's metadata in the folder, which is imported from as long as the test runs."""
    package = folder / "offering-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (package / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    monkeypatch.syspath_prepend(str(folder))
