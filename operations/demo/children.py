"""Child processes that never outlive this one, nor leave behind what they started themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

# The shell becomes the command; the subshell it leaves behind waits on our end of a pipe and kills
# the whole process group once we are gone, however we went. The group's id cannot be given to
# others while the subshell is in it.
WITH_LIFELINE = 'exec 3<&0; (read _ <&3; kill -KILL -$$) & exec "$@" </dev/null 3<&-'


def start_child(
    command: Sequence[str | Path],
    output: IO[bytes],
    cwd: Path,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start the command in a group of its own; it dies with this process in every case."""
    return subprocess.Popen(
        ["/bin/sh", "-c", WITH_LIFELINE, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        start_new_session=True,
        env=env,
    )


def kill_child(child: subprocess.Popen[bytes]) -> None:
    """Kill it and its whole group, and wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin:
        child.stdin.close()
