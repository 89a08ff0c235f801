"""Implements Delta tables through delta-rs: no JVM, and no catalog."""
