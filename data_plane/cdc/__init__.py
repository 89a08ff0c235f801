"""Reads what change data capture wraps records in: what becomes of which row."""
