"""Sends new quarantine rows to the dead-letter topic, in a thread beside the coordinator.

It reads what is committed and never takes part in a commit: any failure here is a warning, and is
retried. Delivery is at least once: progress is stored after every delivery was confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.coordinator.dead_letter_message import dead_letter_of
from headgate.kafka.record_sender import Redelivery
from headgate.runtime.background_thread import WokenThread

if TYPE_CHECKING:
    from headgate.kafka.dead_letter_topic import DeadLetterTopic
    from headgate.tables.iceberg.dead_letter_rows import UnsentRows

_log = redacted_logger("headgate.coordinator")


class Forwarder:
    """Starts its thread when it is created.

    ``close`` ends it. ``wake`` reports that a commit landed.

    ``open_topic`` is called in the thread, with a function that tells whether to end.
    """

    def __init__(
        self, rows: UnsentRows, open_topic: Callable[[Callable[[], bool]], DeadLetterTopic]
    ) -> None:
        self._rows = rows
        self._open_topic = open_topic
        self._again = Redelivery()
        self._thread = WokenThread("headgate-dead-letters", self._try_send_new_rows)

    def wake(self) -> None:
        self._thread.wake()

    def close(self) -> None:
        """End the thread. The next coordinator sends what is not sent yet."""
        self._thread.close()

    def _try_send_new_rows(self) -> bool:
        """Forward new rows, and return whether everything was sent."""
        try:
            topic = self._open_topic(self._thread.is_ending)
            try:
                send_unsent_rows(self._rows, topic, self._again)
            finally:
                topic.close()
        except Exception as error:  # noqa: BLE001 - nothing here may end a sink that commits well
            if not self._thread.is_ending():
                _log.warning("dead letters wait and will be retried: %s", error)
            return False
        return True


def send_unsent_rows(rows: UnsentRows, topic: DeadLetterTopic, again: Redelivery) -> None:
    """Send what the quarantine has and the topic does not, commit by commit.

    ``again`` is that of the last try in this process.
    """
    progress = topic.read_progress()
    again.forget_unless_continuing((topic.topic_id, progress))  # a topic made anew has none of them
    if progress:
        # Brokers forget a silent group, and then everything is sent again.
        topic.store_progress(progress)
    for portion in rows.unsent_rows_by_commit(progress):
        count = topic.send_letters(map(dead_letter_of, portion.rows), again)
        topic.store_progress(portion.upto)
        again.forget_unless_continuing((topic.topic_id, portion.upto))
        if count:
            _log.info("%s records sent to the dead-letter topic", count)
