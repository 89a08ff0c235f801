"""Runs a sink in one process that stands still between turns, for tests of it and of its tables."""
