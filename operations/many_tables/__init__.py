"""Contains the commands for sinks of many tables."""
