"""Runs maintenance in a thread of the coordinator's process; no failure there ends the sink."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from headgate.control_protocol.record import UNNAMED, CommitRecord
from headgate.control_protocol.redacted_log import redacted_logger
from headgate.control_protocol.whose_thread import for_the_same_sink
from headgate.sink.followers import iceberg_table
from headgate.sink.maintenance.rounds import Done, Round
from headgate.sink.routed_tables import section_of
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.gate import Gates

_JOIN_S = 5.0

_log = redacted_logger("headgate.maintenance")


class Maintenance:
    """Starts its thread when it is created; ``close`` ends it, within the call under way.

    ``ended`` receives each table's round, and whether a part of it failed.
    """

    def __init__(
        self,
        settings: SinkSettings,
        catalog: Catalog,
        gates: Gates,
        ended: Callable[[Done, bool], None] = lambda *_: None,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._gates = gates
        self._ended = ended
        self._ending = threading.Event()
        self._unfit: dict[str, dict[str, str]] = {}
        self._thread = threading.Thread(
            target=for_the_same_sink(self._run), name="headgate-maintenance", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        for table in self._gates.known():
            self._gates.of(table).landed()  # nobody waits for a commit that never comes
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._ending.wait(self._settings.maintenance.interval_ms / 1000):
            try:
                locations = self._locations()
            except Exception as error:  # noqa: BLE001 - it is tried again an interval later
                _log.warning("table maintenance is suspended for now: %s", error)
                continue
            for table in locations:
                if self._ending.is_set():
                    return
                self._maintain(table, locations)

    def _maintain(self, table: str, locations: Mapping[str, str]) -> None:
        gate, coordinator = self._gates.of(table), self._settings.coordinator
        patience_s = (coordinator.commit_interval_ms + coordinator.commit_timeout_ms) / 1000
        one = Round(
            self._settings,
            self._catalog,
            table,
            beside=tuple(at for name, at in locations.items() if name != table),
            quiet=partial(gate.wait_for_a_commit, patience_s),
            gate=gate,
            ending=self._ending,
            unfit=self._unfit.setdefault(table, {}),
        )
        wanted, failed = self._settings.maintenance, False
        for asked, step in ((wanted.compact, one.compact), (wanted.orphans, one.remove_orphans)):
            try:
                if asked:
                    step()
            except Exception as error:  # noqa: BLE001 - storage and catalogs fail in many ways
                failed = True
                _log.warning("maintenance of %s is suspended for now: %r", table, error)
        if not self._ending.is_set():
            self._ended(one.done, failed)

    def _locations(self) -> dict[str, str]:
        record = None
        if not self._settings.apart:
            lead = iceberg_table(self._settings, self._catalog, self._settings.table.identifier)
            record = lead.read().record
        return locations(self._catalog, maintained(self._settings, record))


def maintained(settings: SinkSettings, record: CommitRecord | None) -> list[str]:
    """Return the sink's tables to maintain, the lead first; a ledger has no files.

    Beside a table of another kind it is the Iceberg quarantine alone.
    """
    if settings.apart:
        return [settings.quarantine.table]
    names = [] if settings.tables else [settings.table.identifier]
    names += [settings.quarantine.table] if settings.quarantine.keeps else []
    names += sorted(record.followers) if record else []
    return [name for name in dict.fromkeys(names) if name != UNNAMED and _wanted(settings, name)]


def _wanted(settings: SinkSettings, name: str) -> bool:
    section = section_of(settings.tables, name) if settings.tables else None
    return section is None or section.maintain


def locations(catalog: Catalog, names: Iterable[str]) -> dict[str, str]:
    """Return the locations of those tables that exist."""
    found = {}
    for name in names:
        try:
            found[name] = catalog.load_table(name).metadata.location
        except NoSuchTableError:
            continue
    return found
