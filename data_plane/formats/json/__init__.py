"""Reads JSON."""
