"""A Hudi table keeps the contract of a sink's table, as far as it applies to Hudi."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hudi_tables.world import KINDS, HudiOnS3World, HudiWorld
from support.object_store import ObjectStore

from headgate.control_protocol.testing.contract import (
    CommitTokenContract,
    CoreContract,
    LedgerContract,
    OthersContract,
    OthersReaderContract,
    RaceContract,
    ReaderContract,
    RollbackContract,
)
from headgate.tables.hudi.write_configuration import TYPE


class TestHudiTable(
    CoreContract,
    OthersContract,
    RollbackContract,
    LedgerContract,
    CommitTokenContract,
    ReaderContract,
    OthersReaderContract,
):
    @pytest.fixture
    def world(self, tmp_path: Path, spark: Any, lock: dict[str, str]) -> Iterator[HudiWorld]:
        world = HudiWorld(tmp_path, spark, lock)
        yield world
        world.close()


class TestHudiTableThatMergesOnRead(CoreContract, OthersContract, RollbackContract):
    @pytest.fixture
    def world(self, tmp_path: Path, spark: Any, lock: dict[str, str]) -> HudiWorld:
        return HudiWorld(tmp_path, spark, lock, properties={TYPE: "MERGE_ON_READ"})


class TestHudiTableOnS3(CoreContract, OthersContract, LedgerContract):
    @pytest.fixture
    def world(self, object_store: ObjectStore, spark: Any, lock: dict[str, str]) -> HudiWorld:
        return HudiOnS3World(object_store, spark, lock)


@pytest.mark.timeout(600)
class TestRacesForOtherTables(RaceContract):
    """Those whose rows have a key, and those that another table's commit decides."""

    @pytest.fixture(params=["keyed", "secondary"])
    def world(
        self, tmp_path: Path, spark: Any, lock: dict[str, str], request: pytest.FixtureRequest
    ) -> HudiWorld:
        return HudiWorld(tmp_path, spark, lock, **KINDS[request.param])
