"""Deletes rows and quarantined records that match a predicate, while the sink runs or not.

Each table takes a call of its own (``tables/iceberg/row_deletion.py``): a crash in between leaves
some tables done, and the same command does the rest. To the sink these are foreign commits: no
record is read again, and no later record is kept out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headgate.config.keyed_table_checks import KeysByRoute
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import DeletionRefused, DeletionUnsettled
from headgate.control_protocol.table_format import PredicateDeletion
from headgate.control_protocol.table_history import TableReader
from headgate.operations.access.tables import open_every_routed_table
from headgate.operations.audit.quarantine import COLUMNS
from headgate.operations.control.maintain import waiter_for_calm_after_commit
from headgate.operations.control.operator_claim import current_actor, try_announce_command
from headgate.operations.control.set_offsets import require_claimable_record
from headgate.runtime.sink_tables import SinkTables, open_tables_creating_nothing


@dataclass(frozen=True, slots=True)
class RowDeletion:
    """What to delete:

    ``where`` in the sink's tables or only in ``tables``, ``quarantine_where`` in its quarantine.
    """

    where: str | None = None
    quarantine_where: str | None = None
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deleted:
    """How many rows of a table match, and in how many files; or how many were deleted.

    ``pending``: rows that are still pending for the table; ``expired``: rows that were pending for
    too long, and that ``--reread`` would write (SUSPEND-6). They were not searched.
    """

    table: str
    rows: int
    files: int
    pending: int = 0
    expired: int = 0


@dataclass(frozen=True, slots=True)
class _TableDeletion:
    table: str
    deletion: PredicateDeletion
    pending: int
    expired: int


def plan_deletion(settings: SinkSettings, asked: RowDeletion) -> list[Deleted]:
    """Return what would be deleted now, table by table; nothing is changed.

    Raises ``PredicateUnfit`` and ``DeletionRefused`` for an invalid request, and what other
    commands raise for a table that is not as the sink left it.
    """
    planned = []
    with _open_deletions(settings, asked) as (_, every):
        for each in every:
            matching = each.deletion.count_matching()
            planned.append(
                Deleted(each.table, matching.rows, matching.files, each.pending, each.expired)
            )
    return planned


def carry_out_deletion(settings: SinkSettings, asked: RowDeletion) -> Iterator[Deleted]:
    """Delete what matches by then; yield the result for each table.

    Raises as ``plan_deletion`` if something is refused before anything is deleted, and
    ``DeletionUnsettled``: the tables before that one are done.
    """
    with _open_deletions(settings, asked) as (tables, every):
        for each in every:
            each.deletion.require_deletable()
        for each in every:
            unsettled = each.deletion.delete_and_return_doubt(
                waiter_for_calm_after_commit(tables, each.table)
            )
            if unsettled:
                raise DeletionUnsettled(
                    f"it is not certain that the rows of {each.table} are deleted: {unsettled}",
                    "run the same command again: nothing is done twice",
                )
            deleted = each.deletion.deleted_count
            yield Deleted(each.table, deleted.rows, deleted.files, each.pending, each.expired)
    try_announce_command(
        settings, "delete"
    )  # not what: the predicate may name the person to forget


@contextmanager
def _open_deletions(
    settings: SinkSettings, asked: RowDeletion
) -> Iterator[tuple[SinkTables, list[_TableDeletion]]]:
    """Yield each table with its deletion, and what is pending. Raises as ``plan_deletion``."""
    with open_tables_creating_nothing(settings) as opened:
        opened.require_row_deletion_format()
        _require_settings_allow_deletion(opened, asked)
        record = require_claimable_record(settings, opened.reader.view())
        pending = opened.read_undelivered_commits(record)
        known, expired = [settings.table.identifier], dict[str, int]()
        if settings.tables:
            with open_every_routed_table(opened, opened.reader.history()) as tables:
                known = sorted({*tables.tables, *tables.unread})
                for name, error in tables.unread.items():  # its rows would stay, unsaid
                    if asked.where is not None and (name in asked.tables or not asked.tables):
                        raise error
                expired = {
                    n: _count_expired_rows_not_rewritten(record, each.reader)
                    for n, each in tables.tables.items()
                }
        if strange := sorted(set(asked.tables) - set(known)):
            raise DeletionRefused(
                f"{', '.join(strange)} is not a table of sink {settings.name}",
                f"it has: {', '.join(known)}",
            )
        where = asked.where
        predicates = {} if where is None else dict.fromkeys(asked.tables or known, where)
        keys = KeysByRoute.from_settings(settings)
        if keyed := sorted(filter(keys.replaces_rows_of, predicates)):
            raise _keyed_tables_error(", ".join(keyed))
        if asked.quarantine_where is not None:
            predicates[settings.quarantine.table] = asked.quarantine_where
        yield (
            opened,
            [
                _TableDeletion(
                    table,
                    _deletion_from_table(opened, table, predicate),
                    sum(
                        pending_commit.rows
                        for pending_commit in pending
                        if pending_commit.table == table
                    ),
                    expired.get(table, 0),
                )
                for table, predicate in predicates.items()
            ],
        )


def _require_settings_allow_deletion(tables: SinkTables, asked: RowDeletion) -> None:
    settings = tables.settings
    if asked.where is not None and settings.replaces_primary_rows:
        raise _keyed_tables_error(settings.table.identifier)
    if asked.quarantine_where is not None and not settings.quarantine.keeps_rejected_records:
        raise DeletionRefused(
            f"sink {settings.name} has no quarantine", "leave --quarantine-where out"
        )


def _count_expired_rows_not_rewritten(record: CommitRecord, reader: TableReader) -> int:
    """Return how many rows of the table expired and were not written again."""
    view = reader.view()
    done = view.record.replayed.expired if view.record and view.record.replayed else None
    left = (d for d in record.expired if d.secondary == view.uuid and d.manifest)
    return sum(
        pending_commit.rows
        for pending_commit in left
        if done is None or pending_commit.transaction > done
    )


def _keyed_tables_error(tables: str) -> DeletionRefused:
    return DeletionRefused(
        f"{tables} has a key: its rows are what its source says, which would bring them back",
        "send a record that deletes the key (docs/guides/upserts-and-deletes.md), then headgate "
        "maintain; of other tables of the sink name the ones that are meant",
    )


def _deletion_from_table(tables: SinkTables, table: str, predicate: str) -> PredicateDeletion:
    columns = _record_coordinate_columns(tables, table)
    spec, sink = tables.table_spec_of(table), tables.settings.name
    return tables.require_row_deletion_format().row_deletion(
        spec, sink, predicate, asked_by=current_actor(), coordinate_columns=columns
    )


def _record_coordinate_columns(tables: SinkTables, table: str) -> tuple[str, str, str] | None:
    """Return the columns that say of which record a row of the table is."""
    settings = tables.settings
    if settings.quarantine.keeps_rejected_records and table == settings.quarantine.table:
        return COLUMNS
    part = settings.tables or settings.table
    return part.record_columns.coordinate_columns
