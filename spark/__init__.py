"""A Spark query as the writer of a sink: Structured Streaming into its table, exactly once.

``write`` starts one, ``Batches`` is for a ``foreachBatch`` of your own, ``starting_offsets`` says
where a Kafka source with a new checkpoint begins.
"""

from __future__ import annotations

from headgate.spark.batches import Batches, starting_offsets, write

__all__ = ["Batches", "starting_offsets", "write"]
