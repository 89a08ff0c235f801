"""Where a branch stands to the sink's tag when snapshots between the two have expired (rule T5).

Asked in this order, the surest first:

1. The metadata log: versions of the table from before the expiry still know the parents.
2. The newest files of the tag's snapshot: a later snapshot that refers to one, or removed one, was
   made from a snapshot that held it, and so held all that the sink had committed.
3. The counts of records: a snapshot that is left, and that changed no row (a compaction, a rewrite
   of manifests), has exactly as many as the tag's snapshot. Under others' appends equal counts say
   nothing: they may have brought as many as a rollback took away.

Where none of these says anything, the lineage stays undecidable.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from headgate.control_protocol.identifiers import SinkName, tag_name
from headgate.control_protocol.ports import Lineage
from headgate.tables.iceberg.lineage import ancestry, by_id, lineage, properties_of


def decided(table: Table, branch: str, sink: SinkName) -> Lineage:
    """Do as ``lineage``; where that cannot tell, use what survived. Raises what storage does."""
    found = lineage(table.metadata, branch, sink)
    if found is not Lineage.UNDECIDABLE:
        return found
    metadata = table.metadata
    snapshots = by_id(metadata)
    tagged = snapshots[metadata.refs[tag_name(sink, branch)].snapshot_id]
    line = list(ancestry(snapshots, metadata.refs[branch]))
    found = _by_metadata_log(table, line[0], tagged)
    if found is Lineage.UNDECIDABLE and (
        _by_files(table.io, line, tagged) or _by_counts(line, tagged)
    ):
        return Lineage.CONTAINS_TAG
    return found


# --------------------------------------------------------------------------------- the metadata log


def _by_metadata_log(table: Table, head: Snapshot, tagged: Snapshot) -> Lineage:
    known: dict[int, Snapshot] = {}
    for metadata in _versions(table):
        # The older version wins: when a parent expires, some writers forget that there was one.
        known |= by_id(metadata)
        found = _walked(known, head, tagged)
        if found is not Lineage.UNDECIDABLE or metadata.next_sequence_number() <= _sequence(tagged):
            return found
    return Lineage.UNDECIDABLE


def _versions(table: Table) -> Iterator[TableMetadata]:
    """Yield the newest first, as far back as they were not deleted."""
    yield table.metadata
    for entry in reversed(table.metadata.metadata_log):
        try:
            yield FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except FileNotFoundError:
            return


def _walked(known: dict[int, Snapshot], head: Snapshot, tagged: Snapshot) -> Lineage:
    snapshot: Snapshot | None = head
    while snapshot is not None:
        if snapshot.snapshot_id == tagged.snapshot_id:
            return Lineage.CONTAINS_TAG
        if _sequence(snapshot) <= _sequence(tagged):
            return Lineage.ROLLED_BACK
        parent = known[snapshot.snapshot_id].parent_snapshot_id
        snapshot = None if parent is None else known.get(parent)
    return Lineage.UNDECIDABLE


# ------------------------------------------------------------------------------ files and counts


def _by_files(io: FileIO, line: list[Snapshot], tagged: Snapshot) -> bool:
    try:
        newest, since = _newest_files(io, tagged)
        # Without files, nothing can have been removed.
        return not newest or any(
            newest & set(_named(io, manifest))
            for snapshot in line
            for manifest in snapshot.manifests(io)
            if manifest.sequence_number >= since
        )
    except FileNotFoundError:
        return False


def _newest_files(io: FileIO, tagged: Snapshot) -> tuple[set[str], int]:
    """Return the live files of the newest commit that has some, and its sequence number."""
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
    return newest, since


def _named(io: FileIO, manifest: ManifestFile) -> Iterator[str]:
    """Return the paths of all entries, live or removed."""
    entries = manifest.fetch_manifest_entry(io, discard_deleted=False)
    return (entry.data_file.file_path for entry in entries)


def _by_counts(line: list[Snapshot], tagged: Snapshot) -> bool:
    stored = _count(tagged, "total-records")
    rewrites = (s for s in line if _count(s, "added-records") == _count(s, "deleted-records"))
    return stored is not None and any(_count(s, "total-records") == stored for s in rewrites)


def _count(snapshot: Snapshot, name: str) -> int | None:
    text = properties_of(snapshot).get(name, "")
    return int(text) if text.isdecimal() else None


def _sequence(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0
