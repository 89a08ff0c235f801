"""KEY-1 to KEY-7, KEY-9 and KEY-10 in the real adapter: what dies with a commit, and on which
head."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyroaring import BitMap64
from simulation.mutants.mutant import Family, Planted

from headgate.control_protocol.events import FileKind
from headgate.control_protocol.ports import CommitOutcome
from headgate.coordinator import machine
from headgate.tables.iceberg.prepared_commit import PreparedCommit
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.tag_lineage import snapshots_by_id, summary_properties_of
from headgate.tables.iceberg.upsert import position_lookup, upsert_commit
from headgate.tables.iceberg.upsert.delete_manifests import Deletions
from headgate.tables.iceberg.upsert.live_files import DeadRows, Head
from headgate.tables.iceberg.upsert.position_lookup import Change
from headgate.tables.iceberg.upsert.upsert_commit import KeyedRows

FAMILY = Family(real=True, keyed=True)

FOUND = (KeyedRows, "build_deletions_by_key")
SENT = (IcebergTable, "send_commit")


def found_at(
    right: Any, head: Any, self: Any, table: Any, parent: Any, *given: Any, **more: Any
) -> Any:
    """What is found on another head than the call's, which it is said of."""
    made: Deletions = right(self, table, head, *given, **more)
    return replace(made, beneath=self._heads.read_head(table, parent).listed)


@FAMILY.replaces("KEY-1", FOUND)
def only_its_own_records(
    right: Any, self: Any, table: Any, parent: Any, *given: Any, **more: Any
) -> Any:
    """A commit replaces rows of its own, and none that is there already."""
    return found_at(right, None, self, table, parent, *given, **more)


@FAMILY.replaces("KEY-2", (machine, "validate_statuses"))
def key_files_do_not_count(right: Any, statuses: Any, by: Any) -> Any:
    """What a status says of deletes is let in, and not committed."""
    verdict = right(statuses, by)
    rows = tuple(file for file in verdict.files if file.kind is FileKind.ROWS)
    return replace(verdict, files=rows)


@FAMILY.replaces("KEY-2", SENT)
def key_files_go_with_the_call(right: Any, self: Any, call: PreparedCommit) -> CommitOutcome:
    """Key files are removed when they were read, whatever becomes of the commit."""
    _removed(call, call.proposal.read_once)
    outcome: CommitOutcome = right(self, call)
    return outcome


@FAMILY.replaces("KEY-3", (upsert_commit, "resolve_changes"))
def statuses_out_of_order(right: Any, index: Any, changes: Sequence[Change], *given: Any) -> Any:
    """The status that was named last wins, whatever its offsets."""
    turned = [
        replace(each, keys=replace(each.keys, offsets=each.keys.offsets + (at << 40)))
        for at, each in enumerate(changes)
    ]
    return right(index, turned, *given)


@FAMILY.replaces("KEY-4", FOUND)
def rows_before_their_deletes(right: Any, self: Any, *given: Any, **more: Any) -> Deletions:
    """The call brings the rows; what they replace dies with none."""
    found: Deletions = right(self, *given, **more)
    return Deletions(counts=found.counts)


@FAMILY.patches("KEY-5")
def kept_over_a_refusal() -> tuple[Planted, ...]:
    """What was found for a head is said again of the next one."""
    right, known = KeyedRows.build_deletions_by_key, {}

    def found(self: Any, table: Any, parent: Any, written: Any, **more: Any) -> Deletions:
        paths = tuple(file.path for file in written)
        made = right(self, table, parent, written, **more)
        before = known.setdefault((id(self), paths), made)
        return replace(before, beneath=made.beneath)

    return ((KeyedRows, "build_deletions_by_key", found),)


@FAMILY.replaces("KEY-5", FOUND)
def rebased_blindly(
    right: Any, self: Any, table: Any, parent: Any, *given: Any, **more: Any
) -> Any:
    """What others committed last is not looked at: positions are those of the head before."""
    snapshots = snapshots_by_id(table.metadata)
    before = snapshots.get(parent.parent_snapshot_id) if parent else None
    foreign = parent is not None and not any(
        "headgate" in name for name in summary_properties_of(parent)
    )
    head = before if foreign and before else parent
    return found_at(right, head, self, table, parent, *given, **more)


@FAMILY.replaces("KEY-6", FOUND)
def two_delete_files_for_one(right: Any, self: Any, *given: Any, **more: Any) -> Deletions:
    """A delete file is added beside the one that it should replace."""
    return replace(right(self, *given, **more), retired=())


@FAMILY.replaces("KEY-6", (DeadRows, "dead_positions_of"))
def forgets_who_was_dead(_right: Any, *_: Any) -> BitMap64:
    """A delete file holds what dies now, and not what was dead before."""
    return BitMap64()


@FAMILY.replaces("OUTCOME-1", SENT)
def retired_before_proof(right: Any, self: Any, call: PreparedCommit) -> CommitOutcome:
    """Delete files that a call replaces are removed before anybody knows whether it landed."""
    retired = {entry.data_file.file_path for entry in call.proposal.deletions.retired}
    added = {file.file_path for file in call.proposal.deletions.added}
    _removed(call, retired - added)
    outcome: CommitOutcome = right(self, call)
    return outcome


@FAMILY.patches("KEY-7")
def index_ahead_of_its_head() -> tuple[Planted, ...]:
    """Files that were not committed, or are gone again, are looked up as if they were there."""
    followed, right = KeyedRows._read_head_and_follow, KeyedRows.build_deletions_by_key
    seen: dict[int, dict[str, Any]] = {}

    def ahead(self: Any, table: Any, parent: Any, columns: Any) -> Head:
        head = followed(self, table, parent, columns)
        others = seen.setdefault(id(self), {})
        for path in others:
            unread = path not in head.data and path not in self._index.numbers
            if unread and path in self._read:
                self._index.add_file(path, self._read[path])
        return replace(head, data={**others, **head.data})

    def found(self: Any, table: Any, parent: Any, written: Any, **more: Any) -> Deletions:
        made: Deletions = right(self, table, parent, written, **more)
        number = table.metadata.next_sequence_number()
        for file in more["row_files"]:
            seen[id(self)][file.file_path] = upsert_commit.Target.from_data_file(file, number)
        return made

    return (
        (KeyedRows, "_read_head_and_follow", ahead),
        (KeyedRows, "build_deletions_by_key", found),
    )


@FAMILY.replaces("KEY-9", (position_lookup, "_count_effects_on_keys"))
def absent_ones_are_deleted(right: Any, *given: Any) -> Any:
    """A delete without a row counts as one with a row."""
    counts = right(*given)
    return replace(counts, deleted=counts.deleted + counts.absent, absent=0)


@FAMILY.replaces("KEY-10", (position_lookup, "_count_effects_on_keys"))
def updates_are_inserts(right: Any, *given: Any) -> Any:
    """A record that replaced a row counts as one that inserted it."""
    counts = right(*given)
    return replace(counts, inserted=counts.inserted + counts.updated, updated=0)


def _removed(call: PreparedCommit, paths: Any) -> None:
    for path in sorted(paths):
        with suppress(OSError):
            call.table.io.delete(path)
