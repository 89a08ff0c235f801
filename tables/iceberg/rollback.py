"""Answers what a rollback asks of an Iceberg table: its snapshots, and branches for people to look
at."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
)

from headgate.control_protocol.commit_record_codec import (
    decode_record,
    deleted_row_count,
    expired_row_count,
    sink_in_summary,
)
from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.table_format import TableSnapshot
from headgate.tables.iceberg.catalog import translate_catalog_error
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.tag_lineage import summary_properties_of


class IcebergSnapshots:
    """Implements ``TableSnapshots`` over a loaded table."""

    def __init__(self, table: Table, sink: SinkName, branch: str) -> None:
        self._table = table
        self._metadata = table.metadata
        self._sink = sink
        self._branch = branch
        self._described: dict[int, TableSnapshot] = {}

    @cached_property
    def view(self) -> TableView:
        identifier = ".".join(self._table.name())
        table = IcebergTable(self._table.catalog, identifier, self._sink, self._branch)
        return table.view_of_loaded(self._table)

    @property
    def uuid(self) -> str:
        return str(self._metadata.table_uuid)

    @property
    def head(self) -> int | None:
        ref = self._metadata.refs.get(self._branch)
        return ref.snapshot_id if ref else None

    @property
    def deleted_and_expired_row_count(self) -> int:
        """Return how many rows this sink's deletions and row expiry have removed so far."""
        properties = self._metadata.properties
        return deleted_row_count(self._sink, properties) + expired_row_count(self._sink, properties)

    def snapshot(self, snapshot_id: int | None) -> TableSnapshot | None:
        if snapshot_id is None:
            return None
        found = self._metadata.snapshot_by_id(snapshot_id)
        return self._to_table_snapshot(found) if found else None

    def snapshot_of_ref(self, name: str) -> TableSnapshot | None:
        ref = self._metadata.refs.get(name)
        return self.snapshot(ref.snapshot_id) if ref else None

    def newest_first(self) -> Iterator[TableSnapshot]:
        return map(self._to_table_snapshot, reversed(self._metadata.snapshots))

    def ancestry(self, snapshot_id: int | None) -> Iterator[TableSnapshot]:
        snapshot = self.snapshot(snapshot_id)
        while snapshot is not None:
            yield snapshot
            snapshot = self.snapshot(snapshot.parent)

    def _to_table_snapshot(self, snapshot: Snapshot) -> TableSnapshot:
        known = self._described.get(snapshot.snapshot_id)
        if known is None:
            summary = summary_properties_of(snapshot)
            who, by_others = sink_in_summary(summary), ""
            if who != self._sink:
                operation = snapshot.summary.operation.value if snapshot.summary else "append"
                by_others = operation + (f" of sink {who}" if who else "")
            known = self._described[snapshot.snapshot_id] = TableSnapshot(
                snapshot.snapshot_id,
                snapshot.parent_snapshot_id,
                decode_record(self._sink, summary),
                deleted_row_count(self._sink, summary) + expired_row_count(self._sink, summary),
                by_others,
                first=(snapshot.sequence_number or 0) <= 1,
            )
        return known


def make_branch(table: Table, name: str, snapshot_id: int, kept_ms: int) -> None:
    """Make the branch on the snapshot; Iceberg's maintenance removes it after ``kept_ms``.

    No row and no other ref changes. Raises ``ConfigurationError`` if the ref exists already,
    ``Unreachable`` when it is not known whether it was made.
    """
    identifier = ".".join(table.name())
    update = SetSnapshotRefUpdate(
        ref_name=name,
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot_id,
        max_ref_age_ms=kept_ms,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
    requirements = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=name, snapshot_id=None),
    )
    if name in table.metadata.refs:
        raise _branch_exists_error(identifier, name)
    try:
        table.catalog.commit_table(table, requirements, (update,))
    except CommitFailedException as error:
        raise _branch_exists_error(identifier, name) from error
    except Exception as error:
        failure = translate_catalog_error(
            error, f"branch {name} of {identifier} may not have been made"
        )
        raise Unreachable(failure.message, failure.hint) from error


def _branch_exists_error(identifier: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{identifier} has a branch or tag {name!r} already", "name another one, or drop it first"
    )
