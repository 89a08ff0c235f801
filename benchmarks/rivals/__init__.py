"""Starts other sinks: a process that reads the topic into the table, and nothing else."""
