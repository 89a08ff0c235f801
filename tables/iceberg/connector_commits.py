"""Reads what a table shows of Iceberg's Kafka Connect sink, which filled it before headgate.

A snapshot of the connector carries, in its summary, its position in the control topic
(``connector_fence.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, NamedTuple, cast

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IcebergType, PrimitiveType
from pyiceberg.utils.datetime import (
    date_to_days,
    datetime_to_micros,
)

from headgate.control_protocol.events import WrittenFile
from headgate.tables.iceberg.connector_fence import is_fence_mark, sinks_that_fence
from headgate.tables.iceberg.data_file import FileDetail
from headgate.tables.iceberg.tag_lineage import (
    ancestors_of,
    next_parent_ref,
    snapshots_by_id,
    summary_properties_of,
)

_THREADS = 8


@dataclass(frozen=True, slots=True)
class BranchFiles:
    """Every data file that the branch has or had, as far as its snapshots are left (``whole``: all
    are), the connector's newest mark, and whether equality deletes are in force.

    ``fenced_by``: the sinks that have taken the table over from this connector, and not given back.
    """

    ever: frozenset[str]
    mark: Mapping[int, int]
    whole: bool
    equality_deletes: bool
    fenced_by: frozenset[str] = frozenset()


class _ReadManifest(NamedTuple):
    """A manifest's data files, deleted ones too, and whether it has equality deletes."""

    paths: set[str]
    has_equality_deletes: bool


def read_connector_branch_history(table: Table, branch: str, mark: str) -> BranchFiles:
    """Read the branch's history. Raises what storage raises."""
    snapshots = snapshots_by_id(table.metadata)
    ref = next_parent_ref(table.metadata, branch)
    line = list(ancestors_of(snapshots, ref)) if ref else []
    marks = [p for s in line if mark in (p := summary_properties_of(s))]
    own = next((p[mark] for p in marks if not is_fence_mark(p[mark])), "{}")
    fences = marks[0] if marks and is_fence_mark(marks[0][mark]) else {}
    ever, equality = set[str](), False
    with ThreadPoolExecutor(_THREADS) as threads:
        listed = list(threads.map(lambda snapshot: snapshot.manifests(table.io), line))
        wanted = {m.manifest_path: m for manifests in listed for m in manifests}
        # Entries are many, and heavy: nothing but their paths is kept until it is its turn.
        read = threads.map(lambda manifest: _read_data_paths(table, manifest), wanted.values())
        for paths, has_equality in read:
            ever |= paths
            equality |= has_equality
    whole = not line or _is_first_snapshot(line[-1], listed[-1])
    position = {int(p): int(end) for p, end in json.loads(own).items()}
    return BranchFiles(frozenset(ever), position, whole, equality, sinks_that_fence(fences))


def _read_data_paths(table: Table, manifest: ManifestFile) -> _ReadManifest:
    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    if manifest.content == ManifestContent.DATA:
        return _ReadManifest(
            {entry.data_file.file_path for entry in entries}, has_equality_deletes=False
        )
    kinds = {entry.data_file.content for entry in entries}
    return _ReadManifest(set(), DataFileContent.EQUALITY_DELETES in kinds)


def find_newest_mark(table: Table, branch: str, mark: str) -> str | None:
    """Return the connector's newest mark on the branch: without one it has not filled the table."""
    ref = next_parent_ref(table.metadata, branch)
    line = ancestors_of(snapshots_by_id(table.metadata), ref) if ref else ()
    return next((p[mark] for s in line if mark in (p := summary_properties_of(s))), None)


def _is_first_snapshot(snapshot: Snapshot, manifests: Sequence[ManifestFile]) -> bool:
    """Return whether nothing preceded the snapshot: some clean-ups leave no sign but its files."""
    own = (manifest.added_snapshot_id == snapshot.snapshot_id for manifest in manifests)
    return snapshot.parent_snapshot_id is None and all(own)


def to_written_file(table: Table, announced_file: Mapping[str, Any]) -> WrittenFile:
    """Return a data file that the connector announced, as a commit takes it.

    Raises ``ValueError`` for one that does not fit the table's partition specs.
    """
    spec_id = int(announced_file.get("spec_id") or 0)
    spec = table.specs().get(spec_id)
    values = list((announced_file.get("partition") or {}).values())
    if spec is None or len(values) != len(spec.fields):
        raise ValueError(
            f"{announced_file['file_path']} is of partition spec {spec_id}, which is not there"
        )
    types = [field.field_type for field in spec.partition_type(table.schema()).fields]
    detail = FileDetail(
        spec_id=spec_id,
        partition=tuple(_bytes_of_value(t, value) for t, value in zip(types, values, strict=True)),
        file_format=str(announced_file["file_format"]).lower(),
        sort_order_id=announced_file.get("sort_order_id"),
        split_offsets=tuple(announced_file.get("split_offsets") or ()),
        **{name: _by_column_id(announced_file.get(name)) for name in _METRICS},
    )
    return detail.to_written_file(
        announced_file["file_path"],
        announced_file["record_count"],
        announced_file["file_size_in_bytes"],
    )


_METRICS = (
    *("column_sizes", "value_counts", "null_value_counts", "nan_value_counts"),
    *("lower_bounds", "upper_bounds"),
)


def _by_column_id(pairs: Any) -> dict[int, Any]:
    return {pair["key"]: pair["value"] for pair in pairs or ()}


def _bytes_of_value(iceberg_type: IcebergType, value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        value = datetime_to_micros(value)
    elif isinstance(value, date):
        value = date_to_days(value)
    return to_bytes(cast("PrimitiveType", iceberg_type), value)


def find_missing_or_resized_files(table: Table, sizes_by_path: Mapping[str, int]) -> list[str]:
    """Return the files (path and size) that are not in the store, or of another size."""

    def is_missing(named: tuple[str, int]) -> bool:
        path, size = named
        try:
            return len(table.io.new_input(path)) != size
        except FileNotFoundError:
            return True

    with ThreadPoolExecutor(_THREADS) as threads:
        gone = threads.map(is_missing, sizes_by_path.items())
        return [path for path, missing in zip(sizes_by_path, gone, strict=True) if missing]
