"""Tests that a PostgreSQL table keeps the contract that headgate ships for every table."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.control_protocol.testing.contract import (
    CoreContract,
    FollowerContract,
    KeyContract,
    KeyedFollowerContract,
    LedgerContract,
    RaceContract,
    ReaderContract,
)


class TestPostgresTable(CoreContract, FollowerContract, LedgerContract, ReaderContract):
    """The fixture ``world`` is a table of its own."""


class TestRacesForKeyedTable(RaceContract):
    """A table with a key to which two commit at once."""

    @pytest.fixture
    def world(self, numbered: Any) -> Any:
        return numbered


class TestKeyedTable(KeyContract):
    """A table with a key, to which its coordinator commits."""

    @pytest.fixture
    def world(self, keyed: Any) -> Any:
        return keyed


class TestKeyedFollower(KeyedFollowerContract):
    """A table that is paid for what another table has decided."""

    @pytest.fixture
    def world(self, keyed: Any) -> Any:
        return keyed
