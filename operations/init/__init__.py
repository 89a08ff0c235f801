"""Proposes a sink file."""
