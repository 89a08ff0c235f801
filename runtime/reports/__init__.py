"""Tells others what the table holds, beside the coordinator: lineage and signals.

Everything that is said was read back from the table. Nothing here takes part in a commit, and no
failure of a receiver reaches one.
"""
