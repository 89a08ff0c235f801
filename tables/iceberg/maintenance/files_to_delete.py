"""Files that no snapshot refers to any more, until they are deleted (RETENTION-1).

Before each round of deleting the table is read to confirm this, and the answer is trusted for
``READ_BACK_MAX_S``: a process that was paused in between reads again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.tables.iceberg.maintenance.files_of_expired_snapshots import (
    STORAGE_THREADS,
    find_referenced_files,
)
from headgate.tables.storage.file_io import delete_quietly, is_s3_files

READ_BACK_MAX_S = 30.0

_DELETING_MAX_S = 5.0
_READING_MAX_S = 20.0
_DELETED_AT_ONCE = 64
BULK = 1000
"""The number of objects that S3 deletes by one request."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts on while a machine sleeps

_log = redacted_logger(__name__)


class Condemned:
    """The files of one table, in the order to delete in; if lost, they are orphans."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._files: deque[str] = deque()
        self._judged: set[int] = set()
        self._uuid = ""
        self.deleted = 0
        """Files that are gone; those somebody refers to, and those of another table, are kept."""

    @property
    def has_files(self) -> bool:
        return bool(self._files)

    def add(self, files: Iterable[str], metadata_without_them: TableMetadata) -> None:
        """Add files to which no snapshot of ``metadata_without_them`` refers."""
        judged = {snapshot.snapshot_id for snapshot in metadata_without_them.snapshots}
        # Files that still wait were judged by an older version: newer snapshots may refer to them.
        self._judged = self._judged & judged if self._files else judged
        self._files.extend(files)
        self._uuid = str(metadata_without_them.table_uuid)

    def delete_unreferenced_for_seconds(self, table: Table) -> None:
        """Delete what the time allows, the rest at the next call. Raises what storage raises."""
        if not self._files:
            return
        read_s = boottime_s()  # before the read: the answer is as old as its question
        self._spare_referenced(self._catalog.load_table(table.name()))
        until_s = boottime_s() + _DELETING_MAX_S
        with ThreadPoolExecutor(STORAGE_THREADS) as threads:
            # Asked before every handful: a process that stood still here for an hour deletes no
            # more than the handful that it holds, and then reads the table again.
            while (
                self._files and boottime_s() < until_s and boottime_s() - read_s < READ_BACK_MAX_S
            ):
                many = is_s3_files(table.io)
                count = min(BULK if many else _DELETED_AT_ONCE, len(self._files))
                paths = [self._files.popleft() for _ in range(count)]
                if many:
                    self.deleted += delete_quietly(table.io, paths)
                else:
                    gone = threads.map(lambda path: delete_quietly(table.io, [path]), paths)
                    self.deleted += sum(gone)

    def _spare_referenced(self, now: Table) -> None:
        """Keep files to which somebody refers again; they stay, as orphans at worst."""
        snapshots = {snapshot.snapshot_id: snapshot for snapshot in now.metadata.snapshots}
        if str(now.metadata.table_uuid) != self._uuid:
            _log.warning(
                "%s: the table is another one now; %d files that were to be deleted are left to "
                "its own orphan clean-up",
                ".".join(now.name()),
                len(self._files),
            )
            self._files.clear()
            return
        new = [snapshots[snapshot_id] for snapshot_id in snapshots.keys() - self._judged]
        used = find_referenced_files(now, new, _READING_MAX_S)
        self._files = deque(path for path in self._files if path not in used)
        self._judged = set(snapshots)


def boottime_s() -> float:
    return time.clock_gettime(_CLOCK)
