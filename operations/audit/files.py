"""Checks a table's metadata and storage: each commit's files, and each live file once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import SinkName, TopicPartition
from headgate.control_protocol.table_history import History, LiveFile, TableReader
from headgate.operations.audit.report import Finding
from headgate.tables.storage.read_ahead import read_ahead_in_order

# A warehouse may lie below a folder of that name, too: what a sink puts next below its own counts.
_FOLDER_OF_SINK = re.compile(
    r".*/headgate/(?P<sink>[^/]+)/(?:\d+-[^/]+|compacted|reread|replayed-[0-9a-f]+)/"
)

OnProgress = Callable[[str, int, int], None]
"""Receives what is being done, how much of it is done, and how much there is."""


def check_files_of_commits(
    reader: TableReader, history: History, on_progress: OnProgress
) -> list[Finding]:
    """Check that each commit's files hold what its record says, and none is committed twice."""
    findings: list[Finding] = []
    brought_by: dict[str, str] = {}
    read = [each for each in history.commits if each.record.records or each.added_files]
    for done, (commit, added) in enumerate(
        zip(read, read_ahead_in_order(reader.added_files, read), strict=True)
    ):
        on_progress("commits", done, len(read))
        if added is None:
            continue
        records, where = sum(count for _, count in added), commit.description
        if records != commit.record.records:
            findings.append(
                Finding(
                    "record-count",
                    f"{where}: its record claims {count_of(commit.record.records, 'row')}, its "
                    f"files hold {records}",
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


class RowCountCheck(NamedTuple):
    """What is wrong with the count of rows, or why nothing could be compared."""

    findings: list[Finding]
    not_comparable: list[str]


def check_row_count(history: History, files: list[LiveFile]) -> RowCountCheck:
    """Check that the live files hold as many rows, dead ones included, as all commits added.

    Also returns why that could not be compared.
    """
    theirs = any(snapshot.row_deletes for snapshot in history.foreign if not snapshot.upkeep)
    if any(file.deletes for file in files) and (theirs or not history.complete):
        return RowCountCheck([], ["others marked rows as deleted: live rows cannot be counted"])
    others = sum(snapshot.added_records - snapshot.deleted_records for snapshot in history.foreign)
    expected = sum(commit.record.records for commit in history.commits) + others
    stored = sum(file.records for file in files if not file.deletes)
    if not history.complete or expected == stored:
        return RowCountCheck([], [])
    evidence = f"the live files hold {count_of(stored, 'row')}, all commits together {expected}"
    return RowCountCheck([Finding("row-count", evidence)], [])


def find_which_were_delivered(
    reader: TableReader, files_of: Mapping[PendingCommit, Collection[str]], primary: str
) -> Mapping[PendingCommit, bool | None]:
    """Return whether a delivery has brought each pending commit's files into the table, whatever
    came since.

    ``files_of``: the paths of each; ``primary``: the UUID of the table that decided. ``None``: the
    history does not reach back to the decision, so that a delivery may have expired.
    """
    history = reader.history()
    oldest = min(pending_commit.transaction for pending_commit in files_of)
    listed = {file.path for file in reader.live_files()}
    for commit in history.commits:
        if commit.record.records and commit.record.transaction >= oldest:
            listed |= {path for path, _ in reader.added_files(commit) or ()}
    known = [c.record.transaction for c in history.commits if c.record.primary == primary]

    def has_landed(pending_commit: PendingCommit, paths: Collection[str]) -> bool | None:
        if not listed.isdisjoint(paths):
            return True
        reaches = history.complete or (bool(known) and known[0] < pending_commit.transaction)
        return False if reaches else None

    return {
        pending_commit: has_landed(pending_commit, paths)
        for pending_commit, paths in files_of.items()
    }


def find_files_of_other_sinks(
    files: list[LiveFile], history: History, own: SinkName
) -> Mapping[str, SinkName]:
    """Return the files that other sinks added, and which sink: also behind an expiry."""
    authors = _sink_of_each_data_file(files, history, own)
    return {path: sink for path, sink in authors.items() if sink not in (None, own)}


def count_files_of_unknown_sinks(files: list[LiveFile], history: History, own: SinkName) -> int:
    """Return how many files may hold rows of several sinks: others have rewritten or added them."""
    return sum(sink is None for sink in _sink_of_each_data_file(files, history, own).values())


def find_unattributed_offsets_by_file(
    files: list[LiveFile], history: History, own: SinkName
) -> Mapping[str, Mapping[TopicPartition, int]]:
    """Return files that somebody brought in an expired snapshot, though not into a sink's folder,
    with the offsets below which nobody knows who.

    None, where the sink's own files lie in no folder of its own either.
    """
    below = history.offsets_with_full_history_above
    authors = _sink_of_each_data_file(files, history, own) if below else {}
    if own not in map(sink_of_path, authors):
        return {}
    retained = {snapshot.snapshot_id for snapshot in history.foreign}
    return {
        file.path: below
        for file in files
        if authors.get(file.path, own) is None and file.added_by not in retained
    }


def _sink_of_each_data_file(
    files: list[LiveFile], history: History, own: SinkName
) -> Mapping[str, SinkName | None]:
    """Return each file's sink. Where its snapshot has expired, its folder tells."""
    brought = {snapshot.snapshot_id: snapshot.sink for snapshot in history.foreign}
    brought |= dict.fromkeys((commit.snapshot_id for commit in history.commits), own)
    data = (file for file in files if not file.deletes)
    return {file.path: brought.get(file.added_by) or sink_of_path(file.path) for file in data}


def sink_of_path(path: str) -> SinkName | None:
    """Return the sink in whose folder the file lies, if it is one's."""
    inside = _FOLDER_OF_SINK.match(path)
    return SinkName(inside["sink"]) if inside else None


def live_row_count(files: Iterable[LiveFile]) -> int:
    """Return the rows of the files, less those that delete files mark."""
    return sum(-file.records if file.deletes else file.records for file in files)


class LiveFilesCheck(NamedTuple):
    """What is wrong with live files, and the paths of those that nobody can read rows from."""

    findings: list[Finding]
    damaged_paths: frozenset[str]


def check_live_files(
    reader: TableReader, files: list[LiveFile], on_progress: OnProgress
) -> LiveFilesCheck:
    """Check that each file is referenced once, exists, and has the size and rows that are claimed.

    Also returns the paths that are missing or damaged: nobody can read rows from them.
    """
    findings: list[Finding] = []
    damaged: set[str] = set()
    for path, times in Counter(file.path for file in files if not file.vector).items():
        if times > 1:
            findings.append(Finding("file-twice", f"the head refers {times} times to {path}"))
    examined = read_ahead_in_order(lambda file: _check_file(reader, file), files)
    for done, (file, finding) in enumerate(zip(files, examined, strict=True)):
        on_progress("files", done + 1, len(files))
        if finding:
            findings.append(finding)
            damaged.add(file.path)
    return LiveFilesCheck(findings, frozenset(damaged))


def missing_file_finding(file: LiveFile) -> Finding:
    return Finding("file-missing", f"{file.path} ({count_of(file.records, 'row')}) does not exist")


def _check_file(reader: TableReader, file: LiveFile) -> Finding | None:
    """Read the size and, for Parquet, the footer. Raises ``Unreachable`` without an answer."""
    try:
        size, rows = reader.stored_size_and_rows(file)
    except FileNotFoundError:
        return missing_file_finding(file)
    except PermissionError:
        return Finding("file-unreadable", f"{file.path} may not be read")
    except OSError as error:
        raise Unreachable(
            f"the table's storage did not answer about {file.path}: {error}", "try again"
        ) from error
    except ValueError as error:  # pyarrow's ArrowInvalid: not a Parquet file
        return Finding("file-unreadable", f"{file.path}: {error}")
    if size != file.size_bytes:
        return Finding(
            "file-size", f"{file.path} has {size} bytes, the manifest says {file.size_bytes}"
        )
    if rows != file.records:
        return Finding(
            "file-rows",
            f"{file.path} holds {count_of(rows, 'row')}, the manifest says {file.records}",
        )
    return None
