"""Logs why something of a worker does not work: once for each reason, and anew if it comes back."""

from __future__ import annotations

from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.compacted_topics import CompactedProducer

_log = redacted_logger("headgate.worker")


class OutageLog:
    """Logs the outages of one thing. Use from one thread."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said: set[str] = set()

    def log_outage_once_per_reason(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            _log.warning("%s: %s", self._what, why)

    def end_outage(self) -> None:
        """Note that it works (again): what fails from here on is another outage."""
        if self._said:
            _log.info("over: %s", self._what)
        self._said.clear()

    def log_or_end_outage_of_producer(self, producer: CompactedProducer) -> None:
        """Say why records were not written lately; it is over once some were, and none failed."""
        failures, written = producer.take_failures(), producer.take_written_flag()
        for failure in failures:
            self.log_outage_once_per_reason(failure)
        if written and not failures:
            self.end_outage()
