"""Compares headgate and its rivals on the same topic, broker, catalog and machine, in turn."""
