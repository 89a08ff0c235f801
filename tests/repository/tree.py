"""The repository as its own checks see it: packages, modules, imports, and a wheel of it all.

As a script, ``tree.py FOLDER`` installs the packages into FOLDER, so that tools which follow files
instead of imports (type checker, import linter) see ``headgate`` as its users do.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
"""Package name to root folder."""

_LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.so")
_COMPILED = {".c", ".so"}
"""Source that does not belong into the wheel, and what an editable install makes of it."""


def packaged_files(root: Path = ROOT) -> dict[str, Path]:
    """Every file that goes into the wheel as it is, by its path there."""
    return {
        f"{package.replace('.', '/')}/{path.relative_to(root / folder)}": path
        for package, folder in FOLDERS.items()
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in _COMPILED
    }


@cache
def modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name."""
    return {
        name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path
        for name, path in packaged_files().items()
        if path.suffix == ".py"
    }


@cache
def imports(path: Path) -> frozenset[str]:
    """The dotted names that a module imports, inside functions too; ours as modules."""
    found: set[str] = set()
    known = modules()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inside & known.keys()) or {node.module}
    return frozenset(found)


def build_wheel(folder: Path) -> Path:
    """A wheel of the tree as it is now, built from a copy: leftovers of other builds stay out."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "headgate"
        copy.mkdir()
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        for source in FOLDERS.values():
            shutil.copytree(ROOT / source, copy / source, ignore=_LEFT_BEHIND)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "build",
                "-q",
                "--wheel",
                "--no-isolation",
                "--outdir",
                folder,
                copy,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return next(folder.glob("headgate-*.whl"))


def install(folder: Path) -> None:
    """The wheel's content in a folder that is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(build_wheel(Path(scratch))) as z:
        z.extractall(folder)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
