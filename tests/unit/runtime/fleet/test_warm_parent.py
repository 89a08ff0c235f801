"""A process that is asked to leave while it is being forked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

ASKED_AT_ONCE = """
import os, signal, time
from headgate.runtime.fleet import warm_parent

fork = os.fork

def fork_and_be_asked():
    pid = fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGTERM)  # by a worker that wants it no longer
    return pid

os.fork = fork_and_be_asked
warm_parent._WARM = ()
warm_parent.serve_forks(lambda file, report: time.sleep(3), lambda file, request: None)
"""


def test_a_request_to_leave_that_comes_before_the_first_line_is_not_lost() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ASKED_AT_ONCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(json.dumps({"start": "trips.toml", "sink": "trips"}).encode() + b"\n")
        parent.stdin.flush()
        told = (json.loads(line) for line in parent.stdout)
        ended = next(each for each in told if "ended" in each)
        parent.stdin.close()
    assert os.WIFSIGNALED(ended["status"])
    assert os.WTERMSIG(ended["status"]) == signal.SIGTERM
