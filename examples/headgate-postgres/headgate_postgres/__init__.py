"""Implements PostgreSQL tables for headgate: rows and offsets in one transaction."""
