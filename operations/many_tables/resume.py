"""Resumes suspended tables: an event on the control topic, and the ledger's answer (SUSPEND-5)."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from headgate.config.multi_table_settings import CreateFrom, TablesSettings
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord, Suspended
from headgate.control_protocol.errors import (
    ConfigurationError,
    RetryLater,
    TableMissing,
    TableStillSuspended,
)
from headgate.control_protocol.events import Resume
from headgate.operations.access.open_secondary_tables import require_many_tables
from headgate.operations.access.tables import open_tables_for_reading
from headgate.operations.control.pause import LOOKED_AT_S, default_patience_s, pause_or_resume_sink
from headgate.runtime.sink_tables import SinkTables

_GONE_HINT = (
    "restore it, and ask again; or name it, and the sink creates it again if tables.create says how"
)


def resume_tables(
    settings: SinkSettings, names: Collection[str], patience_s: float | None = None
) -> tuple[str, ...]:
    """Ask the running sink to fill these suspended tables again; without names, all of them.

    A table that is gone is created again if it is named and the sink can create it (LEDGER-2).
    Returns the names of those that were asked for; those that are resuming already are not asked
    again. Raises ``TableStillSuspended`` if something is still wrong,
    ``ConfigurationError`` for a table that is not suspended, and as ``pause``.
    """
    require_many_tables(settings.tables)
    with open_tables_for_reading(settings) as tables:
        suspended, gone = _read_suspended_and_gone_tables(tables)
    strangers = sorted(set(names) - suspended.keys())
    if strangers or not suspended:
        raise ConfigurationError(
            f"{', '.join(strangers)} is not suspended" if strangers else "no table is suspended",
            "headgate tables SINK lists those that are",
        )
    asked = {name: suspended[name] for name in (names or suspended)}
    kept = {
        name
        for name in asked
        if name in gone and not (names and _can_create_again(settings.tables, name))
    }
    resumed = {n: each for n, each in asked.items() if n not in kept and not each.resuming}
    refused = [f"{name} stays suspended: {suspended[name].why}" for name in sorted(kept)]
    if kept == asked.keys():
        raise TableStillSuspended("; ".join(refused), _GONE_HINT)

    def is_answered(record: CommitRecord) -> bool:
        now = {each.table: each for each in record.suspended}
        return all(
            name not in now or now[name].resuming or now[name].since_ms > before.since_ms
            for name, before in resumed.items()
        )

    still: list[str] = []
    if resumed:  # a RESUME without tables would end a pause of the whole sink
        event = Resume(tuple(sorted(resumed)))
        record = pause_or_resume_sink(settings, event, is_answered, patience_s)
        left = [p for p in record.suspended if p.table in resumed and not p.resuming]
        still = [f"{suspended.table} stays suspended: {suspended.why}" for suspended in left]
    if still or refused:
        hint = "fix it, and try again" if still else _GONE_HINT
        raise TableStillSuspended("; ".join((*still, *refused)), hint)
    return tuple(sorted(resumed))


def resume_and_wait_until_open(
    settings: SinkSettings, names: Collection[str], patience_s: float | None = None
) -> tuple[str, ...]:
    """Resume those of the tables that are suspended, and wait until they take rows.

    Without names, all that are suspended, but for those that are gone: only by name are these
    created again. Returns the names of those that were suspended. Raises as ``resume_tables``, and
    ``RetryLater`` if one does not open within ``patience_s``.
    """
    require_many_tables(settings.tables)
    with open_tables_for_reading(settings) as tables:
        suspended, gone = _read_suspended_and_gone_tables(tables)
    wanted = set(names) if names else suspended.keys() - set(gone)
    resumed = tuple(sorted(suspended.keys() & wanted))
    if any(not suspended[name].resuming for name in resumed):
        resume_tables(settings, resumed, patience_s)
    _wait_until_open(settings, resumed, gone, patience_s)
    return resumed


def _wait_until_open(
    settings: SinkSettings,
    names: Collection[str],
    gone: Collection[str],
    patience_s: float | None,
) -> None:
    """Wait until the tables take rows; those that were ``gone``, until their first rows are in."""
    patience_s = default_patience_s(settings.coordinator) if patience_s is None else patience_s
    until_s = time.monotonic() + patience_s + settings.coordinator.commit_interval_ms / 1_000
    while True:
        with open_tables_for_reading(settings) as tables:
            waiting = _find_tables_not_open_yet(tables, names, gone)
        if not waiting:
            return
        if time.monotonic() >= until_s:
            name, first = min(waiting.items())
            raise RetryLater(f"{', '.join(sorted(waiting))}: {name} {first.why}", first.hint)
        time.sleep(LOOKED_AT_S)


class _NotOpenYet(NamedTuple):
    """Why a table takes no rows yet, and what to do."""

    why: str
    hint: str


def _find_tables_not_open_yet(
    tables: SinkTables, names: Collection[str], gone: Collection[str]
) -> dict[str, _NotOpenYet]:
    """Return, by table that takes no rows yet, why not and what to do."""
    delivered = "it receives what is pending for it first (headgate tables SINK); then ask again"
    suspended = _read_suspended_and_gone_tables(tables).by_name
    resuming = _NotOpenYet("is resuming, but not open yet", delivered)
    waiting = {
        name: resuming
        if suspended[name].resuming
        else _NotOpenYet(f"stays suspended: {suspended[name].why}", "mend that, and ask again")
        for name in names
        if name in suspended
    }
    if recreated := (set(names) & set(gone)) - waiting.keys():
        history = tables.reader.history()
        pending = {each.table for each in tables.read_undelivered_commits(history.current_record)}
        there = recreated - set(tables.find_missing_tables(recreated))
        for name in recreated - (there & history.filled.keys() - pending):
            waiting[name] = _NotOpenYet(
                "was gone, and is created again with the next record for it",
                "ask again once it has taken one (headgate tables SINK)",
            )
    return waiting


def _can_create_again(tables: TablesSettings, table: str) -> bool:
    """Return whether the sink can create the table again (LEDGER-2)."""
    return tables.create.schema is not CreateFrom.OFF and tables.routing.may_create(table)


class _SuspendedTables(NamedTuple):
    """The suspended tables, and the names of those that are gone."""

    by_name: dict[str, Suspended]
    gone: set[str]


def _read_suspended_and_gone_tables(tables: SinkTables) -> _SuspendedTables:
    record = tables.reader.history().current_record
    suspended = {each.table: each for each in (record.suspended if record else ())}
    dropped = {n for n, each in suspended.items() if each.why.startswith(TableMissing.code)}
    return _SuspendedTables(suspended, {name for name in dropped if not tables.exists(name)})
