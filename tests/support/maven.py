"""What only Maven can resolve: jars with classifiers, and archives."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from headgate.operations.java_installation import user_cache_folder


def maven_jars(name: str, pom: Path, **told: str) -> Path:
    """The folder ``name`` of the cache with a project's dependencies, fetched once.

    The jars of an archive (``.tar.gz``) lie beside the others. ``told``: the project's properties.
    Skips where Maven is not installed.
    """
    asked = ["-f", str(pom), *(f"-D{key}={value}" for key, value in told.items())]
    return _fetch(name, [*asked, "dependency:copy-dependencies"], "-DoutputDirectory={}")


def maven_archive(name: str, artifact: str) -> Path:
    """The same of one archive by itself (``GROUP:ARTIFACT:VERSION:tar.gz:CLASSIFIER``).

    What its POM refers to is not asked for: not every repository has it.
    """
    asked = [f"-Dartifact={artifact}", "-Dtransitive=false", "dependency:get"]
    return _fetch(name, asked, "-Dmaven.repo.local={}/repository")


def _fetch(name: str, asked: list[str], into: str) -> Path:
    folder = user_cache_folder() / name
    if folder.is_dir():
        return folder
    if not (maven := shutil.which("mvn")):
        pytest.skip(f"only Maven resolves what {name} asks for: no mvn")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = folder.with_name(f".{name}")
    with folder.with_name(f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two workers may ask for it first at the same moment
        if folder.is_dir():
            return folder
        shutil.rmtree(scratch, ignore_errors=True)
        subprocess.run([maven, "-q", "-B", *asked, into.format(scratch)], check=True)
        for archive in scratch.rglob("*.tar.gz"):
            _unpack_jars(archive, scratch)
        shutil.rmtree(scratch / "repository", ignore_errors=True)
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
