"""Sends to the dead-letter topic with confluent-kafka, and stores the progress.

Progress is the note of a separate group on the topic's partition 0 (``record_sender``). When
brokers have forgotten it, everything is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from headgate.coordinator.dead_letter_message import DeadLetter, Progress
from headgate.kafka.record_sender import GroupNote, OutgoingRecord, RecordSender, Redelivery


class DeadLetterTopic:
    """Sends dead letters. Use from one thread; sending fails once ``is_ending`` returns true.

    Every call is bounded, and raises ``Unreachable`` with the reason if it did not succeed.
    """

    def __init__(
        self,
        kafka_config: Mapping[str, str],
        topic: str,
        group_id: str,
        is_ending: Callable[[], bool],
    ) -> None:
        what, hint = "dead-letter topic", "what is in the quarantine is sent when it can be"
        self._sender = RecordSender(kafka_config, topic, is_ending, what=what, hint=hint)
        self._note = GroupNote(kafka_config, group_id, topic)
        self.topic_id = ""
        """Known once the progress was read."""

    def read_progress(self) -> Progress | None:
        """Return the progress; ``None`` if none is known. Raises if there is no such topic."""
        self.topic_id = self._sender.require_topic_id()
        return Progress.from_offset_metadata(note) if (note := self._note.read()) else None

    def store_progress(self, progress: Progress) -> None:
        """Store how much was sent."""
        self._note.store(progress.to_offset_metadata())

    def send_letters(self, letters: Iterable[DeadLetter], again: Redelivery) -> int:
        """Send all letters but those that ``again`` remembers, as ``RecordSender.send``."""
        records = (OutgoingRecord(letter.key, letter.value, letter.headers) for letter in letters)
        return self._sender.send(records, again)

    def close(self) -> None:
        """Close, and drop what was not confirmed: it will be sent again."""
        self._sender.close()
