"""Rows that records replace and delete: from keys to positions, on the head of the commit."""
