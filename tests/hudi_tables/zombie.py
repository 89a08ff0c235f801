"""A coordinator in a process of its own, which stops in a commit, to be killed or frozen there.

It commits one file of one number, and tells what became of it. ``python -m hudi_tables.zombie``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hudi_tables.world import KINDS, HudiWorld, rows, session

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import Unknown
from headgate.control_protocol.testing.contract.world import commit, record
from headgate.tables.hudi.append_table import HudiSinkTable
from headgate.tables.hudi.write_client import HudiJava
from headgate.tables.staged_file_lists import StagedFileLists

WAIT_S_MAX = 200
_TESTS = Path(__file__).parent.parent
INSIDE, BEFORE = "inside", "before"
"""Where it stops: within Hudi's lock, behind its look at the table, or before it locks."""


class Zombie:
    """The process from outside. It commits ``number`` in transaction 1.``number``."""

    def __init__(
        self,
        home: Path,
        bundle: Path,
        properties: Mapping[str, str],
        number: int,
        where: str = INSIDE,
        kind: str = "appended",
        draft: str = "",
    ) -> None:
        """``stage`` names the file that it brings; without one it writes it."""
        self._home = home
        told = [str(home), str(bundle), json.dumps(properties), str(number), where, kind, draft]
        with (home / "zombie.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hudi_tables.zombie", *told],
                env={**os.environ, "PYTHONPATH": str(_TESTS)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def await_stop(self) -> None:
        self.wait((self._home / "stopped").exists, "it stops")

    def freeze(self) -> None:
        """With its JVM, which gives its lock's session no sign of life either."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        (self._home / "go").touch()
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_java(self) -> None:
        found = subprocess.check_output(["pgrep", "-g", str(self._process.pid), "java"])
        for pid in found.split():
            os.kill(int(pid), signal.SIGKILL)

    def outcomes(self) -> list[str]:
        """What its commit came to, and then the same commit, made again until that is known."""
        self.wait((self._home / "outcomes").exists, "it ends")
        found: list[str] = json.loads((self._home / "outcomes").read_text())
        return found

    def wait(self, happened: Callable[[], Any], what: str) -> None:
        until = time.monotonic() + WAIT_S_MAX
        while not happened():
            log = (self._home / "zombie.log").read_text()[-3000:]
            assert time.monotonic() < until, f"never: {what}\n{log}"
            assert self._process.poll() in (None, 0), f"it died\n{log}"
            time.sleep(0.05)


def main(
    home: Path,
    bundle: str,
    properties: dict[str, str],
    number: int,
    where: str,
    kind: str,
    draft: str,
) -> None:
    jars = {"spark.jars": bundle}
    world = HudiWorld(home, session(bundle), {}, properties=properties, storage=jars, **KINDS[kind])

    def stop() -> None:
        if not (home / "stopped").exists():
            (home / "stopped").touch()
            while not (home / "go").exists():
                time.sleep(0.05)

    commits = HudiJava.commit

    def stopping(java: HudiJava, instant: str, files: Any, told: Any, check: Any) -> None:
        def inside() -> None:
            check()
            if where == INSIDE:
                stop()

        if where == BEFORE:
            stop()
        commits(java, instant, files, told, inside)

    table = world.open()
    view = table.read()
    if draft:
        files = StagedFileLists({}, world.place.location, SinkName("sink")).read_list(draft)
    elif isinstance(table, HudiSinkTable):
        files = list(world.write(rows(number), table.new_token()))
    else:
        files = [world.write_file(number)]
    with patch.object(HudiJava, "commit", stopping):
        first = commit(table, view, record(1, number, 3 * number), *files)
        again = first
        until = time.monotonic() + WAIT_S_MAX
        while isinstance(again, Unknown) and time.monotonic() < until:
            time.sleep(0.5)  # a JVM that was killed takes a moment to be gone
            again = commit(table, view, record(1, number, 3 * number), *files)
    written(home / "outcomes", json.dumps([repr(first), repr(again)]))


def written(path: Path, text: str) -> None:
    """Whole, or not at all."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        sys.argv[2],
        json.loads(sys.argv[3]),
        int(sys.argv[4]),
        *sys.argv[5:],
    )
