"""Which Java is here, and jars that appear whole or not at all; a small script plays Java."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.operations.java_installation import (
    ensure_jars,
    java_version,
    require_java,
    user_cache_folder,
)

IVY = """#!/bin/sh
case "$1" in -version) echo 'openjdk version "17.0.15" 2025-04-15' >&2; exit 0;; esac
printf '\\tfound a#one;1 in public\\n\\tfound a#two;1 in public\\n'
for last; do :; done
folder=$(dirname "$last"); mkdir -p "$folder"
for jar in one two; do touch "$folder/$jar-1.jar"; printf '\\t[SUCCESSFUL ] a#%s\\n' $jar; done
"""
BROKEN_IVY = """#!/bin/sh
case "$1" in -version) echo 'openjdk version "21" 2023-09-19' >&2; exit 0;; esac
printf '\\t\\t:: a#one;1: not found\\n'; exit 1
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that ``JAVA_HOME`` leads to; not there yet."""
    command = tmp_path / "jdk" / "bin" / "java"
    command.parent.mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return command


def install(java: Path, script: str) -> None:
    java.write_text(script)
    java.chmod(0o755)


def says(version: str) -> str:
    return f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n"


@pytest.mark.parametrize(
    ("said", "version"), [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("25-ea", 25)]
)
def test_the_feature_release_is_read(java: Path, said: str, version: int) -> None:
    install(java, says(said))
    assert java_version() == version


def test_no_java_is_said_in_one_line(java: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"need Java 17 or 21 .*, no ") as raised:
        require_java()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("said", ["1.8.0_392", "11.0.2", "25"])
def test_a_wrong_java_is_named(java: Path, said: str) -> None:
    install(java, says(said))
    with pytest.raises(ConfigurationError, match=r"need Java 17 or 21 .* is Java "):
        require_java()


def test_jars_are_fetched_once_and_counted(java: Path, tmp_path: Path) -> None:
    install(java, IVY)
    seen: list[tuple[int, int]] = []
    folder = tmp_path / "jars" / "pair"
    for _ in range(2):
        fetched = ensure_jars(
            folder, ["a:one:1", "a:two:1"], on_progress=lambda *jars: seen.append(jars)
        )
        assert fetched == folder
    assert sorted(jar.name for jar in folder.iterdir()) == ["one-1.jar", "two-1.jar"]
    assert seen == [(1, 2), (2, 2)]
    assert sorted(path.name for path in folder.parent.iterdir()) == [".pair.lock", "pair"]


def test_who_comes_second_waits_for_the_first(java: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    install(java, IVY.replace("folder=$(", f"echo >>{runs}; folder=$("))
    folder = tmp_path / "jars" / "pair"
    # A lock belongs to its open file: two threads exclude each other as two processes do.
    with ThreadPoolExecutor(2) as pool:
        fetched = list(pool.map(lambda _: ensure_jars(folder, ["a:one:1"]), range(2)))
    assert fetched == [folder, folder]
    assert runs.read_text() == "\n"


def test_a_failed_fetch_leaves_nothing_and_says_why(java: Path, tmp_path: Path) -> None:
    install(java, BROKEN_IVY)
    folder = tmp_path / "jars" / "one"
    with pytest.raises(Unreachable, match=r"a#one;1: not found.*HEADGATE_IVY_SETTINGS"):
        ensure_jars(folder, ["a:one:1"])
    assert [path.name for path in folder.parent.iterdir()] == [".one.lock"]


def test_a_fetch_that_ctrl_c_ended_is_not_the_network_s_fault(java: Path, tmp_path: Path) -> None:
    install(java, BROKEN_IVY.replace("exit 1", "exit 130"))
    with pytest.raises(Unreachable, match=r"was ended while it fetched .*again") as raised:
        ensure_jars(tmp_path / "jars" / "one", ["a:one:1"])
    assert "network" not in str(raised.value)


def test_the_cache_folder_follows_the_desktop_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_folder() == tmp_path / "headgate"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_cache_folder() == tmp_path / "home" / ".cache" / "headgate"


def test_a_cache_that_cannot_be_written_is_told_with_the_way_out(
    tmp_path: Path, java: Path
) -> None:
    install(java, IVY)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"Not a directory .*XDG_CACHE_HOME"):
        ensure_jars(tmp_path / "file" / "headgate" / "jars", ["a:one:1"])
