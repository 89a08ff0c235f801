"""Runs Spark's Python daemon with everything that a task imports: it forks its workers.

So no worker imports anything, and on one machine they share those pages. Spark starts it with
``python -m``, only where this package is installed; executors elsewhere need not have it.
"""

from __future__ import annotations

import gc

from pyspark import daemon

import headgate.data_plane.spark.tasks  # noqa: F401 - this is what it is for

if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # a collection in a worker would copy every page that it looks at
    daemon.manager()
