"""Finds the table that each record goes to."""
