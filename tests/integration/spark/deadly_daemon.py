"""Runs Spark's Python daemon with workers that die of some records like a crashing extension.

Started by Spark as ``python -m`` (``spark.python.daemon.module``).
"""

from __future__ import annotations

import os
import signal
from typing import Any

from pyspark import daemon

from headgate.data_plane.write.decode import Decoding

DEADLY = b"deadly"

_read = Decoding._rows


def _deadly(self: Decoding, chunk: Any) -> Any:
    if any(DEADLY in (value or b"") for value in chunk.values.array.to_pylist()):
        os.kill(os.getpid(), signal.SIGSEGV)
    return _read(self, chunk)


if __name__ == "__main__":
    Decoding._rows = _deadly
    daemon.manager()
