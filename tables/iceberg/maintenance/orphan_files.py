"""Finds files that a sink left behind and that nobody refers to, or ever will (rule ORPHAN-1).

Searched below the sink's own folders only. The order makes it a proof: first the files are listed,
then the primary table is read, then the table itself. A file that is old enough can be in no commit
still under way: its tag has moved since the files had become too old to be committed (TOKEN-1), and
a call that was made before then is refused. Everything else that may need a file is read: every
snapshot, and what the sink's records owe or have given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.utils.properties import property_as_bool

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.commit_record_codec import decode_record
from headgate.control_protocol.identifiers import (
    SinkName,
    branch_of_tag,
    sink_of_tag,
    sink_staging_folder,
)
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.tables.iceberg.maintenance.compaction_plan import sink_data_folder
from headgate.tables.iceberg.maintenance.files_of_expired_snapshots import find_referenced_files
from headgate.tables.iceberg.maintenance.files_to_delete import Condemned
from headgate.tables.iceberg.maintenance.snapshot_selection import GC_ENABLED
from headgate.tables.iceberg.pending_manifests import read_staged_files
from headgate.tables.iceberg.table_creation import CREATED_MS
from headgate.tables.iceberg.tag_lineage import summary_properties_of
from headgate.tables.storage.file_store import files_below
from headgate.tables.storage.stored_file import StoredFile

SKEW_MS = 600_000
"""The clocks of stores and coordinators may differ by this much."""

READING_MAX_S = 600.0

Listing = Callable[[FileIO, str], Sequence[StoredFile]]

_log = redacted_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ages:
    """``after_ms``: younger files stay. ``claim_max_ms``: no older file is committed (TOKEN-1)."""

    after_ms: int
    claim_max_ms: int


@dataclass(frozen=True, slots=True)
class OrphanSearch:
    """``files`` that may go. ``young``: those that are not live, but may still be committed or are
    not old enough. ``earlier``: those that are older than the table, and perhaps of one that was
    here before and was renamed. ``why``: the reason if nothing was searched; ``elsewhere``: a
    folder that was not."""

    table: Table
    files: tuple[str, ...] = ()
    young: int = 0
    earlier: int = 0
    why: str = ""
    elsewhere: str = ""


class TagMove(NamedTuple):
    """When one of the sink's tags last moved (epoch), and the record under it."""

    at_ms: int
    record: CommitRecord | None


@dataclass(frozen=True, slots=True)
class PrimaryTags:
    """What the table that decides says: its UUID, and how the sink's tags last moved there."""

    uuid: str
    tags: Sequence[TagMove]


@dataclass(frozen=True)
class Orphans:
    """The orphans of one sink in one of its tables; ``primary`` is the table that decides.

    ``beside``: locations of the sink's other tables. ``deciding`` reads a primary table that is not
    in this catalog.
    """

    catalog: Catalog
    sink: SinkName
    primary: str
    table: str
    ages: Ages
    beside: tuple[str, ...] = ()
    deciding: Callable[[], PrimaryTags] | None = None
    listing: Listing = files_below
    wall_ms: Callable[[], int] = field(default=lambda: int(time.time() * 1000))

    def find_orphans(self) -> OrphanSearch:
        """Find them; changes nothing. Raises what catalogs and storage raise, ``TimeoutError``."""
        now_ms = self.wall_ms()
        table = self.catalog.load_table(self.table)
        if why := self._reason_not_to_clean_up(table):
            return OrphanSearch(table, why=why)
        # The order is the proof (see above): a file that is committed after the listing is younger
        # than the limit, one that was decided before is named by the primary table or the table
        # read now.
        stored = self._list_stored_files_with_times(table)
        primary = (self.deciding or self._load_primary_tags)()
        table = self.catalog.load_table(self.table)  # loaded now, to hold deliveries made meanwhile
        delivered = _last_moves_of_sink_tags(table, self.sink)
        tags = (*primary.tags, *delivered)
        if not (primary.tags and delivered):
            return OrphanSearch(
                table, why=f"{self.table} or {self.primary} has no tag of this sink"
            )
        oldest_ms = min(at_ms for at_ms, _ in tags)
        # A clock that is ahead would make every file look old.
        if max(at_ms for at_ms, _ in tags) > now_ms + SKEW_MS:
            return OrphanSearch(
                table, why="a tag of this sink is of the future: clocks are out of step"
            )
        limit_ms = min(
            now_ms - max(self.ages.after_ms, self.ages.claim_max_ms),
            oldest_ms - self.ages.claim_max_ms - SKEW_MS,
        )
        born_ms = _created_ms_with_skew(table)
        old = {path for path, at_ms in stored if born_ms <= at_ms < limit_ms}
        older = {path for path, at_ms in stored if at_ms < born_ms}
        spent = _Spent(primary.uuid, [record for _, record in delivered if record])
        needed = self._referenced_names(table, [record for _, record in tags if record], spent)
        loose = [path for path, _ in stored if _comparable_name(path, self.sink) not in needed]
        files = tuple(sorted(path for path in loose if path in old))
        earlier = sum(path in older for path in loose)
        young = len(loose) - len(files) - earlier
        return OrphanSearch(
            table, files, young, earlier, elsewhere=self._data_folder_if_elsewhere(table)
        )

    def delete_orphans(self, orphans: OrphanSearch) -> int:
        """Delete what was found, unless somebody refers to it by now; return how many are gone."""
        condemned = Condemned(self.catalog)
        condemned.add(orphans.files, orphans.table.metadata)
        while condemned.has_files:
            condemned.delete_unreferenced_for_seconds(orphans.table)
        return condemned.deleted

    def _load_primary_tags(self) -> PrimaryTags:
        primary = self.catalog.load_table(self.primary)
        return PrimaryTags(
            str(primary.metadata.table_uuid), _last_moves_of_sink_tags(primary, self.sink)
        )

    def _reason_not_to_clean_up(self, table: Table) -> str:
        if not property_as_bool(dict(table.properties), GC_ENABLED, default=True):
            return f"{self.table} has {GC_ENABLED}=false"
        location = table.metadata.location.rstrip("/")
        for other in self.beside:
            if _is_within(other, location) or _is_within(location, other):
                return f"{self.table} shares its location with another table of the sink: {other}"
        return ""

    def _list_stored_files_with_times(self, table: Table) -> list[tuple[str, int]]:
        """List the sink's folders of data, and its drafts (rule PENDING-2).

        Where the table's owner has moved its data, the folder before lies at its location.
        """
        location = table.metadata.location.rstrip("/")
        default = f"{location}/data/headgate/{self.sink}"
        drafts = sink_staging_folder(table.metadata.location, self.sink)
        now = () if self._data_folder_if_elsewhere(table) else (sink_data_folder(table, self.sink),)
        folders = dict.fromkeys((default, *now, drafts))
        return [each for folder in folders for each in self.listing(table.io, folder)]

    def _data_folder_if_elsewhere(self, table: Table) -> str:
        """Return the folder of its data if that is not at its location: others may be there."""
        folder = sink_data_folder(table, self.sink)
        return "" if folder.startswith(f"{table.metadata.location.rstrip('/')}/") else folder

    def _referenced_names(
        self, table: Table, records: Iterable[CommitRecord], spent: _Spent
    ) -> set[str]:
        """Return names, not locations: a reader may write a location's scheme in another way."""
        paths = find_referenced_files(table, table.metadata.snapshots, READING_MAX_S)
        for record in records:
            paths |= set(_paths_of_pending_and_expired(table, record, spent))
        return {_comparable_name(path, self.sink) for path in paths}


@dataclass(frozen=True, slots=True)
class _Spent:
    """The pending commits that a table shows as delivered by its ``primary``, the UUID of the table
    that decides."""

    primary: str
    records: Sequence[CommitRecord]

    def may_lack_key_files(self, pending_commit: PendingCommit) -> bool:
        """PENDING-7: return whether its key files may be gone: the pending commit is delivered, and
        still named."""
        return any(record.has_received(pending_commit, self.primary) for record in self.records)


def _paths_of_pending_and_expired(
    table: Table, record: CommitRecord, spent: _Spent
) -> Iterator[str]:
    """Yield decided drafts, and their files; expired ones too, for a person may want them.

    Raises ``FileNotFoundError`` if a pending one cannot be read: then nothing is an orphan.
    """
    for pending_commit in (*record.pending_commits, *record.expired):
        if pending_commit.manifest and pending_commit.secondary == str(table.metadata.table_uuid):
            yield pending_commit.manifest
            awaited = pending_commit in record.pending_commits and not spent.may_lack_key_files(
                pending_commit
            )
            with suppress(*(() if awaited else (FileNotFoundError,))):
                yield from (
                    file.file_path for file in read_staged_files(table.io, pending_commit.manifest)
                )


def _last_moves_of_sink_tags(table: Table, sink: SinkName) -> list[TagMove]:
    """Return when each of the sink's tags last moved, on any branch, and its record."""
    moves = []
    for name, ref in table.metadata.refs.items():
        branch = branch_of_tag(name)
        snapshot = table.metadata.snapshot_by_id(ref.snapshot_id)
        if branch and sink_of_tag(name, branch) == sink and snapshot:
            record = decode_record(sink, summary_properties_of(snapshot))
            moves.append(TagMove(snapshot.timestamp_ms, record))
    return moves


def _created_ms_with_skew(table: Table) -> int:
    """Return when the table was there by any clock, if headgate created it; else the beginning of
    time.

    The store's clock may be ahead. Rather than live files of a table that was renamed go, the
    orphans of these minutes stay.
    """
    text = table.properties.get(CREATED_MS, "")
    created_ms = int(text) if text.isdecimal() else 0
    return created_ms + SKEW_MS if created_ms else 0


def _comparable_name(path: str, sink: SinkName) -> str:
    """Return the part of a location that does not depend on its scheme and host."""
    _, folder, below = path.partition(f"/headgate/{sink}/")
    return below if folder else path


def _is_within(inner: str, outer: str) -> bool:
    return f"{inner.rstrip('/')}/".startswith(f"{outer.rstrip('/')}/")
