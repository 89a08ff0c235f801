"""Presents a sink to a server: its report, refreshed at most every so often, and its gauges.

A participant looks at its own sink as ``headgate status`` does, so that its probe cannot say
anything else than the command.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.current_sink import bound_to_current_sink
from headgate.control_protocol.errors import HeadgateError, type_and_first_line_of
from headgate.control_protocol.offsets import OffsetRange
from headgate.operations.status.report import StatusReport
from headgate.operations.status.status import read_status
from headgate.runtime.health import Condition, Unwell
from headgate.runtime.telemetry import metric_catalog as names
from headgate.runtime.telemetry.coordinator_progress import (
    condition_gauges,
    unread_partition_gauges,
)
from headgate.runtime.telemetry.meters import Gauge

KEPT_S = 2.0
COURSE = 200
"""Commits that the pictures show."""
_ASKED_AT_ONCE = 4
_LOOK_S_MAX = 60.0
"""A look that takes longer than a table, a catalog and brokers together may take to answer."""


@dataclass(frozen=True, slots=True)
class _Seen:
    at_s: float
    by: SinkSettings
    report: StatusReport | HeadgateError


class ServedSink:
    """The sink of one sink file. Thread-safe: one thread asks, the others wait for its answer.

    ``reread`` reads the settings anew for each look: a secret that they refer to may have changed.
    """

    def __init__(
        self, settings: SinkSettings, reread: Callable[[], SinkSettings] | None = None
    ) -> None:
        self._settings = settings
        self._reread = reread
        self._lock = threading.Lock()
        self._seen: _Seen | None = None

    @property
    def settings(self) -> SinkSettings:
        return self._settings

    def adopt_settings(self, settings: SinkSettings) -> None:
        """Adopt another version of its file. It waits for no report that is being made."""
        self._settings = settings

    def status_report(self) -> StatusReport:
        """Return the sink's state, not older than ``KEPT_S``. Raises as ``read_status``."""
        with self._lock:
            seen = self._seen
            if (
                seen is None
                or seen.by is not self._settings
                or time.monotonic() - seen.at_s > KEPT_S
            ):
                seen = self._seen = self._look()
        if isinstance(seen.report, HeadgateError):
            raise seen.report
        return seen.report

    def forget_report(self) -> None:
        """Ask again next time: the sink was changed."""
        with self._lock:
            self._seen = None

    def _look(self) -> _Seen:
        at_s, settings = time.monotonic(), self._settings  # others may be adopted meanwhile
        try:
            if self._reread is not None:
                settings = self._settings = self._reread()
        except HeadgateError as error:
            return _Seen(at_s, settings, settings.redaction.redact_in_place(error))
        return _Seen(at_s, settings, self._fetch_report_or_error())

    def _fetch_report_or_error(self) -> StatusReport | HeadgateError:
        try:
            return read_status(self.settings, COURSE, with_age=True)
        except HeadgateError as error:
            return self.settings.redaction.redact_in_place(error)


class Watch:
    """The newest look at a sink, taken by a thread each ``interval_s``: nobody waits for it."""

    def __init__(self, sink: ServedSink, interval_s: float) -> None:
        self._sink = sink
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._begun_s = time.monotonic()
        self._found: Unwell | None = Unwell(Condition.STARTING, "the sink was not looked at yet")

    def newest_problem(self) -> Unwell | None:
        """Return what is wrong, if ``headgate status`` would not exit with 0."""
        late_s = time.monotonic() - self._begun_s - self._interval_s
        if late_s > _LOOK_S_MAX:
            return Unwell(Condition.UNKNOWN, f"no look at the sink has ended for {late_s:.0f} s")
        return self._found

    def watch_until_end(self) -> None:
        """Look until ``end``."""
        while not self._ended.is_set():
            self._begun_s = time.monotonic()
            self._found = self._check_status()
            self._ended.wait(self._interval_s)

    def end(self) -> None:
        self._ended.set()

    def _check_status(self) -> Unwell | None:
        try:
            report = self._sink.status_report()
        except HeadgateError as error:
            return Unwell(Condition.UNKNOWN, f"{error.code} {error.message}", error.code)
        except Exception as error:  # noqa: BLE001 - without its thread no look would ever end again
            why = self._sink.settings.redaction(type_and_first_line_of(error))
            return Unwell(Condition.UNKNOWN, f"the look failed: {why}")
        if not report.exit_code:
            return None
        last, condition = report.last_error, Condition(report.condition)
        if last and not last.past:
            return Unwell(condition, f"{last.code} {last.text}", last.code)
        return Unwell(condition, "; ".join(report.notes))


@contextmanager
def watching_sink(sink: ServedSink, interval_s: float) -> Iterator[Watch]:
    """Look at the sink until the end of the body."""
    watch = Watch(sink, interval_s)
    thread = threading.Thread(
        target=bound_to_current_sink(watch.watch_until_end), name="headgate-watch", daemon=True
    )
    thread.start()
    try:
        yield watch
    finally:
        watch.end()  # a look may still wait for what does not answer: nobody waits for it


def gauges_of_sinks(sinks: Iterable[ServedSink]) -> list[Gauge]:
    """Return the sink-wide gauges of all, several asked at once; an absent one is ``not known``."""
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
        return [gauge for of_one in threads.map(_gauges_of_sink, sinks) for gauge in of_one]


def _gauges_of_sink(sink: ServedSink) -> list[Gauge]:
    try:
        gauges: Iterable[Gauge] = gauges_of_report(sink.status_report())
    except HeadgateError as error:
        gauges = [
            *condition_gauges(Condition.UNKNOWN),
            Gauge(names.ERROR_INFO, 1, {"code": error.code}),
        ]
    name = sink.settings.name
    return [Gauge(g.name, g.value, {"sink": name, **g.labels}) for g in gauges]


def gauges_of_report(report: StatusReport) -> Iterable[Gauge]:
    """Return what a report says, as the sink's coordinator would report it."""
    yield from condition_gauges(Condition(report.condition))
    if report.last_error and not report.last_error.past:
        yield Gauge(names.ERROR_INFO, 1, {"code": report.last_error.code})
    yield Gauge(names.EPOCH, report.epoch)
    yield Gauge(names.STALLED_PARTITIONS, len(report.stalled))
    yield Gauge(names.PENDING_ROWS, report.pending_rows)
    if report.participants_known:
        yield Gauge(names.PARTICIPANTS, len(report.participants))
    if report.last_rows_committed_ms is not None:
        yield Gauge(names.LAST_COMMIT, report.last_rows_committed_ms / 1000)
    if report.valid_through_ms is not None:
        yield Gauge(names.VALID_THROUGH, report.valid_through_ms / 1000)
    yield from unread_partition_gauges(
        {p.at: OffsetRange(p.log_begin, p.log_end) for p in report.held}
    )
    lags: dict[str, int] = {}
    for partition in report.partitions:
        if partition.lag is not None:
            lags[partition.topic] = lags.get(partition.topic, 0) + partition.lag
    for held in report.held:
        lags[held.topic] = lags.get(held.topic, 0) + held.records
    for topic, lag in lags.items():
        yield Gauge(names.LAG_RECORDS, lag, {"topic": topic})
    for topic, age in report.lag_seconds.items():
        yield Gauge(names.LAG_SECONDS, age, {"topic": topic})
