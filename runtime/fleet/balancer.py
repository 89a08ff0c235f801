"""Moves sinks from loaded workers to others, in the worker that has slot 0 (FLEET-8).

It is a level: two of them do no harm, and none leaves the fleet as it is. It also takes back what
workers that are gone have left on the state topic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing

from headgate.config.worker_settings import WorkerSettings
from headgate.control_protocol.errors import FleetChangedMeanwhile, HeadgateError, MemberRefused
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.compacted_topics import CompactedProducer, KeyedValue
from headgate.runtime.fleet.fleet_changes import plan_balancer_moves
from headgate.runtime.fleet.fleet_topics import FleetReader, change_fleet
from headgate.runtime.fleet.fleet_view import (
    FleetRecords,
    FleetView,
    find_shared_worker_names,
    find_stale_state_keys,
    outdated_specs,
)
from headgate.runtime.fleet.outage_log import OutageLog
from headgate.runtime.fleet.placement import find_moves
from headgate.runtime.wall_clock import wall_ms

_log = redacted_logger("headgate.worker")

EVERY_S = 10.0
LOOK_S = 1.0
WAIT_MS = 1_000
"""Nobody waits for it: it asks brokers once a second, and not ten times."""
RESTS_S = 60.0
"""After a worker came or went nothing is moved for so long: its sinks are being taken over."""


class Balancer:
    """Has a thread while this worker leads; ``start_or_stop`` says whether it does."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._read_trouble = OutageLog("the fleet cannot be read, sinks are not balanced")
        self._move_trouble = OutageLog("sinks cannot be moved")
        self._name_trouble = OutageLog("workers of one fleet have one name")
        self._state_trouble = OutageLog("states of workers that are gone are not taken back")

    def start_or_stop(self, *, leads: bool) -> None:
        if not leads:
            self._ends.set()
        elif self._thread is None or not self._thread.is_alive():
            self._ends = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._ends,), name="headgate-balancer", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self, ends: threading.Event) -> None:
        while not ends.is_set():
            try:
                with closing(FleetReader(self._settings, wait_ms=WAIT_MS)) as reader:
                    self._balance_and_tidy_until(ends, reader)
            except HeadgateError as error:
                self._read_trouble.log_outage_once_per_reason(self._settings.redact(str(error)))
            except Exception:  # noqa: BLE001 - placement may be late; it must stop no sink
                _log.exception("sinks are not balanced: a bug in headgate")
            ends.wait(EVERY_S)

    def _balance_and_tidy_until(self, ends: threading.Event, reader: FleetReader) -> None:
        workers: frozenset[tuple[str, str]] = frozenset()
        rests_until_s = due_s = time.monotonic() + EVERY_S
        producer = CompactedProducer(self._settings.kafka)
        while not ends.wait(LOOK_S):
            while reader.poll_and_took_records(0.0):
                pass
            now_s = time.monotonic()
            if now_s < due_s or not reader.has_reached_end:
                continue
            due_s = now_s + EVERY_S
            self._read_trouble.end_outage()
            fleet = reader.current_view()
            self._log_shared_worker_names(find_shared_worker_names(reader.records, wall_ms()))
            present = _incarnations_taking_sinks(fleet)
            if present != workers:
                workers, rests_until_s = present, now_s + RESTS_S
            for key in find_stale_state_keys(reader.records, fleet, wall_ms()):
                producer.try_enqueue(KeyedValue(self._settings.fleet.state_topic, 0, key, None))
            self._state_trouble.log_or_end_outage_of_producer(producer)
            if now_s >= rests_until_s:
                self._balance(reader.records, fleet)
        producer.flush(1.0)
        self._state_trouble.log_or_end_outage_of_producer(producer)

    def _log_shared_worker_names(self, names: Sequence[str]) -> None:
        """Say what nobody else notices without ``worker.static_member``: each overwrites what the
        other tells."""
        for name in names:
            error = MemberRefused(
                f"two workers are called {name}: the fleet sees one of them at a time",
                "give each worker a worker.name of its own, or end the one that is left over",
            )
            self._name_trouble.log_outage_once_per_reason(str(error))
        if not names:
            self._name_trouble.end_outage()

    def _balance(self, records: FleetRecords, fleet: FleetView) -> None:
        moves = find_moves(fleet, wall_ms())
        if not moves and not outdated_specs(records):
            return
        actor = f"balancer of {self._settings.worker.name}"
        try:
            plan = change_fleet(self._settings, plan_balancer_moves(moves), actor, tries=1)
        except FleetChangedMeanwhile:
            return  # a person's change goes first
        except HeadgateError as error:
            self._move_trouble.log_outage_once_per_reason(self._settings.redact(str(error)))
            return
        self._move_trouble.end_outage()
        for line in plan.lines:
            _log.info("balances: %s", line.removeprefix("~ "))


def _incarnations_taking_sinks(fleet: FleetView) -> frozenset[tuple[str, str]]:
    return frozenset(
        (name, worker.observed.incarnation)
        for name, worker in fleet.workers.items()
        if worker.takes_sinks
    )
