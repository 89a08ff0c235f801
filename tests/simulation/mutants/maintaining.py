"""ORPHAN-1 in what maintains real tables beside a sink: which files may go. COMPACTION-1 has its
mutants planted in protocol/test_compaction_1_compaction.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family

from headgate.tables.iceberg.maintenance import orphan_files

FAMILY = Family(real=True)


@FAMILY.replaces("ORPHAN-1", (orphan_files.Orphans, "find_orphans"))
def of_any_age(right: Any, self: Any) -> Any:
    """Nobody asks how old an orphan is, and when the tag moved."""
    ages = replace(self, ages=orphan_files.Ages(-(10**15), -(10**15)))
    return right(ages)


@FAMILY.replaces("ORPHAN-1", (orphan_files.Orphans, "_referenced_names"))
def only_the_head_counts(right: Any, self: Any, table: Any, *given: Any) -> Any:
    """Files that only older snapshots refer to are orphans."""
    head = table.metadata.refs["main"].snapshot_id
    only = [s for s in table.metadata.snapshots if s.snapshot_id == head]
    seen = table.metadata.model_copy(update={"snapshots": only})
    before, table.metadata = table.metadata, seen
    try:
        return right(self, table, *given)
    finally:
        table.metadata = before
