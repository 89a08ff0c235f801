"""The demo's folder: created anew, never a foreign one, one demo at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.control_protocol.errors import ConfigurationError
from headgate.operations.demo.workspace import emptying_and_locking_folder


def test_it_is_made_and_kept_and_begun_anew(tmp_path: Path) -> None:
    where = tmp_path / "a" / "demo"
    with emptying_and_locking_folder(where) as folder:
        assert folder.is_absolute()
        (folder / "warehouse").mkdir()
        (folder / "warehouse" / "file").touch()
        (folder / "sink.toml").touch()
    assert (where / "sink.toml").exists()
    with emptying_and_locking_folder(where):
        assert not (where / "sink.toml").exists()
        assert not (where / "warehouse").exists()


def test_what_is_not_a_demos_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("42")
    with pytest.raises(ConfigurationError, match="not empty and not a demo's folder"):
        emptying_and_locking_folder(tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_two_at_once_do_not_share_it(tmp_path: Path) -> None:
    with emptying_and_locking_folder(tmp_path) as folder:
        (folder / "sink.toml").touch()
        with pytest.raises(ConfigurationError, match="another demo is running"):
            emptying_and_locking_folder(tmp_path).__enter__()
        assert (folder / "sink.toml").exists()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file.* cannot be written"):
        emptying_and_locking_folder(tmp_path / "file" / "demo").__enter__()


def test_what_fails_within_the_demo_is_not_the_folders_fault(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the network is down"), emptying_and_locking_folder(tmp_path):
        raise OSError("the network is down")
