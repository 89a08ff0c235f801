"""Participates in a sink: turns offset ranges into data files and announces them.

``machine.step`` is the whole behaviour, pure, over the six values of ``state``; ``driver`` gives it
group, log and writer. What it reads with is in ``kafka``, what it writes with in ``data_plane``.
"""
