"""Threads share one heap where a process keeps what it frees; other settings are left alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headgate.native.malloc_settings import ENVIRONMENT

HEAPS = """
import ctypes, threading
from headgate.native.malloc_settings import keep_freed_memory
{first}
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
there = threading.Barrier(3)
def allocate():
    library.malloc(1000)
    there.wait()
threads = [threading.Thread(target=allocate) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
library.fdopen.restype = ctypes.c_void_p
out = library.fdopen(1, b"w")
library.malloc_info(0, ctypes.c_void_p(out))
library.fflush(ctypes.c_void_p(out))
"""


def _heaps(first: str, **more: str) -> int:
    environment = {k: v for k, v in os.environ.items() if k not in ENVIRONMENT} | more
    command = [sys.executable, "-c", HEAPS.format(first=first)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return found.stdout.count("<heap nr=")


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_all_threads_share_one_heap_unless_the_environment_says_otherwise() -> None:
    assert _heaps("keep_freed_memory()") == 1
    assert _heaps("") > 1
    assert _heaps("", **ENVIRONMENT) == 1
    assert _heaps("keep_freed_memory()", MALLOC_TRIM_THRESHOLD_="1000000") > 1
