"""Branches for people to look at: made once, on an existing snapshot, and removed by age."""

from __future__ import annotations

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
)

from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.tables.iceberg.catalog import catalog_failure


def make_branch(table: Table, name: str, snapshot_id: int, age_ms: int) -> None:
    """Make the branch on the snapshot; Iceberg's maintenance removes it after ``age_ms``.

    No row and no other ref changes. Raises ``ConfigurationError`` if the ref exists already,
    ``Unreachable`` when it is not known whether it was made.
    """
    identifier = ".".join(table.name())
    update = SetSnapshotRefUpdate(
        ref_name=name,
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot_id,
        max_ref_age_ms=age_ms,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
    requirements = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=name, snapshot_id=None),
    )
    if name in table.metadata.refs:
        raise _taken(identifier, name)
    try:
        table.catalog.commit_table(table, requirements, (update,))
    except CommitFailedException as error:
        raise _taken(identifier, name) from error
    except Exception as error:
        failure = catalog_failure(error, f"branch {name} of {identifier} may not have been made")
        raise Unreachable(failure.message, failure.hint) from error


def _taken(identifier: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{identifier} has a branch or tag {name!r} already", "name another one, or drop it first"
    )
