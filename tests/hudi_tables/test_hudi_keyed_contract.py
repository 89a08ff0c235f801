"""Hudi tables with a key keep the contract of such tables, as leads and as secondary tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_tables.world import HudiWorld

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.table_format import RowKey
from headgate.control_protocol.testing.contract import KeyContract, KeyedSecondaryContract
from headgate.control_protocol.testing.contract.world import KeyChange

pytestmark = pytest.mark.timeout(1_200)

PLACES = (
    Column("at_partition", "int", required=False),
    Column("at_offset", "long", required=False),
)
KEYED: dict[str, Any] = {
    "columns": Struct((Column("id", "long"), Column("name", "string", required=False), *PLACES)),
    "key": RowKey(("id",), "at_partition", "at_offset"),
}


class KeyedHudiWorld(HudiWorld):
    """Rows of a key and a text."""

    def write_changes(self, *records: KeyChange) -> tuple[WrittenFile, ...]:
        rows = [_row(each, "at_") | {"name": each.value} for each in records if each.value]
        gone = [_row(each, "_") for each in records if not each.value]
        files: tuple[WrittenFile, ...] = ()
        if rows:
            named = ["id", "name", "at_partition", "at_offset"]
            told = pa.Table.from_pylist(rows).select(named)
            files += self.write(told, f"{self.place.participant_files_address}/data")
        if gone:
            files += (self.stage(pa.Table.from_pylist(gone), FileKind.KEYS),)
        return files

    def read_rows(self) -> dict[int, str]:
        if not any(self.timeline("*commit")):
            return {}
        found = self.read().select("id", "name").collect()
        assert len({row.id for row in found}) == len(found)
        return {row.id: row.name for row in found}


def _row(change: KeyChange, prefix: str) -> dict[str, Any]:
    places = {f"{prefix}partition": change.partition, f"{prefix}offset": change.offset}
    return {"id": change.key, **places}


class TestKeyedTable(KeyContract):
    @pytest.fixture
    def world(self, tmp_path: Path, spark: Any, lock: dict[str, str]) -> KeyedHudiWorld:
        return KeyedHudiWorld(tmp_path, spark, lock, **KEYED)


class TestKeyedSecondary(KeyedSecondaryContract):
    @pytest.fixture
    def world(self, tmp_path: Path, spark: Any, lock: dict[str, str]) -> KeyedHudiWorld:
        return KeyedHudiWorld(tmp_path, spark, lock, **KEYED, follows=True)
