"""What is wanted, as a folder says."""

from __future__ import annotations

import errno
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.control_protocol.errors import ConfigurationError, SinksClash
from headgate.runtime.fleet.folder import STATE_FILE, Folder
from headgate.runtime.fleet.sink_files import read_sink_files
from headgate.runtime.fleet.sink_life import Life, LifeState, Wanted
from headgate.runtime.fleet.spec_source import ToldSink


def test_each_sink_file_is_a_spec_and_its_revision_is_its_content(tmp_path: Path) -> None:
    (tmp_path / "trips.toml").write_text('name = "trips"\n')
    (tmp_path / "notes.txt").write_text("no sink")
    (tmp_path / ".hidden.toml").write_text("an editor's")
    folder = Folder(tmp_path)
    before = folder.read_desired_sinks()
    assert list(before) == ["trips"]
    assert folder.read_desired_sinks() == before
    (tmp_path / "trips.toml").write_text('name = "trips" # changed\n')
    assert folder.read_desired_sinks()["trips"].wanted != before["trips"].wanted


def test_a_file_is_gone_once_two_looks_have_missed_it(tmp_path: Path) -> None:
    file = tmp_path / "trips.toml"
    file.write_text("")
    folder = Folder(tmp_path)
    assert "trips" in folder.read_desired_sinks()
    file.unlink()
    assert "trips" in folder.read_desired_sinks()
    file.write_text("")
    assert "trips" in folder.read_desired_sinks()
    file.unlink()
    folder.read_desired_sinks()
    assert folder.read_desired_sinks() == {}


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.EIO, errno.ESTALE])
def test_a_folder_that_cannot_be_listed_for_a_while_is_as_before(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    (file := tmp_path / "trips.toml").write_text("")
    folder = Folder(tmp_path)
    before = folder.read_desired_sinks()

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        patch.setattr(os, "listdir", refuse)
        assert [folder.read_desired_sinks() for _ in range(3)] == [before] * 3
    assert sum("cannot be listed" in each.message for each in caplog.records) == 1
    file.unlink()
    folder.read_desired_sinks()
    assert folder.read_desired_sinks() == {}


def test_what_is_no_toml_is_wanted_all_the_same_and_its_process_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_bytes(b"\xff = [")
    assert list(Folder(tmp_path).read_desired_sinks()) == ["broken"]


def test_of_two_files_that_name_one_sink_the_first_is_run(tmp_path: Path) -> None:
    for file in ("b", "a"):
        (tmp_path / f"{file}.toml").write_text('name = "trips"\n')
    specs = Folder(tmp_path).read_desired_sinks()
    assert specs["a"].refused is None
    assert isinstance(specs["b"].refused, SinksClash)


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no folder"):
        Folder(tmp_path / "missing")
    looped = tmp_path / "looped"
    looped.symlink_to(looped)
    for takes in (Folder, read_sink_files):
        with pytest.raises(ConfigurationError, match="looped cannot be read: Too many levels"):
            takes(looped)


def test_a_file_that_rests_is_not_read_again_and_each_change_of_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand files are looked at each second: read is what may have changed."""
    file = tmp_path / "trips.toml"
    file.write_text('name = "trips" # 1')
    folder = Folder(tmp_path)
    first = folder.read_desired_sinks()["trips"].wanted
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: file.stat().st_ctime_ns + 3_000_000_000)
        assert folder.read_desired_sinks()["trips"].wanted == first
        patch.setattr(Path, "read_bytes", lambda _: pytest.fail("a file that rests is read"))
        assert folder.read_desired_sinks()["trips"].wanted == first
    before = file.stat()
    file.write_text('name = "trips" # 2')
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a copy with its times does
    second = folder.read_desired_sinks()["trips"].wanted
    assert second != first
    file.write_text('name = "trips" # 3')  # within the same tick of the file system's clock
    assert folder.read_desired_sinks()["trips"].wanted != second


def test_the_state_file_is_written_when_something_changed_not_when_clocks_round_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = [1_700_000_000_000]
    monkeypatch.setattr("headgate.runtime.fleet.folder.wall_ms", lambda: wall[0])
    folder, file = Folder(tmp_path), tmp_path / STATE_FILE
    life = Life(Wanted("1"), 5_000, LifeState.ERROR, due_ms=9_999, doing="waits")

    def written(life: Life) -> bool:
        file.unlink(missing_ok=True)
        folder.report_sinks([ToldSink("trips", None, life)], 6_000)
        return file.exists()

    assert written(life)
    wall[0] += 1
    assert not written(life)
    assert not written(replace(life, doing="waits on"))
    assert written(replace(life, due_ms=12_000))
    assert written(replace(life, since_ms=5_100))


def test_a_state_file_that_cannot_be_written_is_told_of_each_time_that_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Folder(tmp_path, state := tmp_path / "states" / "worker.json")
    for there in (False, False, True, False):
        if there:
            state.parent.mkdir()
        elif state.parent.is_dir():
            shutil.rmtree(state.parent)
        folder._told_s = -100.0
        folder.report_sinks([], 0)
    assert sum("cannot be written" in each.message for each in caplog.records) == 2
