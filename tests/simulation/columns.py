"""Fields that records have and the table lacks: which ones, and that none comes in without
(SCHEMA-1)."""

from __future__ import annotations

import random
from collections.abc import Iterable

from support.verdicts import Kind, Violation

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.events import TableStart, WrittenFile
from headgate.control_protocol.testing import FakeCatalog, SourceRecord

ONE_SEED_IN, WITH_NEW_FIELDS = 18, 7
"""The seeds whose records bring new fields; all others are as they would be without."""


class Columns:
    """From some offset on some records have a further field. It draws from dice of its own."""

    def __init__(self, seed: int, catalog: FakeCatalog) -> None:
        dice = random.Random(f"columns {seed}")
        self._seed, self._catalog = seed, catalog
        self._begins = [dice.choice((0, 3, 10, 30, 60)) for _ in range(dice.randint(1, 3))]
        self._rate = dice.choice((0.02, 0.2, 1.0))
        self._foreign = dice.choice((0.0, 0.3))
        self._dice = dice
        self._checked: set[str] = set()

    def wants(self, record: SourceRecord) -> frozenset[str]:
        return frozenset(
            f"c{k}"
            for k, begin in enumerate(self._begins)
            if record.offset >= begin and self._coin(record, k) < self._rate
        )

    def _coin(self, record: SourceRecord, k: int) -> float:
        return hash((self._seed, record.partition, record.offset, k, 5)) % 1_000 / 1_000

    def has(self, table: TableStart) -> frozenset[str]:
        """The columns of the schema that a batch is written under."""
        catalog = self._catalog
        if table.uuid != catalog.uuid or table.schema_id >= len(catalog.schemas):
            return frozenset()
        return frozenset(column.name for column in catalog.schemas[table.schema_id].fields)

    def somebody_else_adds(self, wanted: Struct) -> bool:
        """A person is quicker than the coordinator, with a column more of his own."""
        known = {column.name for column in self._catalog.columns.fields}
        missing = [column for column in wanted.fields if column.name not in known]
        if not missing or self._dice.random() >= self._foreign:
            return False
        own = Column(f"own{len(self._catalog.schemas)}", "long", required=False)
        added = (Column(missing[0].name, missing[0].type, required=False), own)
        self._catalog.set_columns(Struct((*self._catalog.columns.fields, *added)))
        return True

    def look(self, files: Iterable[WrittenFile]) -> None:
        """SCHEMA-1: of each file that is in the table, once."""
        storage = self._catalog.storage
        for file in files:
            if file.path in self._checked or file.path not in storage.columns:
                continue
            self._checked.add(file.path)
            there = storage.columns[file.path]
            for record in storage.files[file.path]:
                if not self.wants(record) <= there:
                    raise Violation(
                        Kind.LOSS, f"{record} is in the table without {self.wants(record) - there}"
                    )


def has_some(seed: int) -> bool:
    return seed % ONE_SEED_IN == WITH_NEW_FIELDS
