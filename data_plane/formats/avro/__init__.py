"""Reads Avro."""
