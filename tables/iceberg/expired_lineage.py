"""Tells where a branch stands to the sink's tag when snapshots between the two have expired (rule
TABLE-4).

Asked in this order, the surest first:

1. The metadata log: versions of the table from before the expiry still know the parents.
2. The newest files of the tag's snapshot: a later snapshot that refers to one, or removed one,
   under the sequence number that it came with, was made from a snapshot that held it, and so held
   all that the sink had committed. A file that somebody added again has another number.
3. The rows: a snapshot that is left holds exactly those of the tag's snapshot, row by row. They are
   read and compared in small tables only. Equal counts say nothing: others may have brought as many
   rows as a rollback took away.

Where none of these says anything, the lineage stays undecidable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from headgate.control_protocol.identifiers import SinkName, tag_name
from headgate.control_protocol.ports import Lineage
from headgate.tables.iceberg.tag_lineage import (
    ancestors_of,
    compare_branch_with_tag,
    sequence_number_of,
    snapshots_by_id,
    summary_properties_of,
)

ROWS_MAX = 100_000
"""Compared row by row: of larger tables the rows are no evidence."""

_BYTES_MAX = 64 * 1024 * 1024


def decide_lineage(table: Table, branch: str, sink: SinkName) -> Lineage:
    """Do as ``compare_branch_with_tag``, and use what survived if that cannot tell.

    Raises what storage does.
    """
    lineage = compare_branch_with_tag(table.metadata, branch, sink)
    if lineage is not Lineage.UNDECIDABLE:
        return lineage
    metadata = table.metadata
    snapshots = snapshots_by_id(metadata)
    tagged = snapshots[metadata.refs[tag_name(sink, branch)].snapshot_id]
    line = list(ancestors_of(snapshots, metadata.refs[branch]))
    lineage = _lineage_by_metadata_log(table, line[0], tagged)
    if lineage is Lineage.UNDECIDABLE and (
        _is_tag_on_line_proven_by_files(table.io, line, tagged)
        or _is_tag_on_line_proven_by_rows(table, line, tagged)
    ):
        return Lineage.CONTAINS_TAG
    return lineage


# --------------------------------------------------------------------------------- the metadata log


def _lineage_by_metadata_log(table: Table, head: Snapshot, tagged: Snapshot) -> Lineage:
    known: dict[int, Snapshot] = {}
    for metadata in _metadata_versions(table):
        # The older version wins: when a parent expires, some writers forget that there was one.
        known |= snapshots_by_id(metadata)
        lineage = _lineage_by_parents(known, head, tagged)
        if (
            lineage is not Lineage.UNDECIDABLE
            or metadata.next_sequence_number() <= sequence_number_of(tagged)
        ):
            return lineage
    return Lineage.UNDECIDABLE


def _metadata_versions(table: Table) -> Iterator[TableMetadata]:
    """Yield the newest first, as far back as they were not deleted."""
    yield table.metadata
    for entry in reversed(table.metadata.metadata_log):
        try:
            yield FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except FileNotFoundError:
            return


def _lineage_by_parents(known: dict[int, Snapshot], head: Snapshot, tagged: Snapshot) -> Lineage:
    snapshot: Snapshot | None = head
    while snapshot is not None:
        if snapshot.snapshot_id == tagged.snapshot_id:
            return Lineage.CONTAINS_TAG
        if sequence_number_of(snapshot) <= sequence_number_of(tagged):
            return Lineage.ROLLED_BACK
        parent = known[snapshot.snapshot_id].parent_snapshot_id
        snapshot = None if parent is None else known.get(parent)
    return Lineage.UNDECIDABLE


# -------------------------------------------------------------------------------- files and rows


def _is_tag_on_line_proven_by_files(io: FileIO, line: list[Snapshot], tagged: Snapshot) -> bool:
    try:
        newest, sequence_number = _read_newest_files(io, tagged)
        # Without files, nothing can have been removed.
        return not newest or any(
            newest & set(_read_paths_added_at(io, manifest, sequence_number))
            for snapshot in line
            for manifest in snapshot.manifests(io)
            if manifest.sequence_number >= sequence_number
        )
    except FileNotFoundError:
        return False


class _NewestFiles(NamedTuple):
    """The live files of the newest commit that has some, and its sequence number."""

    paths: set[str]
    sequence_number: int


def _read_newest_files(io: FileIO, tagged: Snapshot) -> _NewestFiles:
    newest: set[str] = set()
    since = 0
    manifests = tagged.manifests(io)
    for manifest in sorted(manifests, key=lambda m: m.sequence_number, reverse=True):
        if manifest.sequence_number < since:
            break
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
            number = entry.file_sequence_number or 0
            if number > since:
                newest, since = set(), number
            if number == since:
                newest.add(entry.data_file.file_path)
    return _NewestFiles(newest, since)


def _read_paths_added_at(io: FileIO, manifest: ManifestFile, sequence_number: int) -> Iterator[str]:
    """Return the paths of all entries, live or removed, that came with this sequence number.

    A cherry-pick, or ``add_files`` behind a rollback, adds a file again: under a new number.
    """
    entries = manifest.fetch_manifest_entry(io, discard_deleted=False)
    return (
        entry.data_file.file_path
        for entry in entries
        if entry.file_sequence_number == sequence_number
    )


def _is_tag_on_line_proven_by_rows(table: Table, line: list[Snapshot], tagged: Snapshot) -> bool:
    stored, size = (
        _summary_count(tagged, "total-records"),
        _summary_count(tagged, "total-files-size"),
    )
    alike = [each for each in line if _summary_count(each, "total-records") == stored]
    if not alike or stored is None or stored > ROWS_MAX or (size or 0) > _BYTES_MAX:
        return False
    try:
        return _count_equal_rows(table, alike[-1]) == _count_equal_rows(
            table, tagged
        )  # all others come from it
    except (FileNotFoundError, ValueError, NotImplementedError):  # equality deletes, for example
        return False


def _count_equal_rows(table: Table, snapshot: Snapshot) -> Counter[str]:
    """Return how often the snapshot holds each row, by the columns that the table has now."""
    from pyiceberg.io.pyarrow import ArrowScan  # brings pandas: not for every command

    tasks = table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
    rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(tasks)
    return Counter(map(repr, rows.to_pylist()))


def _summary_count(snapshot: Snapshot, name: str) -> int | None:
    text = summary_properties_of(snapshot).get(name, "")
    return int(text) if text.isdecimal() else None
