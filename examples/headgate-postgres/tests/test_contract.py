"""A PostgreSQL table keeps the contract that headgate ships for every table."""

from __future__ import annotations

from headgate.control_protocol.testing.contract import (
    CoreContract,
    FollowerContract,
    LedgerContract,
)


class TestPostgresTable(CoreContract, FollowerContract, LedgerContract):
    """The fixture ``world`` is a table of its own."""
