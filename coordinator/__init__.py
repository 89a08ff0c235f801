"""Coordinates a sink: ends transactions, judges statuses, commits the table, settles.

``machine.step`` is the whole behaviour, pure; ``driver`` connects it to log, table and sources;
``service`` runs the driver in a thread.
"""
