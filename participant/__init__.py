"""The participant: turns offset ranges into data files and announces them.

``machine.step`` is the whole behaviour, pure; ``driver`` gives it group, log and writer;
``sink_task`` embeds it, ``job`` is the ``spark-submit`` entry. What it reads with is in ``kafka``,
what it writes with in ``data``.
"""
