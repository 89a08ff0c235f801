"""Decides what becomes of records that cannot become rows."""
