"""Reads what a sink is doing."""
