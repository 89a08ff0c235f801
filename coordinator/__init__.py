"""The coordinator: ends transactions, judges statuses, commits the table, settles.

``machine.step`` is the whole behaviour, pure; ``driver`` gives it log, table and sources;
``service`` gives the driver a thread.
"""
