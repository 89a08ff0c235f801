"""Follows a fleet's topics for a server, and says how old what is known of it is.

One reader stays: no page, answer or scrape asks a sink, a catalog or a group. While nothing newer
can be read, what was known stays, as of then: a sink is not lost because this reader is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from headgate.config.worker_settings import WorkerSettings
from headgate.control_protocol.errors import HeadgateError, Unreachable
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.compacted_topics import TopicAdmin
from headgate.runtime.fleet.fleet_records import FleetCommand, ObservedSink
from headgate.runtime.fleet.fleet_topics import LOOK_S, FleetReader
from headgate.runtime.fleet.fleet_view import FleetView, build_fleet_view
from headgate.runtime.wall_clock import wall_ms

_log = redacted_logger("headgate.http")

KEPT_S = 0.25
"""What is folded from the records is shown for so long."""
TURN_S = 0.2
STALE_MS = 15_000
"""After so long without an answer the knowledge is shown as of the last one; less than what makes
a sink lost (FLEET-4)."""
TURN_S_MAX = 120.0
_AGAIN_S_MAX = 10.0

CountRestart = Callable[[str, str, int], None]
"""Counts processes of a sink that ended unasked: sink, code, how many."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a fleet, as of ``now_ms``; ``problem``: why nothing newer is."""

    name: str
    fleet: FleetView
    slots: int
    now_ms: int
    age_ms: int = 0
    problem: str = ""

    @property
    def unowned_slots(self) -> frozenset[int]:
        return frozenset(range(self.slots)) - self.fleet.slot_owners.keys()


class FollowedFleet:
    """A fleet that one thread reads (``follow_until_end``), and any number look at (``latest``)."""

    def __init__(self, settings: WorkerSettings, count_restart: CountRestart | None = None) -> None:
        self.settings = settings
        self.begun_ms = wall_ms()
        self._count_restart = count_restart
        self._restarts: dict[str, int] | None = None
        self._lock = threading.Lock()
        """Of the records, while they are taken and folded."""
        self._ended = threading.Event()
        self._reader: FleetReader | None = None
        """What is shown: it has been read to the end once."""
        self._looked_ms = 0
        self._problem = "its topics are not read yet"
        self._seen: tuple[float, Known] | None = None
        self._turned_s = time.monotonic()

    # ------------------------------------------------------------------------------ for who looks

    def latest(self) -> Known | None:
        """Return what is known, not older than ``KEPT_S`` if it can be; ``None``: nothing yet."""
        with self._lock:
            if self._reader is None:
                return None
            if self._seen is None or time.monotonic() - self._seen[0] > KEPT_S:
                self._seen = (time.monotonic(), self._build_known_as_of(self._reader))
            return self._seen[1]

    def why_not_current(self) -> str | None:
        """Return why what is shown is not what is there now: then a server is not ready."""
        age_ms = wall_ms() - self._looked_ms
        if self._reader is None:
            return f"fleet {self.settings.fleet.name}: nothing is known yet: {self._problem}"
        if not self._is_stale(age_ms):
            return None
        return f"fleet {self.settings.fleet.name}: {self._why_stale(age_ms)}"

    def why_reader_hangs(self) -> str | None:
        """Return why the process should be started again: its reader makes no turn."""
        silent_s = time.monotonic() - self._turned_s
        if silent_s <= TURN_S_MAX:
            return None
        return f"the fleet's reader made no turn for {silent_s:.0f} s"

    def wait_briefly_for_changes(
        self, changes: Sequence[FleetCommand], patience_s: float = 3.0
    ) -> None:
        """Wait until these changes are read, so that who made them sees them next.

        Returns all the same after ``patience_s``, or if nothing is known yet.
        """
        until_s = time.monotonic() + patience_s
        while time.monotonic() < until_s:
            with self._lock:
                self._seen = None
                if self._reader is None or all(map(self._reader.records.has_taken, changes)):
                    return
            time.sleep(TURN_S / 4)

    def _build_known_as_of(self, reader: FleetReader) -> Known:
        now_ms = wall_ms()
        age_ms = now_ms - self._looked_ms
        stale = self._is_stale(age_ms)
        as_of_ms = self._looked_ms if stale else now_ms
        return Known(
            self.settings.fleet.name,
            build_fleet_view(reader.records, as_of_ms),
            reader.slots,
            as_of_ms,
            age_ms if stale else 0,
            self._why_stale(age_ms) if stale else "",
        )

    def _is_stale(self, age_ms: int) -> bool:
        return bool(self._problem) or age_ms >= STALE_MS

    def _why_stale(self, age_ms: int) -> str:
        return self._problem or f"the brokers have not answered for {age_ms // 1_000} s"

    # ------------------------------------------------------------------------------ of the thread

    def follow_until_end(self) -> None:
        """Follow the topics until ``end``; what fails is tried again, later each time."""
        again_s = 1.0
        while not self._ended.is_set():
            begun_s = time.monotonic()
            try:
                self._read_until_ended()
            except HeadgateError as error:
                self._note_problem(self.settings.redact(str(error)))
            except Exception:  # noqa: BLE001 - who looks must hear that nothing newer comes
                self._note_problem("a bug in headgate; the log of this process says more")
                _log.exception("fleet %s cannot be followed", self.settings.fleet.name)
            again_s = 1.0 if time.monotonic() - begun_s > 60 else min(2 * again_s, _AGAIN_S_MAX)
            self._turned_s = time.monotonic()
            self._ended.wait(again_s)

    def end(self) -> None:
        self._ended.set()

    def _note_problem(self, problem: str) -> None:
        if problem != self._problem:
            _log.warning("fleet %s: %s", self.settings.fleet.name, problem)
        self._problem = problem

    def _read_until_ended(self) -> None:
        """Read until the end, or until what is read is no longer the fleet's. Raises."""
        admin = TopicAdmin(self.settings.kafka)
        reader = FleetReader(self.settings)
        try:
            looked_s = 0.0
            while not self._ended.is_set():
                self._turned_s = time.monotonic()
                with self._lock:
                    came = reader.poll_and_took_records(0.0)
                if not reader.has_reached_end:
                    self._ended.wait(0.0 if came else TURN_S / 4)
                    continue
                if came:
                    self._count_restarts(reader)
                if time.monotonic() - looked_s >= LOOK_S:
                    self._confirm_topics_and_publish_reader(admin, reader)
                    looked_s = time.monotonic()
                self._ended.wait(0.0 if came else TURN_S)
        finally:
            with suppress(Exception):
                reader.close()

    def _confirm_topics_and_publish_reader(self, admin: TopicAdmin, reader: FleetReader) -> None:
        """Ask for both topics; only an answer makes the knowledge that of now.

        Raises ``FleetTopicUnfit`` if one is gone, or another one. While nobody answers, the reader
        stays: it goes on where it was.
        """
        begun_ms = wall_ms()
        try:
            reader.require_topics_unchanged(admin)
        except Unreachable as error:
            self._note_problem(self.settings.redact(str(error)))
            return
        with self._lock:
            self._reader, self._looked_ms, self._seen = reader, begun_ms, None
        if self._problem:
            _log.info("fleet %s: is followed", self.settings.fleet.name)
        self._problem = ""

    def _count_restarts(self, reader: FleetReader) -> None:
        """Count what came since the last time: records tell sums, each since its worker began."""
        before, seen = self._restarts, dict[str, int]()
        for key, record in reader.records.observed.items():
            told = record.value
            if not isinstance(told, ObservedSink):
                continue
            seen[key] = told.restarts
            last = told.restarts if before is None else before.get(key, 0)
            more = told.restarts - last if told.restarts >= last else told.restarts
            if more and self._count_restart:
                self._count_restart(told.key, told.code, more)
        self._restarts = seen


@contextmanager
def following_fleet(fleet: FollowedFleet) -> Iterator[None]:
    """Follow until the end of the body."""
    thread = threading.Thread(
        target=fleet.follow_until_end, name="headgate-fleet-reader", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        fleet.end()
        thread.join(2.0)
