"""Contains what a process that runs a sink consists of, and how it is assembled."""
