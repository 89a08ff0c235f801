"""Expires snapshots, compacts files and deletes what nobody reaches, each in a call of its own."""
