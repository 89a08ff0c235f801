"""Runs failed tests once more, alone: ``second_run.py CODE ARGUMENT ...`` behind pytest.

``CODE`` is what pytest ended with when it had the same arguments. Only failed tests (1) are run
again: an interruption, an internal error and wrong usage end this, too. A test that passes now had
failed beside others; it is printed, and kept in ``build/flaky.txt``, as ``FLAKY``. More than
``FLAKY_MAX`` of them are no accident, and red.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

FLAKY_MAX = 3
KEPT = Path("build/flaky.txt")
ALONE = ("--numprocesses=0", "--last-failed", "--last-failed-no-failures=none")


class SecondRun:
    """Tells, as a plugin of pytest, what passes now."""

    def __init__(self, kept: Path) -> None:
        self._kept = kept

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if len(self._find_passed(session.config)) > FLAKY_MAX:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        flaky = self._find_passed(terminalreporter.config)
        for nodeid in flaky:
            terminalreporter.write_line(f"FLAKY {nodeid}: failed beside others, passes alone")
        if len(flaky) > FLAKY_MAX:
            terminalreporter.write_line(f"red: {len(flaky)} flaky tests, {FLAKY_MAX} may be")
        if flaky:
            self._kept.parent.mkdir(exist_ok=True)
            with self._kept.open("a") as kept:
                kept.writelines(f"{datetime.now(UTC):%F %T} FLAKY {nodeid}\n" for nodeid in flaky)

    def _find_passed(self, config: pytest.Config) -> list[str]:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        return [report.nodeid for report in reporter.stats.get("passed", ())]


def main(code: int, arguments: Sequence[str]) -> int:
    """Return the exit code of both runs together."""
    if code != pytest.ExitCode.TESTS_FAILED:
        return code
    print("Once more, alone, what failed; what fails again is red.", flush=True)
    # As soon as it is certain to be red there is no use in the rest, one after another.
    stopped = f"--maxfail={FLAKY_MAX + 1}"
    return int(pytest.main([*arguments, *ALONE, stopped], plugins=[SecondRun(KEPT)]))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
