"""Reads a quarantine's rows that its sink has not sent to the dead-letter topic yet, and the
newest.

Found by the sink's own snapshots, because a compaction's files hold old rows. The table is scanned
only where these have expired, or nothing is known to be sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, GreaterThanOrEqual
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import decode_record
from headgate.control_protocol.identifiers import SinkName, tag_name
from headgate.coordinator.dead_letter_message import COLUMNS, Progress
from headgate.tables.iceberg.catalog import translate_catalog_error
from headgate.tables.iceberg.parquet_column_reader import read_column_batches
from headgate.tables.iceberg.tag_lineage import ancestors_of, snapshots_by_id, summary_properties_of

_ROWS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Portion:
    """Rows to send, and the progress once all of them were sent."""

    rows: Iterator[dict[str, Any]]
    upto: Progress


class UnsentRows:
    """One sink's rows of a quarantine. The catalog's opener closes it."""

    def __init__(
        self, catalog: Catalog, identifier: str, sink: SinkName, branch: str = MAIN_BRANCH
    ) -> None:
        self._catalog = catalog
        self._identifier = identifier
        self._sink = sink
        self._tag = tag_name(sink, branch)

    def unsent_rows_by_commit(self, progress: Progress | None) -> Iterator[Portion]:
        """Yield the rows by commit, each once, except those that ``Progress`` names.

        Raises what loading a table raises, and what storage's drivers raise.
        """
        table = self._load_table()
        if progress and progress.table_uuid != str(table.metadata.table_uuid):
            progress = None
        line = self._snapshots_back_to_last_sent(table, progress)
        if progress and line and _follows_without_gap(line[-1][0], progress):
            for snapshot, record in reversed(line):
                if record and snapshot.snapshot_id != progress.snapshot_id:
                    files = scan_tasks_of_added_files(table, snapshot) if record.records else ()
                    rows = scan_rows(table, snapshot, files, AlwaysTrue())
                    yield Portion(rows, _progress_up_to(table, snapshot, record))
            return
        for snapshot, record in line[:1]:
            if record:
                rows = self._scan_possibly_unsent(table, snapshot, progress)
                yield Portion(rows, _progress_up_to(table, snapshot, record))

    def last_rows_of_newest_commit_with_rows(
        self, count: int, columns: tuple[str, ...], rows_read_max: int
    ) -> list[dict[str, Any]]:
        """Return the last rows of the newest commit with some, of its first ``rows_read_max``.

        Raises as ``unsent_rows_by_commit``.
        """
        table = self._load_table()
        # The newest may have none: each epoch begins with one that only claims the table.
        for snapshot, record in self._snapshots_back_from_tag(table):
            if record and record.records:
                rows = _scan_added_rows(table, snapshot, columns)
                return list(deque(islice(rows, rows_read_max), maxlen=count))
        return []

    def _load_table(self) -> Table:
        try:
            return self._catalog.load_table(self._identifier)
        except Exception as error:
            raise translate_catalog_error(
                error, f"table {self._identifier} cannot be read"
            ) from error

    def _snapshots_back_to_last_sent(
        self, table: Table, progress: Progress | None
    ) -> list[tuple[Snapshot, CommitRecord | None]]:
        """Return the snapshots from the sink's tag back to the last one sent, that one included.

        Only the tag's own if nothing is known to be sent; none that has expired.
        """
        line: list[tuple[Snapshot, CommitRecord | None]] = []
        for snapshot, record in self._snapshots_back_from_tag(table):
            line.append((snapshot, record))
            if progress is None or snapshot.snapshot_id == progress.snapshot_id:
                break
        return line

    def _snapshots_back_from_tag(
        self, table: Table
    ) -> Iterator[tuple[Snapshot, CommitRecord | None]]:
        """Yield the snapshots from the sink's tag back, each with the sink's record in it."""
        ref = table.metadata.refs.get(self._tag)
        for snapshot in ancestors_of(snapshots_by_id(table.metadata), ref) if ref else ():
            yield snapshot, decode_record(self._sink, summary_properties_of(snapshot))

    def _scan_possibly_unsent(
        self, table: Table, snapshot: Snapshot, progress: Progress | None
    ) -> Iterator[dict[str, Any]]:
        predicate: BooleanExpression = EqualTo(term="sink", value=self._sink)
        if progress:
            predicate = And(predicate, GreaterThanOrEqual(term="epoch", value=progress.epoch))
        scan = table.scan(predicate, snapshot_id=snapshot.snapshot_id)
        return scan_rows(table, snapshot, scan.plan_files(), predicate)


def _follows_without_gap(oldest: Snapshot, progress: Progress) -> bool:
    """Return whether no snapshot between the two is missing: quiet tables' parents expire early."""
    next_number = progress.sequence_number + 1
    return oldest.snapshot_id == progress.snapshot_id or oldest.sequence_number == next_number


def scan_tasks_of_added_files(table: Table, snapshot: Snapshot) -> Iterator[FileScanTask]:
    for manifest in snapshot.manifests(table.io):
        ours = manifest.added_snapshot_id == snapshot.snapshot_id
        if ours and manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.status == ManifestEntryStatus.ADDED:
                    yield FileScanTask(entry.data_file)


def _scan_added_rows(
    table: Table, snapshot: Snapshot, columns: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Read what the snapshot added; Parquet without a scan, whose import takes longer."""
    ids = [table.schema().find_field(name).field_id for name in columns]
    for file in scan_tasks_of_added_files(table, snapshot):
        if file.file.file_format != FileFormat.PARQUET:
            yield from scan_rows(table, snapshot, [file], AlwaysTrue(), columns=columns)
            continue
        for columns_read in read_column_batches(
            table.io, file.file.file_path, ids, ids, rows_at_once=_ROWS_AT_ONCE
        ):
            for row in zip(*(column.to_pylist() for column in columns_read), strict=True):
                yield dict(zip(columns, row, strict=True))


def scan_rows(
    table: Table,
    snapshot: Snapshot,
    files: Iterable[FileScanTask],
    predicate: BooleanExpression,
    *,
    columns: tuple[str, ...] = COLUMNS,
) -> Iterator[dict[str, Any]]:
    """Read one file at a time, and few of its rows as Python objects."""
    from pyiceberg.io.pyarrow import ArrowScan  # brings pandas: not for every look

    projection = table.scan(selected_fields=columns, snapshot_id=snapshot.snapshot_id).projection()
    reader = ArrowScan(table.metadata, table.io, projection, predicate)
    for file in files:
        for batch in reader.to_record_batches([file]):
            for begin in range(0, batch.num_rows, _ROWS_AT_ONCE):
                yield from batch.slice(begin, _ROWS_AT_ONCE).to_pylist()


def _progress_up_to(table: Table, snapshot: Snapshot, record: CommitRecord) -> Progress:
    return Progress(
        str(table.metadata.table_uuid),
        snapshot.snapshot_id,
        snapshot.sequence_number or 0,
        record.transaction.epoch,
    )
