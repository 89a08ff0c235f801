"""Writes batches as Spark jobs."""
