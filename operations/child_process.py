"""Starts child processes that never outlive this one, nor leave their own children behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

# The shell becomes the command. The subshell that it leaves behind waits on our end of a pipe, and
# kills the whole process group once we are gone for whatever reason. The group's id cannot be
# reused while the subshell is in it.
WITH_LIFELINE = 'exec 3<&0; (read _ <&3; kill -KILL -$$) & exec "$@" </dev/null 3<&-'


def start_child_killed_with_parent(
    command: Sequence[str | Path],
    output: IO[bytes],
    cwd: Path,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start the command in a process group of its own; it never outlives this process."""
    return subprocess.Popen(
        ["/bin/sh", "-c", WITH_LIFELINE, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        start_new_session=True,
        env=env,
    )


def kill_child_group_and_wait(child: subprocess.Popen[bytes]) -> None:
    """Kill it and its whole group, and wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin:
        child.stdin.close()
