"""Writes a batch: fetch, filter, decode, route, files."""
