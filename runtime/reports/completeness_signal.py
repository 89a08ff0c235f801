"""Signals that the table is complete up to an hour or a day (rule REPORT-3).

What is said is read back from the table, and what was said is a note of a group of its own: so a
successor says what is missing. At least once, in order, never early.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.record_sender import GroupNote
from headgate.runtime.background_thread import Pauses, WokenThread
from headgate.runtime.reports.receivers import Receiver, describe_trouble, open_receiver
from headgate.runtime.sink_tables import SinkTables, open_tables_creating_nothing
from headgate.runtime.telemetry import metric_catalog as names
from headgate.runtime.telemetry.instrumented_ports import Count
from headgate.runtime.wall_clock import format_utc, wall_ms

_log = redacted_logger("headgate.coordinator")

_REFRESH_S = 1_800.0
"""So seldom an unchanged note is stored anew: brokers forget a silent group after a week."""
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Completeness:
    """What the table says of itself.

    ``through_ms``: everything older is in all tables, but for those that are ``suspended``;
    ``decided_ms``: the same for what is decided, and may still be pending for one of many tables.
    """

    uuid: str
    through_ms: int | None
    decided_ms: int | None
    record: CommitRecord | None = None
    snapshot_id: int | None = None
    suspended: tuple[str, ...] = ()


def read_completeness(settings: SinkSettings) -> Completeness:
    """Read up to which time the sink's tables are complete. Raises what reading them raises."""
    with open_tables_creating_nothing(settings) as tables:
        view = tables.reader.view()
        record = view.record
        if record is None or record.valid_through_ms is None:
            return Completeness(view.uuid, None, None)
        suspended = tuple(sorted(each.table for each in record.suspended))
        through: int | None = record.valid_through_ms
        if settings.tables:
            through = _delivered_through_ms(tables, record, through)
        return Completeness(
            view.uuid, through, record.valid_through_ms, record, view.tag, suspended
        )


def _delivered_through_ms(
    tables: SinkTables, record: CommitRecord, primary_through_ms: int | None
) -> int | None:
    """Return the time of the table that is furthest behind, of those that rows are pending for.

    The primary was read before: a table that has received something since is only further.
    """
    aside = {tables.settings.quarantine.table, *(each.table for each in record.suspended)}
    waiting = {each.table for each in tables.read_undelivered_commits(record)} - aside
    through_ms = primary_through_ms
    for name in sorted(waiting):
        with tables.open_for_reading(name) as table:
            own = table.reader.view().record
        if own is None or own.valid_through_ms is None or through_ms is None:
            return None
        through_ms = min(through_ms, own.valid_through_ms)
    return through_ms


@dataclass(frozen=True, slots=True)
class SentSignal:
    """Up to where signals were confirmed, of the table with this UUID."""

    uuid: str
    through_ms: int

    def to_offset_metadata(self) -> str:
        return json.dumps([self.uuid, self.through_ms])

    @classmethod
    def from_offset_metadata(cls, note: str) -> SentSignal | None:
        """Parse a note; ``None`` for any other text."""
        try:
            uuid, through_ms = json.loads(note)
            return cls(str(uuid), int(through_ms))
        except (ValueError, TypeError):
            return None


def last_passed_hour_or_day_end(time_ms: int | None, unit_ms: int, now_ms: int) -> int | None:
    """Return the end of the last hour or day that this time has passed.

    Nothing beyond this machine's clock: one record with a time of the year 9999 would say all that
    is ever to be said.
    """
    if time_ms is None:
        return None
    passed = min(time_ms, now_ms)
    return passed - passed % unit_ms


def build_signal(
    settings: SinkSettings, complete: Completeness, said: SentSignal | None, through_ms: int
) -> Mapping[str, Any]:
    """Return what is sent, as JSON values. It holds names, times and numbers, and no content."""
    record = complete.record
    since = said.through_ms if said and said.uuid == complete.uuid else None
    return {
        "sink": settings.name,
        "table": settings.table.identifier,
        "every": settings.signal.every.value,
        "complete_since": None if since is None else format_utc(since, _TIME),
        "complete_through": format_utc(through_ms, _TIME),
        "transaction": str(record.transaction) if record else None,
        "snapshot_id": complete.snapshot_id,
        "suspended": list(complete.suspended),
    }


class Signals:
    """Says what has passed, beside one coordinator; ``close`` ends it."""

    def __init__(self, settings: SinkSettings, count: Count) -> None:
        self._settings = settings
        self._count = count
        self._unit_ms = settings.signal.every.unit_ms
        self._known_ms = -1
        self._failing = ""
        self._refresh_s = 0.0
        group = f"{settings.source.group_id}-signal"
        self._note = GroupNote(settings.kafka, group, settings.control.topic)
        self._thread = WokenThread(
            "headgate-signal", self._try_send_next_and_has_none_left, Pauses()
        )
        self._thread.wake()  # whoever led before may have died before it said something

    def on_landed(self, view: TableView) -> None:
        """Take a commit; costs a comparison, unless an hour or a day has passed."""
        passed = self._last_passed_hour_or_day_end(
            view.record.valid_through_ms if view.record else None
        )
        if passed is not None and passed > self._known_ms:
            self._thread.wake()

    def close(self) -> None:
        """End the thread. The next coordinator says what is not said yet."""
        self._thread.close()

    def _try_send_next_and_has_none_left(self) -> bool:
        """Say what has passed, and return whether all is said."""
        try:
            is_all = self._send_next_signal_and_has_none_left()
        except TableMissing:
            return True
        except Exception as error:  # noqa: BLE001 - nothing here may end a sink that commits well
            self._count(names.SIGNAL_FAILURES, 1, {})
            text = describe_trouble(error)
            if not self._thread.is_ending() and text != self._failing:
                _log.warning("a signal waits and will be sent again: %s", text)
            self._failing = text
            return False
        self._failing = ""
        return is_all

    def _send_next_signal_and_has_none_left(self) -> bool:
        """Send one signal if a time has passed; return whether nothing decided is left to say."""
        # The note first: of two coordinators, an old one then knows what the new one has said.
        said = SentSignal.from_offset_metadata(self._note.read())
        complete = read_completeness(self._settings)
        passed = self._last_passed_hour_or_day_end(complete.through_ms)
        known = said.through_ms if said and said.uuid == complete.uuid else -1
        if passed is not None and passed > known:
            self._send_signal(complete, said, passed)
            known = passed
        elif said and time.monotonic() >= self._refresh_s:
            self._store_last_signal(said)
        self._known_ms = known
        decided = self._last_passed_hour_or_day_end(complete.decided_ms)
        return decided is None or decided <= known

    def _send_signal(
        self, complete: Completeness, said: SentSignal | None, passed_through_ms: int
    ) -> None:
        settings = self._settings
        key = f"{complete.uuid}:{settings.name}:{settings.signal.every.value}:{passed_through_ms}"
        receiver: Receiver = open_receiver(
            "signal", settings.signal, settings.kafka, self._thread.is_ending
        )
        try:
            receiver.send(key, build_signal(settings, complete, said, passed_through_ms))
        finally:
            receiver.close()
        self._count(names.SIGNALS, 1, {})
        self._store_last_signal(SentSignal(complete.uuid, passed_through_ms))

    def _store_last_signal(self, said: SentSignal) -> None:
        self._note.store(said.to_offset_metadata())
        self._refresh_s = time.monotonic() + _REFRESH_S

    def _last_passed_hour_or_day_end(self, time_ms: int | None) -> int | None:
        return last_passed_hour_or_day_end(time_ms, self._unit_ms, wall_ms())
