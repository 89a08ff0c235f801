"""What only Maven can resolve: jars with classifiers, and archives."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from headgate.operations.java import user_cache_folder


def maven_jars(name: str, pom: Path, **told: str) -> Path:
    """The folder ``name`` of the cache with a project's dependencies, fetched once.

    The jars of an archive (``.tar.gz``) lie beside the others. ``told``: the project's properties.
    Skips where Maven is not installed.
    """
    folder = user_cache_folder() / name
    if folder.is_dir():
        return folder
    if not (maven := shutil.which("mvn")):
        pytest.skip(f"only Maven resolves what {pom.name} asks for: no mvn")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = folder.with_name(f".{name}")
    asked = [f"-D{key}={value}" for key, value in told.items()]
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={scratch}"]
    subprocess.run([maven, "-q", "-B", "-f", str(pom), *asked, *copy], check=True)
    for archive in scratch.glob("*.tar.gz"):
        _unpack_jars(archive, scratch)
    scratch.rename(folder)
    return folder


def _unpack_jars(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as packed:
        for member in packed:
            inside = packed.extractfile(member) if member.name.endswith(".jar") else None
            if inside is not None:
                with inside, (folder / Path(member.name).name).open("wb") as jar:
                    shutil.copyfileobj(inside, jar)
    archive.unlink()
