"""What failed beside others runs once more, alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import second_run

SCRIPT = second_run.__file__

ONCE = """
def test_fails_once{number}():
    mark = __import__("pathlib").Path("mark{number}")
    known, _ = mark.exists(), mark.touch()
    assert known
"""
ALWAYS = "def test_always(): assert False\n"
FINE = "def test_fine(): __import__('pathlib').Path('fine').open('a').write('x')\n"
WORKER_DIES = """
def test_kills_its_worker():
    import os
    "PYTEST_XDIST_WORKER" in os.environ and os._exit(9)
"""


def twice(folder: Path, *tests: str, workers: int = 2) -> subprocess.CompletedProcess[str]:
    """As make runs the tests of this folder."""
    (folder / "test_it.py").write_text("\n".join(tests))
    arguments = ["-p", "xdist", "--rootdir=.", f"--numprocesses={workers}", "test_it.py"]
    # This test may have a worker, and its processes are not of it. They need no other plugin.
    env = {key: value for key, value in os.environ.items() if "XDIST" not in key}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    pytest_ = [sys.executable, "-m", "pytest", *arguments]
    first = subprocess.run(pytest_, cwd=folder, env=env, check=False)
    command = [sys.executable, SCRIPT, str(first.returncode), *arguments]
    return subprocess.run(command, cwd=folder, env=env, check=False, capture_output=True, text=True)


def test_what_passes_alone_is_flaky_and_kept(tmp_path: Path) -> None:
    done = twice(tmp_path, ONCE.format(number=1), FINE, WORKER_DIES)
    assert done.returncode == 0, done.stdout
    names = ("test_fails_once1", "test_kills_its_worker")
    for name in names:
        assert f"FLAKY test_it.py::{name}:" in done.stdout
    kept = (tmp_path / second_run.KEPT).read_text().splitlines()
    assert sorted(line.rpartition("::")[2] for line in kept) == sorted(names)
    assert (tmp_path / "fine").read_text() == "x", "what had passed was run again"


@pytest.mark.wide
def test_what_fails_again_is_red(tmp_path: Path) -> None:
    done = twice(tmp_path, ONCE.format(number=1), ALWAYS)
    assert done.returncode == 1
    assert "FLAKY test_it.py::test_fails_once1:" in done.stdout
    assert "FAILED test_it.py::test_always" in done.stdout


@pytest.mark.wide
def test_more_flaky_tests_than_a_few_are_red(tmp_path: Path) -> None:
    many = [ONCE.format(number=number) for number in range(second_run.FLAKY_MAX + 1)]
    done = twice(tmp_path, *many)
    assert (done.returncode, "4 flaky tests, 3 may be" in done.stdout) == (1, True)


@pytest.mark.parametrize("tests", ["syntax error", ""], ids=["no module", "no test"])
def test_only_failed_tests_are_run_again(tmp_path: Path, tests: str) -> None:
    done = twice(tmp_path, tests, workers=0)
    assert done.returncode in {pytest.ExitCode.INTERRUPTED, pytest.ExitCode.NO_TESTS_COLLECTED}
    assert done.stdout == ""
