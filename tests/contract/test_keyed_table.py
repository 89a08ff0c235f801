"""An Iceberg table with a key keeps the contract of such tables.

As one that follows it has drafts of its own: ``tests/protocol/test_key_3_delivered_keys.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.iceberg_table_world import IcebergWorld
from support.keyed_world import COLUMNS, NAME, Row, write_status_files

from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.table_format import RowKey, TableSpec, Use
from headgate.control_protocol.testing.contract import KeyContract
from headgate.control_protocol.testing.contract.world import KeyChange
from headgate.tables.iceberg.upsert.key_files import OFFSET, PARTITION
from headgate.tables.neutral_schema import parse_declared_columns

KEY = ("id",)


class KeyedIcebergWorld(IcebergWorld):
    """The table of ``keyed_world``, of which the contract sees key and name."""

    use = Use.PRIMARY

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, table=NAME)

    def spec(self) -> TableSpec:
        columns, key = parse_declared_columns(COLUMNS), RowKey(KEY, "from_partition", "from_offset")
        return TableSpec(self.name, "", create=True, columns=columns, key=key)

    def write_changes(self, *records: KeyChange) -> tuple[WrittenFile, ...]:
        rows = [_row(each) for each in records if each.value is not None]
        gone = [_deletion_row(each) for each in records if each.value is None]
        return write_status_files(self.table(), KEY, rows, gone)

    def read_rows(self) -> dict[int, str]:
        rows = self.table().scan().to_arrow().to_pylist()
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: row["name"] for row in rows}


def _row(change: KeyChange) -> Row:
    places = {"from_partition": change.partition, "from_offset": change.offset}
    return {"id": change.key, "name": change.value, "zone": None, "n": 0, **places}


def _deletion_row(change: KeyChange) -> Row:
    return {"id": change.key, PARTITION: change.partition, OFFSET: change.offset}


class TestKeyedTable(KeyContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[KeyedIcebergWorld]:
        world = KeyedIcebergWorld(tmp_path)
        yield world
        world.close()
