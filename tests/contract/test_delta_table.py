"""A Delta table keeps the contract of a sink's table, as far as it applies to Delta."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.delta_table_world import DeltaWorld

from headgate.control_protocol.testing.contract import (
    CoreContract,
    LedgerContract,
    OthersContract,
    OthersReaderContract,
    ReaderContract,
    RollbackContract,
    SecondaryContract,
)


class TestDeltaTable(
    CoreContract,
    OthersContract,
    RollbackContract,
    SecondaryContract,
    LedgerContract,
    ReaderContract,
    OthersReaderContract,
):
    @pytest.fixture
    def world(self, tmp_path: Path) -> DeltaWorld:
        return DeltaWorld(tmp_path)
