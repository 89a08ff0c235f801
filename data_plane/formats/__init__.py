"""Turns the bytes of records into columns, one module or folder per record format."""
