"""The coordinator's life-cycle: a thread that exists exactly while this member leads (E1)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.redacted_log import redacted_logger
from headgate.coordinator.driver import CoordinatorDriver
from headgate.coordinator.election import leads

_log = redacted_logger("headgate.coordinator")

_TURN_MS = 50
_TROUBLE_WAIT_S = 0.5
_JOIN_TIMEOUT_S = 120.0
"""Longer than any bounded call of the adapters; a thread alive after it is reported, fenced."""


class CoordinatorService:
    """Implements ``ports.Leadership``. ``driver_factory`` opens a new life's ports.

    It returns the driver and a function that closes what it opened.
    """

    def __init__(
        self,
        topics: tuple[str, ...],
        driver_factory: Callable[[], tuple[CoordinatorDriver, Callable[[], None]]],
    ) -> None:
        self._topics = topics
        self._factory = driver_factory
        self._thread: threading.Thread | None = None
        self._retired = threading.Event()
        self._polled = threading.Event()
        self._failure: BaseException | None = None
        self.driver: CoordinatorDriver | None = None

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        if not leads(partitions, self._topics):
            self.close()
            return
        self._polled.set()
        if self._thread is None and self._failure is None:
            self._retired = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._retired,), name="headgate-coordinator", daemon=True
            )
            self._thread.start()

    def failure(self) -> BaseException | None:
        return self._failure

    def close(self) -> None:
        if self._thread is None:
            return
        self._retired.set()
        self._thread.join(_JOIN_TIMEOUT_S)
        if self._thread.is_alive():
            _log.error("a call of the coordinator did not return; the table fences what it may do")
        self._thread = None

    def _run(self, retired: threading.Event) -> None:
        try:
            driver, close = self._factory()
            self.driver = driver
            try:
                while not retired.is_set():
                    if self._polled.is_set():
                        self._polled.clear()
                        driver.lead()
                    if not driver.run_once(_TURN_MS):
                        retired.wait(_TROUBLE_WAIT_S)
            finally:
                if self.driver is driver:  # not that of a new life, after a call that hung
                    self.driver = None
                close()
        except Exception as error:  # noqa: BLE001 - handed to the participant, which raises it
            _log.error("the coordinator stopped: %s", error)
            self._failure = error
