"""Chooses the snapshots that a table no longer needs (RETENTION-1): by what its owner asked for,
and by sinks' needs.

Iceberg's spec (section *Snapshot Retention Policy*) gives the properties their meaning. Two things
differ here: nothing expires unless somebody asked, and refs are never removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.properties import property_as_bool

from headgate.control_protocol.identifiers import branch_of_tag
from headgate.tables.iceberg.tag_lineage import ancestors_of, snapshots_by_id

GC_ENABLED = "gc.enabled"
MAX_AGE_MS = "history.expire.max-snapshot-age-ms"
KEEP_MIN = "history.expire.min-snapshots-to-keep"

_MAX_AGE_MS_DEFAULT = 5 * 24 * 3_600_000  # Iceberg's own, if only the other one is set
_KEEP_MIN_DEFAULT = 1


class Retention(NamedTuple):
    """The age at which snapshots expire, and how many stay however old."""

    age_max_ms: int
    count_min: int


def select_expirable_snapshots(
    metadata: TableMetadata, now_ms: int, default_age_ms: int | None = None
) -> list[Snapshot]:
    """Return the snapshots that may go, oldest first. ``now_ms``: epoch.

    ``default_age_ms``: the age at which they go if the table's owner asks for nothing. Raises
    ``ValueError`` for a retention property that is not a number.
    """
    if not property_as_bool(metadata.properties, GC_ENABLED, default=True):
        return []
    snapshots = snapshots_by_id(metadata)
    unasked = None if default_age_ms is None else Retention(default_age_ms, _KEEP_MIN_DEFAULT)

    def retention_of_branch(branch: SnapshotRef | None = None) -> Retention | None:
        return snapshot_retention(metadata.properties, branch) or unasked

    lines = {
        name: list(ancestors_of(snapshots, ref))
        for name, ref in metadata.refs.items()
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH
    }
    kept = {ref.snapshot_id for ref in metadata.refs.values()}
    for name, line in lines.items():
        kept.update(
            _ids_of(
                _retained_branch_snapshots(line, retention_of_branch(metadata.refs[name]), now_ms)
            )
        )
    kept.update(_ids_of(_snapshots_needed_by_sinks(metadata.refs, lines)))
    on_branches = {snapshot_id for line in lines.values() for snapshot_id in _ids_of(line)}
    loose = [s for s in metadata.snapshots if s.snapshot_id not in on_branches]
    kept.update(_ids_of(_retained_off_branch_snapshots(loose, retention_of_branch(), now_ms)))
    gone = [s for s in metadata.snapshots if s.snapshot_id not in kept]
    return sorted(gone, key=lambda snapshot: snapshot.sequence_number or 0)


def snapshot_retention(
    properties: Mapping[str, str], branch: SnapshotRef | None = None
) -> Retention | None:
    """Return the retention that the branch or the table sets; ``None`` if neither sets any."""
    age: int | str | None = branch.max_snapshot_age_ms if branch else None
    count: int | str | None = branch.min_snapshots_to_keep if branch else None
    age = properties.get(MAX_AGE_MS) if age is None else age
    count = properties.get(KEEP_MIN) if count is None else count
    if age is None and count is None:
        return None
    return Retention(
        _MAX_AGE_MS_DEFAULT if age is None else int(age),
        _KEEP_MIN_DEFAULT if count is None else int(count),
    )


def _retained_branch_snapshots(
    line: list[Snapshot], retention: Retention | None, now_ms: int
) -> Iterator[Snapshot]:
    """Yield those to keep: from the head on while young or few."""
    for number, snapshot in enumerate(line):
        if (
            retention
            and number >= retention.count_min
            and snapshot.timestamp_ms < now_ms - retention.age_max_ms
        ):
            return
        yield snapshot


def _retained_off_branch_snapshots(
    loose: list[Snapshot], retention: Retention | None, now_ms: int
) -> Iterator[Snapshot]:
    """Yield young ones that were staged or rolled back: on no branch, only their age keeps them."""
    return (
        s for s in loose if retention is None or s.timestamp_ms >= now_ms - retention.age_max_ms
    )


def _snapshots_needed_by_sinks(
    refs: Mapping[str, SnapshotRef], lines: Mapping[str, list[Snapshot]]
) -> Iterator[Snapshot]:
    """Yield those from each branch's head to each sink's tag, which TABLE-4 needs to decide.

    All of a branch that does not hold the tag (after a rollback, say): the sink, or its operator,
    has yet to decide, and needs the records there.
    """
    for name, ref in refs.items():
        if ref.snapshot_ref_type is SnapshotRefType.TAG:
            for snapshot in lines.get(branch_of_tag(name) or "", ()):
                yield snapshot
                if snapshot.snapshot_id == ref.snapshot_id:
                    break


def _ids_of(snapshots: Iterable[Snapshot]) -> Iterator[int]:
    return (snapshot.snapshot_id for snapshot in snapshots)
