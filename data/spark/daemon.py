"""Spark's Python daemon, with all that a task imports: its workers are forked from it.

So no worker imports anything, and on one machine they share those pages. Started by Spark as
``python -m``; only where this package is installed, which executors elsewhere need not have.
"""

from __future__ import annotations

import gc

from pyspark import daemon

import headgate.data.spark.tasks  # noqa: F401 - this is what it is for

if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # a collection in a worker would copy every page that it looks at
    daemon.manager()
