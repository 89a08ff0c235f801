"""Lets a process that works chunk by chunk keep the memory that it frees (decision 0010).

glibc gives each thread a heap of its own and returns what is free at its end, so that the kernel
clears the same pages again for the next chunk. Here all threads share one heap, which keeps some
memory for them. The settings are those of ``mallopt(3)``, by the variables that set them too.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

_MEBIBYTE = 1024 * 1024
_SETTINGS = {
    "MALLOC_ARENA_MAX": (-8, 1),
    "MALLOC_MMAP_THRESHOLD_": (-3, 32 * _MEBIBYTE),
    "MALLOC_TRIM_THRESHOLD_": (-1, 256 * _MEBIBYTE),
}
"""Each variable, with the parameter of ``mallopt`` and the value, in bytes or heaps."""

ENVIRONMENT: Mapping[str, str] = {name: str(value) for name, (_, value) in _SETTINGS.items()}
"""The same for a process that is yet to start."""


def keep_freed_memory() -> None:
    """Set this for the whole process, before it has threads, unless a variable says otherwise.

    Nothing is set where the C library is not glibc.
    """
    if any(name in os.environ for name in (*_SETTINGS, "GLIBC_TUNABLES")):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        for parameter, value in _SETTINGS.values():
            library.mallopt(parameter, value)
