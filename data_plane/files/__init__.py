"""Writes data files: formats, partitions, order, statistics."""
