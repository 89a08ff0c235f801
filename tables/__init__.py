"""The rooms of lake tables: each format of table behind the ports of ``control_protocol``."""
