"""EXPIRY-1 to EXPIRY-3: which rows go when they are old, and what the table knows of them.

They show in seeds of ``ages.AGED``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.types import NestedField
from simulation.mutants.mutant import Family

from headgate.control_protocol.commit_record_codec import (
    expired_before_property,
    expired_row_count,
    expired_rows_property,
)
from headgate.tables.iceberg.maintenance.row_expiry import RowExpiry

FAMILY = Family(real=True)

STORED = (RowExpiry, "_updates")


@FAMILY.replaces("EXPIRY-1", STORED)
def the_limit_goes_back(right: Any, self: Any, metadata: Any, snapshot: Any) -> Any:
    """The table has the newest limit, although it had a higher one."""
    *others, stored = right(self, metadata, snapshot)
    newest = {expired_before_property(self._sink): str(self._limit_ms)}
    return (*others, SetPropertiesUpdate(updates=dict(stored.updates) | newest))


@FAMILY.replaces("EXPIRY-2", (RowExpiry, "_is_due_as_a_whole"))
def younger_rows_go_along(_right: Any, self: Any, file: DataFile, of: NestedField) -> bool:
    """A file goes whole as soon as one of its rows is due."""
    lower = (file.lower_bounds or {}).get(of.field_id)
    return lower is not None and from_bytes(of.field_type, lower) < self._limit_ms * 1_000


@FAMILY.replaces("EXPIRY-2", (RowExpiry, "_is_due_as_a_whole"))
def rows_without_a_time_go_along(right: Any, self: Any, file: DataFile, of: NestedField) -> bool:
    """Nobody asks how many rows of a file have no time."""
    seen = SimpleNamespace(upper_bounds=file.upper_bounds, null_value_counts={of.field_id: 0})
    due: bool = right(self, seen, of)
    return due


@FAMILY.replaces("EXPIRY-3", (RowExpiry, "_requirements"))
def expires_what_was_rolled_back(right: Any, self: Any, metadata: Any) -> Any:
    """A call that is late may land although the branch was set back meanwhile."""
    return right(self, metadata)[:1]


@FAMILY.replaces("EXPIRY-3", STORED)
def the_sum_is_of_the_newest_call(right: Any, self: Any, metadata: Any, snapshot: Any) -> Any:
    """The table counts the rows of one call, and not those before it."""
    *others, stored = right(self, metadata, snapshot)
    name = expired_rows_property(self._sink)
    rows = int(stored.updates[name]) - expired_row_count(self._sink, metadata.properties)
    return (*others, SetPropertiesUpdate(updates=dict(stored.updates) | {name: str(rows)}))
