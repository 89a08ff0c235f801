"""Contains the lake tables: each table format behind the ports of ``control_protocol``."""
