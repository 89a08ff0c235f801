"""Puts compacted files in the place of others by one catalog call, or not at all (COMPACTION-1,
KEY-11).

Maintenance loses any race against a commit: the same files are tried again on the newer head, where
they fit as well while their sources are live. Rows of the sources that died meanwhile are marked as
dead in the new files by the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile as ManifestDataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyroaring import BitMap64

from headgate.control_protocol.commit_record_codec import maintenance_property
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.tables.iceberg.commit_request import summary_counts_of_files, with_totals_after
from headgate.tables.iceberg.maintenance.compaction_plan import (
    CandidateFile,
    Choice,
    read_data_files_and_deletes,
)
from headgate.tables.iceberg.maintenance.files_to_delete import boottime_s
from headgate.tables.iceberg.maintenance.maintenance_commit import (
    MaintenanceCommit,
    Settled,
)
from headgate.tables.iceberg.manifests import to_manifest_data_files
from headgate.tables.iceberg.upsert.delete_manifests import Deletions
from headgate.tables.iceberg.upsert.live_files import Head
from headgate.tables.iceberg.upsert.position_deletes import (
    Positions,
    Target,
    bitmap_of,
    sorted_positions_of,
)
from headgate.tables.storage.file_io import delete_quietly, with_whole_reads

# Tracks rows whose files were rewritten, and which of them died meanwhile (KEY-11). Pure.
#
# Data files never change, so a row is its file and its position. A rewrite leaves out the rows that
# were dead when it began: the n-th of the others, in the order they were read, is the n-th that was
# written, or where it was sorted to. What later delete files say of an old position holds for the
# new one.


@dataclass(frozen=True, slots=True)
class Source:
    """A data file whose rows were rewritten, except ``dead`` ones. ``records`` counts those too."""

    path: str
    records: int
    dead: BitMap64

    @property
    def live_row_count(self) -> int:
        return self.records - len(self.dead)


@dataclass(frozen=True, slots=True)
class MovedRows:
    """The live rows of the ``sources``, in this order, are those of the ``files``: path and rows.

    ``places``: the number of the written row for the n-th row read; ``None``: the n-th.
    """

    sources: tuple[Source, ...]
    files: tuple[tuple[str, int], ...]
    places: Positions | None = None

    def newly_dead_positions(
        self, dead_rows_of: Callable[[str], BitMap64]
    ) -> dict[str, BitMap64] | None:
        """Return the positions in the new files whose rows have died since they were copied.

        ``dead_rows_of`` says it of their sources, and what it raises is raised. ``None`` if a row
        that was left out lives again.
        """
        positions, begin = [np.empty(0, np.int64)], 0
        for source in self.sources:
            now = dead_rows_of(source.path)
            if source.dead - now:
                return None
            died = sorted_positions_of(now - source.dead)
            positions.append(begin + died - np.searchsorted(sorted_positions_of(source.dead), died))
            begin += source.live_row_count
        numbers = np.concatenate(positions)
        written = np.sort(numbers if self.places is None else self.places[numbers])
        return dict(self._split_by_file(written))

    def _split_by_file(self, row_numbers: Positions) -> Sequence[tuple[str, BitMap64]]:
        """Turn sorted row numbers into positions of the files that have them."""
        ends = np.cumsum([rows for _, rows in self.files])
        parts = np.split(row_numbers, np.searchsorted(row_numbers, ends)[:-1]) if self.files else []
        begins = [0, *ends.tolist()]
        return [
            (path, bitmap_of(part - begin))
            for (path, _), part, begin in zip(self.files, parts, begins, strict=False)
            if len(part)
        ]


COMPACTION = "compaction"


@dataclass(frozen=True, slots=True)
class Written:
    """Files with the live rows of the choice's sources.

    ``since_s`` (``boottime_s``): none is older. ``moved``: for each portion, where its rows went.
    """

    choice: Choice
    files: tuple[WrittenFile, ...]
    since_s: float
    moved: tuple[MovedRows, ...]

    @property
    def source_paths(self) -> frozenset[str]:
        return frozenset(file.path for portion in self.choice.portions for file in portion)


def locate_moved_rows(
    portion: Sequence[CandidateFile],
    files: Sequence[WrittenFile],
    new_row_numbers: Positions | None = None,
) -> MovedRows:
    """Return where the live rows of a portion went, which became these files."""
    sources = tuple(Source(file.path, file.records, file.dead) for file in portion)
    alive, written = (
        sum(source.live_row_count for source in sources),
        sum(file.records for file in files),
    )
    assert alive == written, f"{alive} rows are live, {written} were written"
    return MovedRows(sources, tuple((file.path, file.records) for file in files), new_row_numbers)


class Replacement(MaintenanceCommit[Written]):
    """Commits what was written for one sink's table and branch, sooner or later."""

    def __init__(
        self,
        catalog: Catalog,
        identifier: str,
        of: tuple[SinkName, str],
        written: Written,
        *,
        age_max_s: float,
        calling: AbstractContextManager[object] | None = None,
        clock_s: Callable[[], float] = boottime_s,
    ) -> None:
        """``calling``: as ``MaintenanceCommit``."""
        super().__init__(catalog, identifier, of, calling)
        self._written = written
        self._age_max_s = age_max_s
        self._clock_s = clock_s

    def try_commit(self) -> Settled:
        """Try once, on the current head, unless an earlier try has landed.

        Raises what loading a table and storage raise.
        """
        table = self._catalog.load_table(self._identifier)
        if self._find_landed_earlier(table.metadata) is not None:
            return Settled.LANDED
        standing = self._find_sources_on_head(table)
        if standing is None:
            return Settled.GONE
        removed, head = standing
        metadata = table.metadata
        parent = metadata.snapshot_by_id(head.snapshot_id or 0)
        assert parent is not None, "its files were just read"
        number = metadata.next_sequence_number()
        added = to_manifest_data_files(table, self._written.files)
        deletions = self._carry_over_deletes(
            table, head, [Target.from_data_file(file, number) for file in added]
        )
        if deletions is None:
            return Settled.GONE
        retired = [entry.data_file for entry in deletions.retired]
        summary = self._summary(metadata, parent, [*added, *deletions.added], [*removed, *retired])
        paths = self._written.source_paths
        snapshot, manifests = self._write_snapshot(
            table, parent, summary, deletions=deletions, removed=paths, added=added
        )
        if self._clock_s() - self._written.since_s > self._age_max_s:
            manifests.delete_written()
            return Settled.GONE
        return self._commit_snapshot(table, snapshot, manifests, self._written)

    def delete_new_files_unless_doubtful(self) -> bool:
        """Delete the files, unless a try may have landed; return whether they were deleted."""
        if self._doubtful:
            return False
        io = self._catalog.load_table(self._identifier).io
        delete_quietly(io, [file.path for file in self._written.files])
        return True

    def _find_sources_on_head(self, table: Table) -> tuple[list[ManifestDataFile], Head] | None:
        """Return the sources on the current head; ``None`` if the files must not land.

        All sources have to be live, and no equality delete may be new.
        """
        snapshot = self._head_if_tag_exists(table.metadata)
        if snapshot is None:
            return None
        data, head = read_data_files_and_deletes(table, snapshot)
        equality = {file.file_path for file in head.equality_deletes()}
        if equality - self._written.choice.equality_deletes:
            return None
        removed = self._written.source_paths
        entries = [entry.data_file for entry in data if entry.data_file.file_path in removed]
        records = {s.path: s.records for moved in self._written.moved for s in moved.sources}
        same = records == {file.file_path: file.record_count for file in entries}
        return (entries, head) if same and len(entries) == len(records) else None

    def _carry_over_deletes(
        self, table: Table, head: Head, targets: list[Target]
    ) -> Deletions | None:
        """Carry over to the new files what died in the sources since they were read; the sources'
        own delete files retire. ``None`` if a row lives again that is not in the new files."""
        io, dead_rows = with_whole_reads(table.io), self._written.choice.dead_rows
        died: dict[str, BitMap64] = {}
        for moved_rows in self._written.moved:
            positions = moved_rows.newly_dead_positions(
                lambda path: dead_rows.dead_positions_of(io, head, path)
            )
            if positions is None:
                return None
            died |= positions
        dead = [(target, died[target.path]) for target in targets if target.path in died]
        paths = self._written.source_paths
        return self._build_deletions(table, head, "compacted", dead=dead, retiring=paths)

    def _summary(
        self,
        metadata: TableMetadata,
        head: Snapshot,
        added: list[ManifestDataFile],
        removed: list[ManifestDataFile],
    ) -> Summary:
        counts = summary_counts_of_files(metadata, added, removed)
        # pyiceberg does not sum a REPLACE
        summed = with_totals_after(head, Summary(Operation.OVERWRITE, **counts))
        marked = {maintenance_property(self._sink): COMPACTION}
        return Summary(Operation.REPLACE, **summed.additional_properties, **marked)
