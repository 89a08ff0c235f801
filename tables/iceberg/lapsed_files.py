"""Data files that only lapsed debts name, as files that can be rewritten (I6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from pyiceberg.manifest import FileFormat
from pyiceberg.table import Table
from pyroaring import BitMap64

from headgate.tables.iceberg.drafts import drafted_files
from headgate.tables.iceberg.small_files import SmallFile


def portions_of(
    table: Table, manifests: Iterable[str], dead: Mapping[str, BitMap64]
) -> tuple[tuple[SmallFile, ...], ...]:
    """Return the files of each partition of the table. ``dead``: by path, positions to leave out.

    Raises ``ValueError`` for a file that cannot be rewritten, and what storage raises.
    """
    partitions: dict[Any, list[SmallFile]] = defaultdict(list)
    for file in (file for manifest in manifests for file in drafted_files(table.io, manifest)):
        if file.spec_id != table.metadata.default_spec_id:
            raise ValueError(f"{file.file_path} is of an older partition spec")
        if file.file_format != FileFormat.PARQUET:
            raise ValueError(f"{file.file_path} is not Parquet")
        key = tuple(file.partition[place] for place in range(len(file.partition)))
        partitions[key].append(
            SmallFile(
                path=file.file_path,
                spec_id=file.spec_id,
                partition=file.partition,
                records=file.record_count,
                size_bytes=file.file_size_in_bytes,
                sequence_number=0,
                dead=dead.get(file.file_path, BitMap64()),
            )
        )
    return tuple(map(tuple, partitions.values()))
