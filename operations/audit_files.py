"""What manifests and storage prove: each commit's files, each live file once, there, and whole.

The adapter of the audit for pyiceberg's manifests and file access.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import SinkName
from headgate.operations.audit_report import Finding
from headgate.operations.history import History

STORAGE_THREADS = 16

OnProgress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, of how much."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file that the branch's head refers to. ``added_by``: the snapshot that brought it.

    ``vector``: a deletion vector in it, which it may hold several of.
    """

    path: str
    records: int
    size_bytes: int
    parquet: bool
    deletes: bool
    added_by: int
    vector: bool = False


def examine_commits(table: Table, history: History, on_progress: OnProgress) -> list[Finding]:
    """Each commit's manifests hold what its record says, and no file is committed twice."""
    findings: list[Finding] = []
    brought_by: dict[str, str] = {}
    for done, commit in enumerate(history.commits):
        on_progress("commits", done, len(history.commits))
        snapshot = table.metadata.snapshot_by_id(commit.snapshot_id)
        if snapshot is None or not (commit.record.records or commit.added_files):
            continue
        added = list(_added(table.io, snapshot))
        records = sum(file.record_count for file in added)
        if records != commit.record.records:
            findings.append(
                Finding(
                    "record-count",
                    f"{commit.where}: its record claims {commit.record.records} rows, its "
                    f"manifests hold {records}",
                )
            )
        for file in added:
            if file.file_path in brought_by:
                findings.append(
                    Finding(
                        "file-twice",
                        f"{commit.where} adds {file.file_path}, which {brought_by[file.file_path]} "
                        "had added",
                    )
                )
            brought_by[file.file_path] = commit.where
    return findings


def _added(io: FileIO, snapshot: Snapshot) -> Iterator[DataFile]:
    for manifest in snapshot.manifests(io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(io):
            if entry.status == ManifestEntryStatus.ADDED:
                yield entry.data_file


def live_files(table: Table, head: int | None) -> list[LiveFile]:
    """Every live entry of the head's manifests; a path that is referenced twice comes twice."""
    snapshot = table.metadata.snapshot_by_id(head) if head is not None else None
    if snapshot is None:
        return []
    return [
        LiveFile(
            path=entry.data_file.file_path,
            records=entry.data_file.record_count,
            size_bytes=entry.data_file.file_size_in_bytes,
            parquet=entry.data_file.file_format == FileFormat.PARQUET,
            deletes=entry.data_file.content.value != 0,
            added_by=entry.snapshot_id or 0,
            vector=entry.data_file.file_format == FileFormat.PUFFIN,
        )
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    ]


def of_other_sinks(files: list[LiveFile], history: History) -> Mapping[str, SinkName]:
    """Files that other sinks brought, and which."""
    brought = {found.snapshot_id: found.sink for found in history.foreign if found.sink is not None}
    return {file.path: brought[file.added_by] for file in files if file.added_by in brought}


def examine_live(
    io: FileIO, files: list[LiveFile], on_progress: OnProgress
) -> tuple[list[Finding], frozenset[str]]:
    """Each file is referenced once, exists, and has the size and the rows that are claimed.

    Also the paths that are missing or damaged: nobody can read rows from them.
    """
    findings: list[Finding] = []
    damaged: set[str] = set()
    for path, times in Counter(file.path for file in files if not file.vector).items():
        if times > 1:
            findings.append(Finding("file-twice", f"the head refers {times} times to {path}"))
    with ThreadPoolExecutor(STORAGE_THREADS) as threads:
        examined = threads.map(lambda file: _examine_file(io, file), files)
        for done, (file, finding) in enumerate(zip(files, examined, strict=True)):
            on_progress("files", done + 1, len(files))
            if finding:
                findings.append(finding)
                damaged.add(file.path)
    return findings, frozenset(damaged)


def _examine_file(io: FileIO, file: LiveFile) -> Finding | None:
    """Reads the size and, of Parquet, the footer. Raises ``Unreachable`` without an answer."""
    source = io.new_input(file.path)
    try:
        size = len(source)
        rows = _footer_rows(io, file) if file.parquet and size == file.size_bytes else file.records
    except FileNotFoundError:
        return Finding("file-missing", f"{file.path} ({file.records} rows) does not exist")
    except PermissionError:
        return Finding("file-unreadable", f"{file.path} may not be read")
    except OSError as error:
        raise Unreachable(
            f"the table's storage did not answer about {file.path}: {error}", "try again"
        ) from error
    except ValueError as error:  # pyarrow's ArrowInvalid: these bytes are no Parquet file
        return Finding("file-unreadable", f"{file.path}: {error}")
    if size != file.size_bytes:
        return Finding(
            "file-size", f"{file.path} has {size} bytes, the manifest says {file.size_bytes}"
        )
    if rows != file.records:
        return Finding(
            "file-rows", f"{file.path} holds {rows} rows, the manifest says {file.records}"
        )
    return None


def _footer_rows(io: FileIO, file: LiveFile) -> int:
    with io.new_input(file.path).open() as stream:
        return int(pq.read_metadata(stream).num_rows)
