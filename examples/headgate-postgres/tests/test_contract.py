"""Tests that a PostgreSQL table keeps the contract that headgate ships for every table."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.control_protocol.testing.contract import (
    CoreContract,
    KeyContract,
    KeyedSecondaryContract,
    LedgerContract,
    RaceContract,
    ReaderContract,
    SecondaryContract,
)


class TestPostgresTable(CoreContract, SecondaryContract, LedgerContract, ReaderContract):
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


class TestKeyedSecondary(KeyedSecondaryContract):
    """A table that is delivered for what another table has decided."""

    @pytest.fixture
    def world(self, keyed: Any) -> Any:
        return keyed
