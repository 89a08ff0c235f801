"""A target that is written only for the tests keeps the contracts that apply to it."""

from __future__ import annotations

import pytest
from contract.small_folder import SmallFolderWorld, StampedWorld
from contract.small_target import SmallKeyedWorld, SmallWorld

from headgate.control_protocol.testing.contract import (
    CommitTokenContract,
    CoreContract,
    KeyContract,
    KeyedSecondaryContract,
    LedgerContract,
    OthersReaderContract,
    ReaderContract,
    SecondaryContract,
)


class TestSmallTable(CoreContract, SecondaryContract, LedgerContract):
    @pytest.fixture
    def world(self) -> SmallWorld:
        return SmallWorld()


class TestSmallKeyedTable(KeyContract):
    @pytest.fixture
    def world(self) -> SmallKeyedWorld:
        return SmallKeyedWorld()


class TestSmallKeyedSecondary(KeyedSecondaryContract):
    @pytest.fixture
    def world(self) -> SmallKeyedWorld:
        return SmallKeyedWorld()


class TestSmallFolder(ReaderContract, OthersReaderContract):
    @pytest.fixture
    def world(self) -> SmallFolderWorld:
        return SmallFolderWorld()


class TestStampedFolder(CommitTokenContract):
    @pytest.fixture
    def world(self) -> StampedWorld:
        return StampedWorld()
