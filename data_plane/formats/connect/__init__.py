"""Reads Kafka Connect's JSON with schemas."""
