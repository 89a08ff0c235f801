"""Runs a broker on this machine."""
