"""The quarantine of a world that has one: which records are bad, and what a writer finds there."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

from simulation.payday import PACED, ROUTED_KEYS

from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.events import Destination, WrittenFile
from headgate.control_protocol.identifiers import SinkName, tag_name
from headgate.control_protocol.quarantine_policy import BadRecordLimits
from headgate.control_protocol.testing import FakeCatalog, FakeClock, FakeStorage, SourceRecord

ASIDE = "lake.records_aside"
OTHER = "lake.records_other"
THIRD = "lake.records_third"
LEDGERS = 0.15
SHARE = 0.25
CHANGEABLE = 0.5
NEVER_MS = 10**9
NO_LIMITS = BadRecordLimits(per_thousand_max=1_000)


class Quarantine:
    """Some records are always bad. Others change: schemas and settings do, between two readings.

    It draws from dice of its own, so that a world without one is what it would be anyway.
    """

    def __init__(
        self, seed: int, sink: SinkName, storage: FakeStorage, clock: FakeClock, *, ledger: bool
    ) -> None:
        dice = _dice(seed)
        dice.random()
        self._seed, self._sink, self._clock = seed, sink, clock
        self._bad = dice.choice((0.1, 0.3, 0.6))
        self._changes_ms = dice.choice((NEVER_MS, 200, 1_000))
        records_max = dice.choice((0, 0, 0, 0, 0, 0, 4, 10))
        self.limits = BadRecordLimits(1_000, records_max) if records_max else NO_LIMITS
        self.diverts = False
        """Some table had trouble: good records may be here (SUSPEND-1)."""
        self.kills_left = dice.choice((0, 1, 3))
        """How often a coordinator dies between decision and delivery."""
        self.catalogs: dict[str, Any] = {
            ASIDE: FakeCatalog(storage=storage, table=ASIDE, uuid="uuid-aside")
        }
        self._routes_change = dice.random() < 0.5
        if dice.random() < 0.5:
            self.catalogs[OTHER] = FakeCatalog(storage=storage, table=OTHER, uuid="uuid-other")
        self.ledger = ledger and is_ledger(seed)
        """Whether the primary table takes no rows: they are routed to tables that START does not
        name."""
        if self.ledger:
            for name in (OTHER, THIRD):
                self.catalogs[name] = FakeCatalog(storage=storage, table=name, uuid=f"uuid-{name}")
        self.goes_third: Callable[[SourceRecord], bool] | None = None
        """Which records go to the third table for good, where tables of routes have keys."""
        self.root_of: Callable[[object, Any], str] | None = None
        """Where a writer believes that a table has its data, if its owner moves it."""
        self.drafted: dict[str, tuple[WrittenFile, ...]] = {}
        """What each manifest holds that was ever drafted."""
        self.records: dict[str, tuple[SourceRecord, ...]] = {}
        """And the records in that."""
        self._storage = storage

    @property
    def named(self) -> tuple[str, ...]:
        """The secondary tables that START names."""
        return (ASIDE,) if self.ledger else tuple(self.catalogs)

    def misplaced(self, table: str, record: SourceRecord) -> bool:
        """Whether a secondary table holds what it can never have been given."""
        always = self.always(record)
        if self.diverts and table == ASIDE:
            return False
        return always is (self.ledger and table != ASIDE)

    def was_drafted(self, pending_commit: PendingCommit, files: Sequence[WrittenFile]) -> None:
        """Key files go when they are delivered: what was in them is kept here."""
        stored = self._storage.files
        self.drafted[pending_commit.manifest] = tuple(files)
        self.records[pending_commit.manifest] = tuple(
            r for file in files for r in stored[file.path]
        )

    def takes(self, life: object) -> Callable[[SourceRecord], tuple[Destination, str]] | None:
        """Which routed table takes a good record, and where that lies, as a writer finds it."""
        if not self.ledger:
            return None
        route = self.goes_third or self.router(life)

        def place(record: SourceRecord) -> tuple[Destination, str]:
            catalog = self.catalogs[THIRD if route(record) else OTHER]
            location = getattr(catalog, "location", f"memory://{catalog.table}")
            if self.root_of is not None:
                location = self.root_of(life, catalog).removesuffix("/data")
            return Destination(catalog.table, catalog.uuid), location

        return place

    @property
    def limited(self) -> bool:
        return self.limits.records_max > 0

    def bad(self, record: SourceRecord) -> bool:
        """Whether it is bad now."""
        changes = self._changeable(record)
        return self._is_bad(record, self._clock.now_ms // self._changes_ms if changes else 0)

    def always(self, record: SourceRecord) -> bool | None:
        """Whether it is bad whenever it is read; ``None``: that depends."""
        return None if self._changeable(record) else self._is_bad(record, 0)

    def _is_bad(self, record: SourceRecord, when: int) -> bool:
        return self._coin(record, when) < self._bad

    def _changeable(self, record: SourceRecord) -> bool:
        return self._changes_ms < NEVER_MS and self._coin(record, -2) < CHANGEABLE

    def _coin(self, record: SourceRecord, of: int) -> float:
        """The hash of whole numbers is the same in every process."""
        return hash((self._seed, record.partition, record.offset, of)) % 1_000 / 1_000

    def held(self) -> list[SourceRecord]:
        """What is in them under the sink's tag, as a writer reads it."""
        held: list[SourceRecord] = []
        for catalog in (self.catalogs[name] for name in self.named):
            if not catalog.reachable:
                raise Unreachable("the fake catalog is not reachable")
            tagged = catalog.snapshots[catalog.tags[tag_name(self._sink)]]
            held += [r for file in tagged.files for r in catalog.storage.files[file.path]]
        return held

    def router(self, life: object) -> Callable[[SourceRecord], int]:
        """Which secondary table takes a record; in some worlds another one in another process's
        life."""
        changes = str(life) if self._routes_change else ""
        return lambda record: self._coin(record, crc32(changes.encode())) < 0.5


def has_one(seed: int) -> bool:
    return _has_routes(seed) or _dice(seed).random() < SHARE


def is_ledger(seed: int) -> bool:
    """Whether its primary table takes no rows, unless the climate breaks the primary table."""
    if _has_routes(seed):
        return True
    return has_one(seed) and random.Random(f"a ledger in {seed}").random() < LEDGERS


def _has_routes(seed: int) -> bool:
    return seed in PACED or seed in ROUTED_KEYS


def _dice(seed: int) -> random.Random:
    return random.Random(f"a quarantine in {seed}")
