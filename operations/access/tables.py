"""Opens the sink's tables for commands, and finds those that its routes have filled.

Nothing is created, not even a catalog's own tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from headgate.config.multi_table_settings import OnMissing
from headgate.config.quarantine_settings import QuarantineSettings
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import PendingCommit, require_rollback_finished
from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    RetryLater,
    StopSink,
    TableMissing,
)
from headgate.control_protocol.ports import AllSecondaryTables, PrimaryTable
from headgate.control_protocol.table_history import History
from headgate.coordinator.recovery import record_to_resume_from
from headgate.operations.status.report import MEND_TABLES
from headgate.runtime.dropped_table_detection import require_table_never_filled_before
from headgate.runtime.sink_tables import (
    Answer,
    SinkTables,
    TableAtRest,
    open_tables_creating_nothing,
)


@contextmanager
def open_tables_for_reading(settings: SinkSettings) -> Iterator[SinkTables]:
    """Yield the sink's tables, its own opened for reading.

    Raises what opening that one raises; ``TableMissing`` without one.
    """
    with open_tables_creating_nothing(settings) as tables:
        assert tables.reader is not None, "opened here, so that the caller need not expect errors"
        yield tables


@contextmanager
def open_tables_for_audit(settings: SinkSettings, *, asks_group: bool) -> Iterator[SinkTables]:
    """Yield the sink's tables for an examination.

    Raises as ``open_tables_for_reading``. If the sink has filled a table that is gone, as the notes
    next to the group's offsets show, raises what a start would stop with.
    """
    with ExitStack() as opening:
        try:
            tables = opening.enter_context(open_tables_for_reading(settings))
        except TableMissing as error:
            raise (
                find_start_error_of_missing_table(settings) if asks_group else None
            ) or error from error
        yield tables  # what else is missing there is another table


@contextmanager
def open_tables_for_claim(
    settings: SinkSettings,
) -> Iterator[tuple[PrimaryTable, AllSecondaryTables]]:
    """Yield the sink's table and its secondary tables, for a person's claim."""
    with (
        open_tables_creating_nothing(settings) as tables,
        closing(tables.open_primary()) as primary,
        closing(tables.open_secondaries()) as secondaries,
    ):
        yield primary, secondaries


@contextmanager
def open_primary(settings: SinkSettings) -> Iterator[PrimaryTable]:
    """Yield the sink's table alone."""
    with open_tables_creating_nothing(settings) as tables, closing(tables.open_primary()) as table:
        yield table


def find_unfinished_rollback_error(tables: SinkTables) -> StopSink | None:
    """Return the error with which a coordinator would stop at the sink's table, if it would."""
    settings = tables.settings
    try:
        require_rollback_finished(
            record_to_resume_from(tables.reader.view(), settings.coordinator), settings.name
        )
    except StopSink as error:
        return error
    return None


def find_start_error_of_missing_table(settings: SinkSettings) -> StopSink | None:
    """Return the error with which a start would stop if there is no table, if it would.

    ``None`` too if Kafka does not answer or lacks something: that is reported by itself.
    """
    try:
        require_table_never_filled_before(settings)
    except StopSink as error:
        return error
    except (RetryLater, ConfigurationError):
        pass
    return None


def find_start_error_of_table(settings: SinkSettings) -> HeadgateError | None:
    """Return the error that a first start would stop with at the table, or at its future place.

    Such a start leaves no notice, since there is no control topic yet. Nothing is written. ``None``
    too if something does not answer: that is reported by itself.
    """
    from headgate.runtime.start_checks import require_creatable_table  # imports pandas

    try:
        with open_tables_creating_nothing(settings) as tables:
            tables.require_fit_table()
    except TableMissing:
        if missing := find_start_error_of_missing_table(settings):
            return missing
    except RetryLater:
        return None
    except HeadgateError as error:
        return error
    else:
        return None
    try:
        require_creatable_table(settings)
    except HeadgateError as error:
        return error
    return None


@dataclass(frozen=True, slots=True)
class OpenedTables:
    """Tables by their names. ``unread``: those that may exist and were not read, and why."""

    tables: Mapping[str, TableAtRest]
    unread: Mapping[str, HeadgateError]


def open_tagged_and_known_tables(
    tables: SinkTables, known_own: Collection[str]
) -> Iterator[tuple[str, Answer]]:
    """Yield, by name, the tables that have this sink's tag, and the ``known_own`` ones.

    Today's routes may not name the latter. A table that only has a fitting name, and cannot be
    read, is somebody else's. The caller closes the readers.
    """
    names = {
        *tables.find_tables_that_routes_can_name(),
        *known_own,
    } - names_of_primary_and_quarantine(tables)
    return _open_own_among(tables, names, known_own)


def _open_own_among(
    tables: SinkTables, names: Collection[str], known_own: Collection[str]
) -> Iterator[tuple[str, Answer]]:
    for name, answer in tables.open_each_existing_for_reading(sorted(names)):
        if name in known_own or (isinstance(answer, TableAtRest) and answer.tagged):
            yield name, answer
        elif isinstance(answer, TableAtRest):
            answer.reader.close()


@contextmanager
def open_every_routed_table(tables: SinkTables, history: History) -> Iterator[OpenedTables]:
    """Yield, by name, the sink's existing tables, and those of former routes in the ledger.

    A table that shares only the name, and neither UUID nor the sink's tag, belongs to somebody
    else. One that cannot be read stops no other.
    """
    opened, unread = dict[str, TableAtRest](), dict[str, HeadgateError]()
    with ExitStack() as opening:
        for name, answer in open_tagged_and_known_tables(
            tables, routed_tables_in_ledger(tables, history)
        ):
            if isinstance(answer, HeadgateError):
                unread[name] = answer
                continue
            opening.enter_context(closing(answer.reader))
            if _is_own_table(name, answer, history):
                opened[name] = answer
        yield OpenedTables(opened, unread)


def open_routed_tables_one_by_one(
    tables: SinkTables, history: History, named: Collection[str]
) -> Iterator[tuple[str, Answer]]:
    """Yield the tables of ``open_every_routed_table``, and those ``named``, with their names.

    Each is closed before the next is opened, since a reader may hold a connection. An error is that
    of one table.
    """
    sure = routed_tables_in_ledger(tables, history)
    own = names_of_primary_and_quarantine(tables)
    names = {*(tables.find_tables_that_routes_can_name() - own), *sure, *named}
    for name, answer in _open_own_among(tables, names, sure.union(named)):
        if isinstance(answer, HeadgateError):
            yield name, answer
            continue
        with closing(answer.reader):
            if name in named or _is_own_table(name, answer, history):
                yield name, answer


def routed_tables_in_ledger(tables: SinkTables, history: History) -> set[str]:
    """Return the tables that the ledger has decided for, and those with pending commits."""
    pending = (pending_commit.table for pending_commit in _pending_commits(history))
    return {
        *history.filled,
        *count_decided_rows_by_table(tables.settings.quarantine, history),
        *pending,
    } - names_of_primary_and_quarantine(tables)


def _is_own_table(name: str, table: TableAtRest, history: History) -> bool:
    return table.tagged or history.filled.get(name, table.uuid) == table.uuid


def names_of_primary_and_quarantine(tables: SinkTables) -> set[str]:
    return {tables.name, tables.settings.quarantine.table}


def _pending_commits(history: History) -> tuple[PendingCommit, ...]:
    return history.current_record.pending_commits if history.current_record else ()


def describe_unusable_tables(tables: SinkTables, history: History) -> list[str]:
    """Return what a person should know about the tables: which are suspended or gone (SUSPEND-1,
    LEDGER-2)."""
    settings = tables.settings
    if not settings.tables:
        return []
    suspended = history.current_record.suspended if history.current_record else ()
    notes = [f"{each.table} is suspended: {each.why}" for each in suspended]
    gone = tables.find_missing_tables(history.filled.keys() - {each.table for each in suspended})
    creates = settings.tables.on_missing is OnMissing.CREATE
    then = "it is created again" if creates else "it will be suspended"
    return notes + [f"{name} was filled, and is gone: {then}" for name in gone]


def check_routed_tables(settings: SinkSettings) -> str:
    """Say that the tables which the ledger remembers exist and take rows (SUSPEND-1, LEDGER-2).

    Raises ``TableMissing``, and what opening the ledger raises.
    """
    with open_tables_for_reading(settings) as tables:
        history = tables.reader.history()
        notes = describe_unusable_tables(tables, history)
    if notes:
        raise TableMissing(
            "; ".join(notes),
            MEND_TABLES,
        )
    return f"{len(history.filled)} were filled, and none of them is gone or suspended"


def count_decided_rows_by_table(quarantine: QuarantineSettings, history: History) -> dict[str, int]:
    """Return, by name, how many rows the ledger's retained records decided for a routed table.

    Each pending commit counts once; commits that name it again only carry it on.
    """
    pending_commits = {
        pending_commit
        for commit in history.commits
        for pending_commit in commit.record.pending_commits
        if pending_commit.manifest
    }
    rows: dict[str, int] = {}
    for pending_commit in pending_commits:
        if pending_commit.table != quarantine.table:
            rows[pending_commit.table] = rows.get(pending_commit.table, 0) + pending_commit.rows
    return rows
