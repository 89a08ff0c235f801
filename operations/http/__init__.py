"""Serves the status page and its answers."""
