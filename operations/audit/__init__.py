"""Proves that every record is in its table exactly once."""
