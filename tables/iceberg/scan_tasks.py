"""The files to read for an audit of records, one manifest after the other.

A plan of the whole table holds every file's statistics at once: three kilobytes each and more. Only
a table with delete files needs one, since matching these takes the whole table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import FileScanTask, Table

from headgate.tables.iceberg.entries import live_entries
from headgate.tables.stores.ahead import in_turn

_MANIFESTS_AHEAD = 2


def scan_tasks(table: Table, head: int, scan: Any) -> tuple[int, Iterator[FileScanTask]]:
    """Return how many files the branch's head has, and the scan tasks that read them."""
    snapshot = table.metadata.snapshot_by_id(head)
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    if any(manifest.content == ManifestContent.DELETES for manifest in manifests):
        tasks = list(scan.plan_files())
        return len(tasks), iter(tasks)
    count = sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests)
    entries = in_turn(lambda m: live_entries(table.io, m), manifests, _MANIFESTS_AHEAD)
    return count, (FileScanTask(entry.data_file) for found in entries for entry in found)
