"""Measures one sink in one process: wraps its ports, tracks its coordinator, exports both.

If nothing takes the metrics, none of this exists and ports stay unwrapped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from headgate.config.configuration_fingerprint import configuration_digest
from headgate.config.registry_auth_settings import REGISTRY_AUTH
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.current_sink import current_sink
from headgate.control_protocol.errors import CODE, RetryLater
from headgate.control_protocol.events import (
    Envelope,
    Notice,
    NoticeKind,
    Settlement,
    StartCommit,
    WriteStatus,
)
from headgate.control_protocol.identifiers import Sender, TopicPartition, TransactionId
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import (
    AllSecondaryTables,
    BatchWriter,
    ControlLog,
    PrimaryTable,
)
from headgate.kafka.authentication import token_keeper_for
from headgate.kafka.token_keeper import TokenKeeper, keeper_of
from headgate.participant.state import State
from headgate.runtime.health import EXIT_CODES, Condition, LastError, Unwell, without_code
from headgate.runtime.telemetry import coordinator_progress
from headgate.runtime.telemetry import metric_catalog as names
from headgate.runtime.telemetry.instrumented_ports import (
    Count,
    MeteredLog,
    MeteredPrimary,
    MeteredSecondaries,
    MeteredWriter,
    assignment_change_or_none,
    settlement_outcome_label,
)
from headgate.runtime.telemetry.meters import Gauge, Telemetry
from headgate.runtime.wall_clock import wall_ms

if TYPE_CHECKING:
    from headgate.runtime.maintenance.table_maintenance import Done


# Measures background maintenance: what its rounds did, and when the last good one was.


class MaintenanceMeters:
    """Sums up the rounds of one coordinator's life. Thread-safe."""

    def __init__(self, count: Count, wall_ms: Callable[[], int]) -> None:
        self._count = count
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        self._gauges: dict[tuple[str, str], float] = {}

    def on_table_round_end(self, done: Done, failed: bool) -> None:  # noqa: FBT001 - a callback
        """Take the round of one table. ``failed``: a part of it raised."""
        table = {"table": done.table}
        outcome = "failed" if failed else "done"
        self._count(names.MAINTENANCE_ROUNDS, 1, {**table, "outcome": outcome})
        for name, number in (
            (names.MAINTENANCE_REWRITTEN, done.compacted_files),
            (names.MAINTENANCE_ORPHANS, done.orphans),
        ):
            if number:
                self._count(name, number, table)
        with self._lock:
            if not failed:
                self._gauges[names.MAINTENANCE_LAST, done.table] = self._wall_ms() / 1000
            if done.live_files is not None:
                self._gauges[names.LIVE_FILES, done.table] = done.live_files

    def gauges(self) -> Iterable[Gauge]:
        with self._lock:
            found = dict(self._gauges)
        return [Gauge(name, value, {"table": table}) for (name, table), value in found.items()]


_CALLS_MS_MAX = 120_000
"""Longer than a turn of bounded calls: Spark starting, or a coordinator being joined."""


def _no_problem() -> None:
    return None


class SinkMeters:
    """Everything that is measured about one sink in this process. Thread-safe."""

    def __init__(self, telemetry: Telemetry, settings: SinkSettings) -> None:
        self._telemetry = telemetry
        self._settings = settings
        self._lock = threading.Lock()
        self._life: CoordinatorMeters | None = None
        self._state: Callable[[], State] | None = None
        self._unwell: Callable[[], Unwell | None] = _no_problem
        self._followers: list[Callable[[SinkSettings], None]] = []
        self._draining, self._resting = False, ""
        self._turned_s = time.monotonic()
        self._hide = telemetry.register_gauges(self._gauges)
        self._handler = _ErrorCounter(
            settings.name, lambda code: self.count(names.ERRORS, 1, {"code": code})
        )
        logging.getLogger("headgate").addHandler(self._handler)

    def close(self) -> None:
        self._hide()
        logging.getLogger("headgate").removeHandler(self._handler)

    @property
    def settings(self) -> SinkSettings:
        return self._settings

    def adopt_settings(self, settings: SinkSettings) -> None:
        """Judge by other intervals and limits from now on, as the participant does."""
        self._settings = settings
        for follower in self._followers:
            follower(settings)

    def follow_adopted_settings(self, follower: Callable[[SinkSettings], None]) -> None:
        """Call this with what is adopted live: in the participant's loop, which must not wait."""
        self._followers.append(follower)

    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        self._telemetry.count(name, amount, {"sink": self._settings.name, **labels})

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._telemetry.observe(name, value, {"sink": self._settings.name, **labels})

    def note_draining(self) -> None:
        """Note that this process was asked to end."""
        self._draining = True

    def note_left_group_to_wait(self, why: str = "stopped by a person") -> None:
        """Note that this process has left the group, and waits."""
        self._resting, self._state = why, None

    @property
    def is_draining(self) -> bool:
        return self._draining

    # ------------------------------------------------------------------------------- the process

    def on_turn(self) -> None:
        """Note that the participant's loop has made a turn."""
        self._turned_s = time.monotonic()

    def why_not_live(self) -> str | None:
        """Return why the process should be restarted, if it should."""
        still_s = time.monotonic() - self._turned_s
        release_ms = self._settings.participant.release_timeout_ms
        if still_s > (release_ms + _CALLS_MS_MAX) / 1000:
            return f"the participant's loop has not turned for {still_s:.0f} s"
        return None

    def why_not_ready(self) -> str | None:
        """Return why this participant does no work, if it does none."""
        read_state = self._state  # the participant's thread may take it away at any time
        if resting := self._resting:
            return resting
        if self._draining:
            return "draining"
        if read_state is None:
            return "starting"
        if not read_state().term.epoch:
            return "no coordinator has been heard yet"
        if unwell := self._unwell():
            return str(unwell)
        life = self.coordinator_meters
        condition = life.condition() if life else Condition.RUNNING
        error = life.current_error() if life else None
        if EXIT_CODES[condition]:
            return f"{condition.value}: {error.code} {error.text}" if error else condition.value
        return None

    def set_problem_source(self, newest_problem: Callable[[], Unwell | None]) -> None:
        """Ask this for what ``headgate status`` would say, whenever a probe or a scrape asks."""
        self._unwell = newest_problem

    # ------------------------------------------------------------------------- the participant

    def metered_writer(self, writer: BatchWriter) -> BatchWriter:
        return MeteredWriter(writer, self.count, self.observe)

    def metered_log(self, log: ControlLog) -> ControlLog:
        return MeteredLog(log, said=self._count_assignment_changes)

    def set_state_source(self, read_state: Callable[[], State]) -> None:
        """Ask this for the participant's state at every collection; it drains and waits no more."""
        self._state, self._draining, self._resting = read_state, False, ""

    def _count_assignment_changes(self, envelope: Envelope) -> None:
        kind = assignment_change_or_none(envelope)
        if kind is not None:
            concerned = len(envelope.event.concerns)  # type: ignore[union-attr]
            self.count(names.ASSIGNMENTS, concerned, {"kind": kind})

    # ------------------------------------------------------------------------- the coordinator

    def start_coordinator_meters(self, life: Sender) -> CoordinatorMeters:
        """Start to follow a coordinator's life in this process; the caller closes the result."""
        with self._lock:
            self._life = CoordinatorMeters(self, life)
            return self._life

    def on_coordinator_life_end(self, life: CoordinatorMeters) -> None:
        with self._lock:
            if self._life is life:
                self._life = None

    @property
    def coordinator_meters(self) -> CoordinatorMeters | None:
        with self._lock:
            return self._life

    def _gauges(self) -> Iterable[Gauge]:
        sink = {"sink": self._settings.name}
        life = self.coordinator_meters
        for gauge in (*self._participant_gauges(), *self._sink_gauges(life)):
            yield replace(gauge, labels={**sink, **gauge.labels})

    def _sink_gauges(self, life: CoordinatorMeters | None) -> Iterable[Gauge]:
        """Yield what the coordinator reports, if it is here; and what is wrong, whoever leads."""
        found = tuple(life.gauges()) if life else ()
        unwell = self._unwell()
        if unwell is None or not EXIT_CODES[unwell.condition]:
            return found
        others = [gauge for gauge in found if gauge.name not in (names.STATE, names.ERROR_INFO)]
        code = (Gauge(names.ERROR_INFO, 1, {"code": unwell.code}),) if unwell.code else ()
        return (*coordinator_progress.condition_gauges(unwell.condition), *code, *others)

    def _participant_gauges(self) -> Iterable[Gauge]:
        yield Gauge(names.BUILD_INFO, 1, {"version": version("headgate")})
        digest = configuration_digest(self._settings)
        table = self._settings.table.identifier
        yield Gauge(names.CONFIG_INFO, 1, {"hash": digest, "table": table})
        if (read_state := self._state) is not None:
            owned = read_state().work.owned
            buffered = sum(own.work.records for own in owned.values() if own.work)
            yield Gauge(names.OWNED_PARTITIONS, len(owned))
            yield Gauge(names.BUFFERED_RECORDS, buffered)
        yield from self._auth_token_gauges()

    def _auth_token_gauges(self) -> Iterable[Gauge]:
        """Yield what this process's keepers of tokens know; those of executors are others."""
        keepers: dict[str, TokenKeeper | None] = {"kafka": token_keeper_for(self._settings.kafka)}
        if description := self._settings.format.options.get(REGISTRY_AUTH):
            keepers["registry"] = keeper_of(description, "")
        for server, keeper in keepers.items():
            left = keeper.life_share_left if keeper else None
            if keeper and left is not None:
                yield Gauge(names.AUTH_LIFE_LEFT, left, {"server": server})
            if keeper and (keeper.failure_count or left is not None):
                yield Gauge(names.AUTH_FAILURES, keeper.failure_count, {"server": server})


class CoordinatorMeters:
    """Follows one coordinator's life. Sink-wide series are reported only from here."""

    def __init__(self, meters: SinkMeters, life: Sender) -> None:
        self._meters = meters
        self._sender = life
        self._lock = threading.Lock()
        self._progress = coordinator_progress.Progress()
        self._begun_ms = wall_ms()
        self.maintenance = MaintenanceMeters(meters.count, wall_ms)

    def close(self) -> None:
        self._meters.on_coordinator_life_end(self)

    @property
    def _settings(self) -> SinkSettings:
        return self._meters.settings

    @property
    def _overdue_after_s(self) -> float:
        return self._settings.coordinator.records_overdue_after_ms / 1000

    @property
    def progress(self) -> coordinator_progress.Progress:
        with self._lock:
            return self._progress

    def condition(self) -> Condition:
        draining = self._meters.is_draining
        return coordinator_progress.condition_of(
            self.progress, time.monotonic(), self._overdue_after_s, draining=draining
        )

    def current_error(self) -> LastError | None:
        """Return what is wrong with the sink, as far as its coordinator knows."""
        return coordinator_progress.current_error(
            self.progress, time.monotonic(), self._overdue_after_s
        )

    def metered_log(self, log: ControlLog) -> ControlLog:
        return MeteredLog(log, heard=self.on_event)

    def metered_table(self, table: PrimaryTable) -> PrimaryTable:
        name = self._settings.table.identifier
        return MeteredPrimary(table, name, self._meters.count, self._meters.observe)

    def metered_secondaries(self, secondaries: AllSecondaryTables) -> AllSecondaryTables:
        return MeteredSecondaries(secondaries, self._meters.count, self._note_valid_through)

    def _note_valid_through(self, table: str, record: CommitRecord) -> None:
        if record.valid_through_ms is not None:
            with self._lock:
                fresh = {**self._progress.fresh_ms, table: record.valid_through_ms}
                self._progress = replace(self._progress, fresh_ms=fresh)

    def note_failure(self, text: str, next_try_in_ms: int | None = None) -> None:
        """Note that the coordinator keeps failing at something."""
        found = CODE.search(text)
        code = found[0] if found else RetryLater.code
        now_ms, member = wall_ms(), self._sender.member
        redacted = self._settings.redact(without_code(code, text))
        error = LastError(code, redacted, member, now_ms)
        if next_try_in_ms is not None:
            error = replace(error, next_try_ms=now_ms + next_try_in_ms)
        with self._lock:
            self._progress = replace(self._progress, error=error)

    def on_event(self, envelope: Envelope) -> None:
        """Take an event from the log; only this life's own count, and each settlement once.

        Participants' events count only for what they could not write.
        """
        event = envelope.event
        if isinstance(event, WriteStatus) and envelope.sink == self._settings.name:
            now = coordinator_progress.Moment(time.monotonic(), wall_ms())
            with self._lock:
                self._progress = coordinator_progress.on_status(
                    self._progress, envelope.sender, event, now
                )
            return
        if isinstance(event, Notice) and envelope.sink == self._settings.name:
            self._count_participant_ended_by_error(event, envelope.time_ms)
        if envelope.sender != self._sender or envelope.sink != self._settings.name:
            return
        at, now_s = TransactionId(envelope.epoch, envelope.transaction), time.monotonic()
        with self._lock:
            before = self._progress
            if isinstance(event, StartCommit):
                self._progress = coordinator_progress.on_start(before, at, event, now_s)
            elif isinstance(event, Settlement) and at > before.settled:
                self._progress = coordinator_progress.on_settlement(
                    before, at, event, coordinator_progress.Moment(now_s, wall_ms())
                )
            else:
                return
        if isinstance(event, Settlement):
            self._measure_settlement(event, now_s - before.opened.get(at, now_s))

    def _count_participant_ended_by_error(self, event: Notice, time_ms: int) -> None:
        """Count for a process whose own counters died with it; older ends are counted already."""
        if event.kind is NoticeKind.STOPPED and event.code and time_ms >= self._begun_ms:
            self._meters.count(names.ENDED_PARTICIPANTS, 1, {"code": event.code})

    def _measure_settlement(self, event: Settlement, lasted_s: float) -> None:
        outcome = settlement_outcome_label(event)
        self._meters.observe(names.TRANSACTION_DURATION, lasted_s, {"outcome": outcome})
        if event.reason:
            self._meters.count(names.INCOMPLETE_TRANSACTIONS, 1, {})
        for table in event.tables:
            if table.snapshot_id and table.records:
                self._meters.count(names.COMMITTED_ROWS, table.records, {"table": table.table})

    def on_source_logs(
        self,
        logs: Mapping[TopicPartition, OffsetRange],
        first_unstored_ms: Mapping[TopicPartition, int],
    ) -> None:
        """Take the sources' logs, and the timestamps of first unstored records."""
        with self._lock:
            known = coordinator_progress.on_source_logs(self._progress, logs, time.monotonic())
            self._progress = replace(
                known, first_unstored_ms={**known.first_unstored_ms, **first_unstored_ms}
            )

    def gauges(self) -> Iterable[Gauge]:
        yield from self.maintenance.gauges()
        now, now_s = self.progress, time.monotonic()
        if not now.epoch:
            return
        still = len(coordinator_progress.stalled_partitions(now, now_s, self._overdue_after_s))
        current = replace(now, error=self.current_error())
        yield from coordinator_progress.sink_gauges(current, self.condition(), still, wall_ms())
        if self._settings.tables:
            yield from coordinator_progress.table_gauges(now)
        if self._settings.telemetry.per_partition:
            for name, offsets in (
                (names.STORED_OFFSET, now.stored),
                (names.LOG_END_OFFSET, {at: log.end for at, log in now.logs.items()}),
            ):
                for at, offset in offsets.items():
                    labels = {"topic": at.topic, "partition": str(at.partition)}
                    yield Gauge(name, offset, labels)


class _ErrorCounter(logging.Handler):
    """Counts the package's log lines of level warning and above, by the error code they name.

    Lines of another sink in the process count for that sink.
    """

    def __init__(self, sink: str, count: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._sink = sink
        self._count_code = count

    def emit(self, record: logging.LogRecord) -> None:
        if current_sink() not in (None, self._sink):
            return
        found = CODE.search(record.getMessage())
        self._count_code(found[0] if found else "none")
