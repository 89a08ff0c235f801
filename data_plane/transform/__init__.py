"""Checks and converts the result of a user's transform."""
