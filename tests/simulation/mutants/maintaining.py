"""T8 and T9 in what maintains real tables beside a sink: what may replace, and what may go."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from pyiceberg.table.update import AssertTableUUID
from simulation.mutants.mutant import Family

from headgate.tables.iceberg import orphans
from headgate.tables.iceberg.replacement import Replacement, Settled

FAMILY = Family(real=True)


@FAMILY.replaces("T8", (Replacement, "_call"))
def replaces_on_any_head(right: Any, self: Any, table: Any, snapshot: Any, manifests: Any) -> Any:
    """A compaction takes its number when it calls, and requires the table's UUID only."""
    uuid = AssertTableUUID(uuid=table.metadata.table_uuid)
    number = self._catalog.load_table(self._identifier).metadata.next_sequence_number()
    self._requirements = lambda _: (uuid,)
    return right(self, table, snapshot.model_copy(update={"sequence_number": number}), manifests)


@FAMILY.replaces("T8", (Replacement, "_still_there"))
def replaces_what_is_gone(right: Any, self: Any, table: Any) -> Any:
    """A compaction lands though its sources are not live any more."""
    return right(self, table) or []


@FAMILY.replaces("T8", (Replacement, "settle"))
def takes_back_what_may_land(right: Any, self: Any) -> Settled:
    """Files of a compaction with an unknown outcome are deleted."""
    outcome: Settled = right(self)
    self._doubtful = False
    return outcome


@FAMILY.replaces("T9", (orphans.Orphans, "found"))
def of_any_age(right: Any, self: Any) -> Any:
    """Nobody asks how old an orphan is, and when the tag moved."""
    ages = replace(self, ages=orphans.Ages(-(10**15), -(10**15)))
    return right(ages)


@FAMILY.replaces("T9", (orphans.Orphans, "_needed"))
def only_the_head_counts(right: Any, self: Any, table: Any, records: Any) -> Any:
    """Files that only older snapshots refer to are orphans."""
    head = table.metadata.refs["main"].snapshot_id
    only = [s for s in table.metadata.snapshots if s.snapshot_id == head]
    seen = table.metadata.model_copy(update={"snapshots": only})
    before, table.metadata = table.metadata, seen
    try:
        return right(self, table, records)
    finally:
        table.metadata = before


@FAMILY.replaces("T9", (orphans, "_tags"))
def only_the_wall_clock_counts(right: Any, table: Any, sink: Any) -> Any:
    """An orphan goes by its age, whoever sleeps with it in hand since the tag moved last."""
    return [(int(time.time() * 1000), record) for _, record in right(table, sink)]
