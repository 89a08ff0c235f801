"""The distribution of examples/headgate-postgres, built and unpacked as an installation has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from repository.tree import ROOT

SOURCE = ROOT / "examples/headgate-postgres"


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a wheel and unpack it, for this process and those that it starts."""
    copy, wheels, installed = folder / "source", folder / "wheels", folder / "installed"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    build = (sys.executable, "-m", "build", "-q", "--wheel", "--no-isolation", "--outdir", wheels)
    subprocess.run([*build, copy], check=True, stdout=subprocess.DEVNULL)
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        wheel.extractall(installed)
    monkeypatch.syspath_prepend(str(installed))
    paths = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
