"""What people install is what the repository holds, under one name."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from repository.tree import build_wheel, packaged_files

COMPILED = {"headgate/native/_loops.abi3.so"}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The wheel's files without its own metadata."""
    with zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("wheel"))) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}


@pytest.mark.wide
def test_nothing_is_installed_outside_the_package(content: dict[str, bytes]) -> None:
    # pip silently overwrites what another distribution put under the same top-level name.
    assert {name.split("/")[0] for name in content} == {"headgate"}


def test_the_wheel_holds_the_tree(content: dict[str, bytes]) -> None:
    tree = packaged_files()
    assert content.keys() - COMPILED == tree.keys()
    assert [name for name, path in tree.items() if Path(path).read_bytes() != content[name]] == []


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_the_wheel_holds_what_is_compiled(content: dict[str, bytes]) -> None:
    assert content.keys() >= COMPILED


@pytest.mark.wide
def test_without_a_compiler_there_is_a_wheel_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with zipfile.ZipFile(build_wheel(tmp_path)) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == packaged_files().keys()
