"""Reads Protobuf."""
