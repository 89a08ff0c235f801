"""Whole sinks over each format keep the shipped contract of sinks."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.sink_worlds import (
    DeltaBesideIcebergWorld,
    DeltaSinkWorld,
    FolderSinkWorld,
    IcebergSinkWorld,
)
from support import able_folder, folder_kind

from headgate.testing.contract import (
    CreatedTablesSinkContract,
    EvolutionSinkContract,
    KeyedSinkContract,
    ManyTablesSinkContract,
    QuarantineSinkContract,
    RollbackSinkContract,
    SinkContract,
    SuspensionSinkContract,
    TagSinkContract,
)


class TestFolderSink(SinkContract):
    @pytest.fixture
    def world(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderSinkWorld:
        folder_kind.install(tmp_path, monkeypatch)
        return FolderSinkWorld(tmp_path)


class TestSinkOfAFolderThatGetsColumns(EvolutionSinkContract):
    @pytest.fixture
    def world(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderSinkWorld:
        able_folder.install(tmp_path, monkeypatch)
        return FolderSinkWorld(tmp_path)


@pytest.mark.wide
class TestDeltaSink(
    SinkContract,
    QuarantineSinkContract,
    ManyTablesSinkContract,
    SuspensionSinkContract,
    CreatedTablesSinkContract,
    RollbackSinkContract,
):
    @pytest.fixture
    def world(self, tmp_path: Path) -> DeltaSinkWorld:
        return DeltaSinkWorld(tmp_path)


class TestIcebergSink(
    SinkContract,
    EvolutionSinkContract,
    QuarantineSinkContract,
    ManyTablesSinkContract,
    CreatedTablesSinkContract,
    KeyedSinkContract,
    RollbackSinkContract,
    TagSinkContract,
):
    @pytest.fixture
    def world(self, tmp_path: Path) -> IcebergSinkWorld:
        return IcebergSinkWorld(tmp_path)


@pytest.mark.wide
class TestIcebergQuarantineOfADeltaSink(
    QuarantineSinkContract, ManyTablesSinkContract, RollbackSinkContract
):
    @pytest.fixture
    def world(self, tmp_path: Path) -> DeltaBesideIcebergWorld:
        return DeltaBesideIcebergWorld(tmp_path)
