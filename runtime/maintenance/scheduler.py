"""Runs maintenance in a thread of the coordinator's process; no failure there ends the sink."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from pyiceberg.catalog import Catalog

from headgate.config.multi_table_settings import TablesSettings
from headgate.config.routed_tables import section_of_table
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import UNNAMED
from headgate.control_protocol.current_sink import bound_to_current_sink
from headgate.control_protocol.errors import HeadgateError, TableMissing
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.runtime.maintenance.table_maintenance import Done, Round
from headgate.runtime.sink_tables import SinkTables
from headgate.tables.iceberg.commit_mutex import CommitLocks
from headgate.tables.iceberg.load_each_table import load_each_table
from headgate.tables.iceberg.table import IcebergTable

ORPHANS_AT_ONCE = 20
"""In so many tables a round looks for orphans: it lists all files of each."""

_JOIN_S = 5.0

OnEnded = Callable[[Done, bool], None]
"""Receives each table's turn, and whether a part of it failed."""

_log = redacted_logger("headgate.maintenance")


class Maintenance:
    """Starts its thread when it is created; ``close`` ends it, within the call under way.

    Each round gives each table at most one commit's work, in turn, so that none waits for another
    one's thousands of files. ``ended`` receives each table's turn, and whether a part of it failed.
    """

    def __init__(
        self,
        settings: SinkSettings,
        catalog: Catalog,
        commit_locks: CommitLocks,
        ended: OnEnded = lambda *_: None,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._commit_locks = commit_locks
        self._ended = ended
        self._ending = threading.Event()
        self._unfit: dict[str, dict[str, str]] = {}
        self._limits_ms: dict[str, int] = {}
        self._searched = ""
        self._thread = threading.Thread(
            target=bound_to_current_sink(self._run_rounds), name="headgate-maintenance", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        for table in self._commit_locks.table_names():
            self._commit_locks.find_or_add_lock(
                table
            ).note_landing()  # nobody waits for a commit that never comes
        self._thread.join(_JOIN_S)

    def _run_rounds(self) -> None:
        interval_s = self._settings.maintenance.interval_ms / 1000
        more = False
        while not self._ending.wait(0 if more else interval_s):
            try:
                more = self._run_round_and_has_more(search_orphans=not more)
            except Exception as error:  # noqa: BLE001 - it is tried again an interval later
                more = False
                _log.warning("table maintenance is suspended for now: %s", error)

    def _run_round_and_has_more(self, *, search_orphans: bool) -> bool:
        """Give each table its turn; return whether one has more to do."""
        primary = None
        if not self._settings.has_quarantine_of_other_format:
            settings = self._settings
            name, branch = settings.table.identifier, settings.table.branch
            primary = IcebergTable(self._catalog, name, settings.name, branch)
        view = primary.read() if primary else None
        suspended = suspension_reasons(view)
        names = [name for name in tables_to_maintain(self._settings, view) if name not in suspended]
        # Each costs a call: only who looks for orphans has to know where the others are (ORPHAN-1).
        searches = search_orphans and self._settings.maintenance.orphans
        asked = tables_with_files(self._settings, view) if searches else names
        places = find_table_locations(self._catalog, asked, self._ending)
        for name in names:
            if error := places.unread.get(name):
                _log.warning("maintenance of %s is suspended for now: %s", name, error)
                self._ended(Done(name, failed=str(error)), True)  # noqa: FBT003 - a callback
        there = [name for name in names if name in places.locations]
        self._unfit = {name: self._unfit.get(name, {}) for name in there}
        searched = self._take_next_tables_to_search_orphans(there) if searches else ()
        first = random.randrange(len(there)) if there else 0
        more = False
        for name in (*there[first:], *there[:first]):
            if self._ending.is_set():
                return False
            more |= self._maintain_table_and_has_more(name, places, search_orphans=name in searched)
        return more

    def _take_next_tables_to_search_orphans(self, names: Sequence[str]) -> Sequence[str]:
        """Return the tables whose orphans are looked for: those behind the last ones."""
        if len(names) <= ORPHANS_AT_ONCE:
            return names
        by_name = sorted(names)
        first = next((n for n, name in enumerate(by_name) if name > self._searched), 0)
        found = [*by_name[first:], *by_name[:first]][:ORPHANS_AT_ONCE]
        self._searched = found[-1]
        return found

    def _maintain_table_and_has_more(
        self, table: str, places: Locations, *, search_orphans: bool
    ) -> bool:
        """Run the wanted steps on one table, logging what fails; return whether more is to do."""
        commit_lock, coordinator = (
            self._commit_locks.find_or_add_lock(table),
            self._settings.coordinator,
        )
        calm_s = coordinator.commit_interval_ms / 2000
        patience_s = (coordinator.commit_interval_ms + coordinator.commit_timeout_ms) / 1000
        one = Round(
            self._settings,
            self._catalog,
            table,
            beside=places.other_locations(table),
            unread=tuple(places.unread),
            quiet=partial(commit_lock.wait_for_commit_unless_recent, patience_s, calm_s),
            commit_lock=commit_lock,
            ending=self._ending,
            unfit=self._unfit[table],
            limits_ms=self._limits_ms,
        )
        wanted = self._settings.maintenance
        steps = (
            (bool(wanted.rows_after_ms), one.expire_rows),
            (wanted.compact, partial(one.compact, at_most_one_commit=True)),
            (search_orphans, one.remove_orphans),
        )
        for asked, step in steps:
            try:
                if asked:
                    step()
            except Exception as error:  # noqa: BLE001 - storage and catalogs fail in many ways
                one.done.failed = repr(error)
                _log.warning("maintenance of %s is suspended for now: %r", table, error)
        if not self._ending.is_set():
            self._ended(one.done, bool(one.done.failed))
        return one.more and not one.done.failed


def begin_maintenance_if_wanted(
    tables: SinkTables, opening: ExitStack, ended: OnEnded | None
) -> None:
    """Maintain a coordinator's tables beside its commits, if wanted; ``opening`` ends it."""
    settings = tables.settings
    maintained = tables.maintained_format
    if settings.maintenance and maintained:
        at, callbacks = (maintained.catalog, maintained.commit_locks), (ended,) if ended else ()
        opening.callback(Maintenance(settings, *at, *callbacks).close)


def tables_to_maintain(settings: SinkSettings, primary: TableView | None) -> list[str]:
    """Return those of ``tables_with_files`` that the settings say are maintained."""
    return [
        name
        for name in tables_with_files(settings, primary)
        if is_maintenance_wanted(settings.tables, name)
    ]


def tables_with_files(settings: SinkSettings, primary: TableView | None) -> list[str]:
    """Return the sink's tables, the primary table first; a ledger has no files.

    ``primary`` as read: of many tables it knows those that were filled (LEDGER-2). Beside a table
    of another format it is the Iceberg quarantine alone. No file is an orphan (ORPHAN-1) unless the
    location of each of them is known, whether it is maintained or not.
    """
    if settings.has_quarantine_of_other_format:
        return [settings.quarantine.table]
    names = [] if settings.tables else [settings.table.identifier]
    names += [settings.quarantine.table] if settings.quarantine.keeps_rejected_records else []
    if primary is not None:
        names += sorted({*(primary.record.secondaries if primary.record else ()), *primary.filled})
    return [name for name in dict.fromkeys(names) if name != UNNAMED]


def suspension_reasons(primary: TableView | None) -> Mapping[str, str]:
    """Return why suspended tables are suspended: what becomes of them is for a person to decide
    (SUSPEND-5)."""
    record = primary.record if primary else None
    return {each.table: each.why for each in record.suspended} if record else {}


def is_maintenance_wanted(tables: TablesSettings, name: str) -> bool:
    section = section_of_table(tables, name) if tables else None
    return section is None or section.maintain


@dataclass(frozen=True, slots=True)
class Locations:
    """Where tables lie, by their names. ``unread``: those that exist, perhaps, and why not here."""

    locations: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, HeadgateError] = field(default_factory=dict)

    def other_locations(self, table: str) -> tuple[str, ...]:
        """Return the locations of the others."""
        return tuple(at for name, at in self.locations.items() if name != table)


def find_table_locations(
    catalog: Catalog, names: Sequence[str], ending: threading.Event | None = None
) -> Locations:
    """Return the places of those tables that exist. A table that cannot be read stops no other."""
    found, unread = dict[str, str](), dict[str, HeadgateError]()
    for name, answer in load_each_table(catalog, names):
        if ending is not None and ending.is_set():
            break
        if isinstance(answer, TableMissing):
            continue
        if isinstance(answer, HeadgateError):
            unread[name] = answer
        else:
            found[name] = answer.metadata.location
    return Locations(found, unread)
