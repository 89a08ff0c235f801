"""Runs many sinks on one machine, each in a process of its own."""
