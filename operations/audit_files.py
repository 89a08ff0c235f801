"""What manifests and storage prove: each commit's files, each live file once, there, and whole.

The adapter of the audit for pyiceberg's manifests and file access.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.table_history import History, LiveFile
from headgate.operations.audit_report import Finding
from headgate.tables.stores.files import SCHEMES, on_s3

STORAGE_THREADS = 32
_AHEAD_MAX = 4 * STORAGE_THREADS
_FOOTER_BYTES = 64 * 1024

_Item = TypeVar("_Item")
_Read = TypeVar("_Read")

OnProgress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, of how much."""


def examine_commits(table: Table, history: History, on_progress: OnProgress) -> list[Finding]:
    """Each commit's manifests hold what its record says, and no file is committed twice."""
    findings: list[Finding] = []
    brought_by: dict[str, str] = {}
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    asked = [
        (commit, snapshot)
        for commit in history.commits
        if (snapshot := snapshots.get(commit.snapshot_id)) is not None
        and (commit.record.records or commit.added_files)
    ]
    read = in_turn(lambda pair: _added(table.io, pair[1]), asked)
    for done, ((commit, _), added) in enumerate(zip(asked, read, strict=True)):
        on_progress("commits", done, len(asked))
        records, where = sum(count for _, count in added), commit.where
        if records != commit.record.records:
            findings.append(
                Finding(
                    "record-count",
                    f"{where}: its record claims {commit.record.records} rows, its "
                    f"manifests hold {records}",
                )
            )
        for path, _ in added:
            if path in brought_by:
                findings.append(
                    Finding(
                        "file-twice",
                        f"{where} adds {path}, which {brought_by[path]} had added",
                    )
                )
            brought_by[path] = where
    return findings


def in_turn(
    read: Callable[[_Item], _Read], items: Iterable[_Item], ahead_max: int = _AHEAD_MAX
) -> Iterator[_Read]:
    """Read with several threads, and give the answers in the order of ``items``; few wait."""
    with ThreadPoolExecutor(STORAGE_THREADS) as threads:
        waiting: deque[Future[_Read]] = deque()
        for item in items:
            waiting.append(threads.submit(read, item))
            if len(waiting) > ahead_max:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _added(io: FileIO, snapshot: Snapshot) -> list[tuple[str, int]]:
    """The files of rows that came with the snapshot, and how many rows each has."""
    return [
        (entry.data_file.file_path, entry.data_file.record_count)
        for manifest in snapshot.manifests(io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        and manifest.content is ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(io)
        if entry.status == ManifestEntryStatus.ADDED
    ]


def live_files(table: Table, head: int | None) -> list[LiveFile]:
    """Every live entry of the head's manifests; a path that is referenced twice comes twice."""
    snapshot = table.metadata.snapshot_by_id(head) if head is not None else None
    if snapshot is None:
        return []
    manifests = snapshot.manifests(table.io)
    return [file for live in in_turn(lambda m: _live(table.io, m), manifests) for file in live]


def _live(io: FileIO, manifest: ManifestFile) -> list[LiveFile]:
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
        for entry in manifest.fetch_manifest_entry(io)
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
    examined = in_turn(lambda file: _examine_file(io, file), files)
    for done, (file, finding) in enumerate(zip(files, examined, strict=True)):
        on_progress("files", done + 1, len(files))
        if finding:
            findings.append(finding)
            damaged.add(file.path)
    return findings, frozenset(damaged)


def _examine_file(io: FileIO, file: LiveFile) -> Finding | None:
    """Reads the size and, of Parquet, the footer. Raises ``Unreachable`` without an answer."""
    try:
        size, rows = _size_and_rows(io, file)
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


def _size_and_rows(io: FileIO, file: LiveFile) -> tuple[int, int]:
    """By one request on S3, which has the footer in it, unless that is unusually long."""
    if on_s3(io) and file.path.startswith(tuple(f"{scheme}://" for scheme in SCHEMES)):
        end, size = io.tail(file.path, _FOOTER_BYTES if file.parquet else 1)
        if not file.parquet or size != file.size_bytes:
            return size, file.records
        if len(end) == size or _footer_bytes(end) <= len(end):
            return size, int(pq.read_metadata(pa.BufferReader(end)).num_rows)
    size = len(io.new_input(file.path))
    whole = file.parquet and size == file.size_bytes
    return size, _footer_rows(io, file) if whole else file.records


def _footer_bytes(end: bytes) -> int:
    """How long a Parquet file's footer is with what stands behind it."""
    return int.from_bytes(end[-8:-4], "little") + 8


def _footer_rows(io: FileIO, file: LiveFile) -> int:
    with io.new_input(file.path).open() as stream:
        return int(pq.read_metadata(stream).num_rows)
