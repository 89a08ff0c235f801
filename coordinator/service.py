"""Runs the coordinator in a thread that exists exactly while this member leads (ELECTION-1)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from headgate.control_protocol.call_progress import set_progress_callback_of_thread
from headgate.control_protocol.current_sink import bound_to_current_sink
from headgate.control_protocol.errors import CallHangs, SinkStopped, to_exception
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.coordinator.driver import CoordinatorDriver, LogTurn
from headgate.coordinator.settings import CoordinatorSettings

# Who leads: the owner of partition 0 of the first configured topic (PROTOCOL.md, rule ELECTION-1).


def election_partition(topics: Sequence[str]) -> TopicPartition:
    """Return the partition whose owner coordinates."""
    return TopicPartition(topics[0], 0)


def is_leader(assignment: Collection[TopicPartition], topics: Sequence[str]) -> bool:
    """Return whether this member leads: a level, read after every poll, never an edge.

    An edge that is missed, in a pause or a callback that fails, would leave two leaders, or none.
    """
    return election_partition(topics) in assignment


_log = redacted_logger("headgate.coordinator")

_TURN_MS = 50
_IDLE_MS = 500
"""How late an idle coordinator may learn that it no longer leads; the log wakes it at once."""
_TROUBLE_WAIT_S = 0.5
_JOIN_TIMEOUT_S = 20.0
"""The group waits meanwhile; a thread that outlives this is reported, and fenced by the table."""

HANGS_S = 180.0
"""Longer than any turn of bounded calls: a commit, and the half minute of upkeep behind it.

What has no bound, such as reading the keys of a large table, notes its progress."""

STOOD_STILL_S = 30.0
"""A process that polls so rarely was stopped itself, and the coordinator's calls with it."""


class CoordinatorService:
    """Implements ``ports.Leadership``. ``driver_factory`` opens a new life's ports.

    It returns the driver and a function that closes what it opened.
    """

    def __init__(
        self,
        topics: tuple[str, ...],
        driver_factory: Callable[[], tuple[CoordinatorDriver, Callable[[], None]]],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topics = topics
        self._factory = driver_factory
        self._thread: threading.Thread | None = None
        self._retired = threading.Event()
        self._polled = threading.Event()
        self._failure: BaseException | None = None
        self._monotonic_s = monotonic_s
        self.progressed_s = self._awake_since_s = self._looked_s = 0.0
        self.driver: CoordinatorDriver | None = None
        self._adopted: CoordinatorSettings | None = None
        self._adopting = threading.Lock()

    def adopt_settings(self, settings: CoordinatorSettings) -> None:
        """Let the coordinator use these settings, also one whose ports are just being opened."""
        with self._adopting:
            self._adopted = settings
            if self.driver:
                self.driver.adopt_settings(settings)

    def on_assignment(self, partitions: frozenset[TopicPartition]) -> None:
        if not is_leader(partitions, self._topics):
            self.close()
            return
        self._polled.set()
        if self._thread is None and self._failure is None:
            self._retired = threading.Event()
            self.progressed_s = self._monotonic_s()
            self._thread = threading.Thread(
                target=bound_to_current_sink(self._run_coordinator),
                args=(self._retired,),
                name="headgate-coordinator",
                daemon=True,
            )
            self._thread.start()
        self._note_failure_if_call_hangs()

    def _note_failure_if_call_hangs(self) -> None:
        """Note as failure a call that does not return: while this member leads, nobody else can."""
        now_s = self._monotonic_s()
        if now_s - self._looked_s > STOOD_STILL_S:
            self._awake_since_s = now_s
        self._looked_s = now_s
        waited_s = now_s - max(self.progressed_s, self._awake_since_s)
        if self._thread is not None and self._failure is None and waited_s > HANGS_S:
            self._failure = CallHangs(
                f"a call of the coordinator to the catalog or the store has not returned for "
                f"{waited_s:.0f} s",
                "this process ends, so that another participant takes over; start it again",
            )

    def failure(self) -> BaseException | None:
        return self._failure

    def close(self) -> None:
        if self._thread is None:
            return
        self._retired.set()
        self._thread.join(0 if isinstance(self._failure, CallHangs) else _JOIN_TIMEOUT_S)
        if self._thread.is_alive():
            _log.error("a call of the coordinator did not return; the table fences what it may do")
        self._thread = None

    def _run_coordinator(self, retired: threading.Event) -> None:
        def note_progress() -> None:
            if self._retired is retired:  # not that of an older life, whose call hung
                self.progressed_s = self._monotonic_s()

        set_progress_callback_of_thread(note_progress)
        try:
            driver, close = self._factory()
            with self._adopting:
                self.driver = driver
                if self._adopted:
                    driver.adopt_settings(self._adopted)
            try:
                while not retired.is_set():
                    note_progress()
                    if self._polled.is_set():
                        self._polled.clear()
                        driver.begin_to_lead_if_caught_up()
                    turn = driver.run_once(driver.ms_to_wait_for_log(_TURN_MS, _IDLE_MS))
                    if turn is LogTurn.UNREADABLE:
                        retired.wait(_TROUBLE_WAIT_S)
            except BaseException as raised:
                # first: what closes now may ask what it ends with
                self._failure = to_exception(raised)
                raise
            finally:
                if self.driver is driver:  # not that of a new life, after a call that hung
                    self.driver = None
                close()
        except BaseException as raised:  # noqa: BLE001 - handed to the participant, which raises it
            error = to_exception(raised)
            level = logging.INFO if isinstance(error, SinkStopped) else logging.ERROR
            extra = event_extra(LogEvent.COORDINATOR_STOPPED)
            _log.log(level, "the coordinator stopped: %s", error, extra=extra)
            self._failure = error
