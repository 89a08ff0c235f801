"""Contains ``headgate demo``."""
