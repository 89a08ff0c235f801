"""Measures a coordinator of many tables: its machine and driver, real tables, a log in memory.

    python benchmarks/many_tables.py [--tables 1000] [--touched 100] [--intervals 5] [--wait-ms 80]

SQLite catalog and warehouse in a temporary folder; nobody reads or writes data files, which commits
never open. Printed are CPU-milliseconds per interval and touched table, the bytes of the longest
START and ACK, the time from the lead to the first START of a second epoch, which finds all tables
filled, and how long an interval and its deliveries take when the catalog waits for half of
``--wait-ms`` before each load and each commit.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog

from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol import message_encoding
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import (
    AckCommit,
    EndCommit,
    Envelope,
    Event,
    StartCommit,
    TableStatus,
    WriteStatus,
    WrittenRange,
)
from headgate.control_protocol.identifiers import Sender, SinkName, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome
from headgate.control_protocol.testing import FakeLog, FakeLogServer, FakeSource, FakeTopics
from headgate.coordinator.driver import CoordinatorDriver, StartAt, World
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import CoordinatorSettings
from headgate.coordinator.state import Identity
from headgate.runtime.assembly import SystemClock
from headgate.tables.concurrent_secondary_tables import SecondaryTables
from headgate.tables.iceberg.atomic_deliveries import AtomicDeliveries
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.data_file import FileDetail
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

SINK, AT = SinkName("shop"), TopicPartition("events", 0)
LEDGER, ASIDE = "db.ledger", "db.rejected"
ROWS, BYTES = 10, 1_000
_PATIENCE_S = 600.0


class SlowCatalog:
    """A catalog that waits before each load of a table, and each commit."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.wait_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def load_table(self, identifier: str) -> Any:
        time.sleep(self.wait_s)
        return self._catalog.load_table(identifier)

    def commit_table(self, *change: Any) -> Any:
        time.sleep(self.wait_s)
        return self._catalog.commit_table(*change)


class TimedTables(SecondaryTables):
    """Knows how long the last deliveries took."""

    delivered_ms = 0.0

    def deliver(
        self, deliveries: Sequence[CommitAttempt], timeout_ms: int
    ) -> Mapping[str, CommitOutcome | HeadgateError]:
        begun_s = time.monotonic()
        outcomes = super().deliver(deliveries, timeout_ms)
        self.delivered_ms = (time.monotonic() - begun_s) * 1000
        return outcomes


@dataclass
class Shop:
    """One participant's events, and the coordinator that hears them."""

    catalog: Any
    names: list[str]
    server: FakeLogServer = field(default_factory=FakeLogServer)
    source: FakeSource = field(default_factory=FakeSource)
    lives: int = 0
    statuses: int = 0
    offset: int = 0
    touched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.source.create_or_replace(AT.topic, 1)
        self.log = FakeLog(self.server)
        self.heard = 0
        self.starts: dict[tuple[int, int], StartCommit] = {}
        self.said: dict[str, int] = {}
        self.detail = FileDetail(0)
        self.places = {
            name: (str(table.metadata.table_uuid), f"{table.location()}/data")
            for name in self.names
            for table in [self.catalog.load_table(name)]
        }

    def leads(self, joint: AtomicDeliveries | None = None, **identity: Any) -> None:
        """Start a new coordinator, up to its first START. ``identity``: how else it delivers."""
        self.lives += 1
        table = IcebergTable(self.catalog, LEDGER, SINK)
        self.secondaries = TimedTables(
            lambda name: IcebergTable(self.catalog, name, SINK),
            required=(ASIDE,),
            together=joint,
            listed=lambda space: [found[-1] for found in self.catalog.list_tables(space)],
        )
        sender = Sender(f"member-{self.lives}", "a")
        self.driver = CoordinatorDriver(
            Identity(SINK, "group", sender, secondaries=(ASIDE,), routed=True, **identity),
            CoordinatorSettings(commit_interval_ms=50, delivery_timeout_ms=60_000),
            World(
                FakeLog(self.server),
                table,
                FakeTopics(self.source, [AT.topic]),
                SystemClock(),
                secondaries=self.secondaries,
            ),
            StartAt("earliest"),
        )
        self.goes_on(lambda: self.driver.state.phase is Phase.OPEN)

    def transaction(self, touched: list[str]) -> None:
        """Play one interval: its rows are announced at END, decided, and delivered."""
        self.decides(touched)
        self.goes_on(lambda: not self.pending)

    def decides(self, touched: list[str]) -> None:
        """Do as ``transaction``, whether or not they are delivered."""
        self.source.produce(AT, ROWS * len(touched))
        goal = self.offset + ROWS * len(touched)
        self.touched = touched
        self.goes_on(lambda: self.offset == goal)

    @property
    def pending(self) -> bool:
        term = self.driver.state.term
        return self.driver.state.phase is not Phase.OPEN or bool(term and term.delivery.pending)

    def goes_on(self, done: Callable[[], bool]) -> None:
        """Take turn by turn, until that is so."""
        until_s = time.monotonic() + _PATIENCE_S
        while not done():
            assert time.monotonic() < until_s, f"{self.driver.state.phase} goes on for ever"
            self.driver.begin_to_lead_if_caught_up()
            self.driver.run_once(1)
            self._hear()

    def _hear(self) -> None:
        for message in self.server.messages[self.heard :]:
            envelope = message_encoding.decode_envelope(message)
            self.heard += 1
            if not isinstance(envelope, Envelope):
                continue
            key = (envelope.epoch, envelope.transaction)
            if isinstance(envelope.event, StartCommit):
                self.starts[key] = envelope.event
                self._note_size("START", message)
            elif isinstance(envelope.event, AckCommit):
                self._note_size("ACK", message)
                self.offset = envelope.event.offsets[AT]
            elif isinstance(envelope.event, EndCommit):
                self._say(envelope, self._status(self.starts[key]))

    def _note_size(self, what: str, message: bytes) -> None:
        self.said[what] = max(self.said.get(what, 0), len(message))

    def _status(self, start: StartCommit) -> WriteStatus:
        self.statuses += 1
        touched, self.touched = self.touched, []
        begin = self.offset  # what was settled: START came before the written ranges of that END
        tables = tuple(
            TableStatus(
                name,
                (
                    self.detail.to_written_file(
                        f"{data}/{start.folder}/{self.statuses}.parquet", ROWS, BYTES
                    ),
                ),
                uuid,
            )
            for name in touched
            for uuid, data in [self.places[name]]
        )
        span = OffsetRange(begin, begin + ROWS * len(touched))
        newest_ms = 1_000 * span.end if len(span) else None
        written = WrittenRange(span, len(span), max_timestamp_ms=newest_ms)
        return WriteStatus(self.statuses, {AT: written}, tables)

    def _say(self, about: Envelope, event: Event) -> None:
        sender = Sender("participant", "1")
        said = Envelope(SINK, about.epoch, about.transaction, sender, self.statuses, 0, event)
        self.log.append([said])


def make_tables(catalog: Catalog, names: list[str]) -> None:
    """Create the ledger, the quarantine, and the tables that rows go to."""
    create_table_if_missing(catalog, LEDGER, TableDeclaration({"note": "string"}))
    create_table_if_missing(catalog, ASIDE, quarantine_declaration())
    for name in names:
        create_table_if_missing(catalog, name, TableDeclaration({"id": "long"}))


def measured(shop: Shop, touched: list[str], intervals: int) -> tuple[float, float]:
    """Return CPU-milliseconds, and milliseconds by the clock, per interval."""
    cpu_s, wall_s = time.process_time(), time.monotonic()
    for _ in range(intervals):
        shop.transaction(touched)
    return (
        (time.process_time() - cpu_s) * 1000 / intervals,
        (time.monotonic() - wall_s) * 1000 / intervals,
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--tables", type=int, default=1_000)
    arguments.add_argument("--touched", type=int, default=100)
    arguments.add_argument("--intervals", type=int, default=5)
    arguments.add_argument("--wait-ms", type=int, default=80, help="of the catalog, per table")
    given = arguments.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": Path(folder, "warehouse").as_uri(),
        }
        with load_catalog("benchmark", properties) as catalog:
            names = [f"db.t{number:04}" for number in range(given.tables)]
            make_tables(catalog, names)
            report(Shop(SlowCatalog(catalog), names), given)


def report(shop: Shop, given: argparse.Namespace) -> None:
    """Play it, and print what it took."""
    touched = shop.names[: given.touched]
    shop.leads()
    for begin in range(0, len(shop.names), 100):  # each has been filled once
        shop.transaction(shop.names[begin : begin + 100])
    idle_ms, _ = measured(shop, touched[:1], given.intervals)
    cpu_ms, wall_ms = measured(shop, touched, given.intervals)
    print(f"{given.tables} tables, {given.touched} touched: {cpu_ms:.0f} CPU-ms an interval")
    each_ms = (cpu_ms - idle_ms) / max(1, given.touched - 1)
    print(f"  {each_ms:.1f} CPU-ms for each touched table, {wall_ms:.0f} ms by the clock")
    print(f"  START {shop.said['START']} bytes, ACK {shop.said['ACK']} bytes")
    cpu_s, wall_s = time.process_time(), time.monotonic()
    shop.leads()
    took_ms = (time.monotonic() - wall_s) * 1000
    print(f"lead to first START: {took_ms:.0f} ms, {(time.process_time() - cpu_s) * 1000:.0f} CPU")
    shop.transaction(touched)
    shop.catalog.wait_s = given.wait_ms / 2000
    _, slow_ms = measured(shop, touched, 2)
    print(f"an interval over a catalog of {given.wait_ms} ms: {slow_ms:.0f} ms by the clock")
    print(f"  of these {shop.secondaries.delivered_ms:.0f} ms for {given.touched} deliveries")


if __name__ == "__main__":
    main()
