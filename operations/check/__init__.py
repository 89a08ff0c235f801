"""Checks a sink file and what it names before the first start."""
