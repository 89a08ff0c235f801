"""The participant: turns offset ranges into data files and announces them.

``machine.step`` is the whole behaviour, pure; ``driver`` gives it group, log and writer;
``task`` embeds it, ``job`` is the ``spark-submit`` entry. ``fetch``, ``formats`` and ``writers``
are the data plane, ``spark`` runs it as a Spark job.
"""
