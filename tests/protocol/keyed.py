"""Records of a keyed table without its files: what ``resolve`` makes of them on a head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pyroaring import BitMap64

from headgate.control_protocol.commit_record import PartitionCohorts
from headgate.tables.iceberg.upsert.key_index import FileKeys, KeyIndex
from headgate.tables.iceberg.upsert.key_reader import Sources
from headgate.tables.iceberg.upsert.position_lookup import Change, Resolution, resolve_changes

Record = tuple[int, int, int]
"""Its key, partition and offset."""


@dataclass
class KeyedHead:
    """Live data files with their rows' records, and what is dead in them."""

    files: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    dead: Mapping[str, set[int]] = field(default_factory=dict)
    cohorts: PartitionCohorts = field(default_factory=dict)

    def resolved(self, *changes: Change) -> Resolution:
        index = KeyIndex(10**6)
        for path, rows in self.files.items():
            index.add_file(path, keys(rows))
        sources = Sources(self.cohorts)
        for number in range(10):
            sources.intern_source("topic", number)
        return resolve_changes(index, changes, self._dead, sources)

    def _dead(self, path: str) -> BitMap64:
        return BitMap64(self.dead.get(path, ()))


def rows(path: str, *records: Record) -> Change:
    return Change(path, keys(records))


def deletes(*records: Record) -> Change:
    return Change("keys", keys(records), deletes=True)


def keys(records: Sequence[Record]) -> FileKeys:
    return FileKeys(
        np.array([key for key, _, _ in records], np.uint64),
        np.zeros(len(records), np.uint64),
        np.array([partition for _, partition, _ in records], np.int32),
        np.array([offset for _, _, offset in records], np.int64),
    )


def killed(found: Resolution) -> dict[str, set[int]]:
    return {path: set(bits) for path, bits in found.dead.items()}
