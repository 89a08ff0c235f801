"""Notices that the sink's table is committed by participants on another control topic.

Such a participant owns partitions and hears nobody, so that its partitions would stall for ever.
The commit record says which control topic its coordinator uses.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.control_protocol.errors import OtherConfiguration, RetryLater
from headgate.control_protocol.record import CommitRecord
from headgate.sink.settings import SinkSettings


class Lookout:
    """Looks at the record while the participant hears no coordinator; ``read`` may raise."""

    def __init__(
        self, settings: SinkSettings, read: Callable[[], CommitRecord | None], now_ms: int
    ) -> None:
        times = settings.coordinator
        self._settings = settings
        self._read = read
        self._every_ms = (
            times.election_timeout_ms + times.commit_interval_ms + times.commit_timeout_ms
        )
        self._due_ms = now_ms + self._every_ms
        self._before: CommitRecord | None = None

    def look(self, now_ms: int, *, unheard: bool) -> None:
        """Raise ``OtherConfiguration`` when others commit elsewhere.

        ``unheard``: partitions are owned, but no coordinator was heard. A record that does not move
        says nothing: all participants may have been given another topic since.
        """
        if not unheard:
            self._before, self._due_ms = None, now_ms + self._every_ms
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + self._every_ms
        try:
            record = self._read()
        except RetryLater:
            return
        before, self._before = self._before, record
        if record is None or before is None or record.same_commit(before):
            return
        ours = self._settings.control.topic
        if record.control_topic not in (None, ours):
            raise OtherConfiguration(
                f"sink {self._settings.name!r} is coordinated by {record.coordinator.member} on "
                f"control topic {record.control_topic}, but this sink file names {ours}: what this "
                "participant owns would never be committed",
                "give all participants of the sink the same file; to change control.topic, stop "
                "all of them first",
            )
