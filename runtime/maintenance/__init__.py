"""Compacts tables, expires snapshots and deletes orphans, beside the commits."""
