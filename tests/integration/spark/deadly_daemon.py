"""Runs Spark's Python daemon with workers that die of some records like a crashing extension.

Started by Spark as ``python -m`` (``spark.python.daemon.module``).
"""

from __future__ import annotations

import os
import signal
from typing import Any

from pyspark import daemon

from headgate.data_plane.write.decode import RowDecoder

DEADLY = b"deadly"

_read = RowDecoder._decode


def _deadly(self: RowDecoder, chunk: Any) -> Any:
    if any(DEADLY in (value or b"") for value in chunk.values.array.to_pylist()):
        os.kill(os.getpid(), signal.SIGSEGV)
    return _read(self, chunk)


if __name__ == "__main__":
    RowDecoder._decode = _deadly
    daemon.manager()
