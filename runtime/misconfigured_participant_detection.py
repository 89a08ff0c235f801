"""Detects commits that others make where this participant hears nothing, or in its own group.

A participant with another control topic, or with another sink's name, owns partitions but hears
nobody: they would stall forever. The commit record tells which control topic its coordinator uses,
and the notes next to the group's offsets tell whose they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord, group_taken_error
from headgate.control_protocol.errors import HeadgateError, OtherConfiguration, RetryLater
from headgate.control_protocol.events import Envelope, Notice, NoticeKind
from headgate.control_protocol.identifiers import TopicId
from headgate.coordinator.recovery import require_not_stopped
from headgate.participant.state import State


@dataclass(frozen=True, slots=True)
class Sources:
    """What the lookout reads; each call may raise.

    ``record`` is the sink's own record and ``sinks`` are the sinks that the group's notes name.
    ``control_topic_id`` is the topic that this participant listens to, and ``refused`` counts the
    sink's events that it skipped there because of their signatures.
    """

    record: Callable[[], CommitRecord | None]
    sinks: Callable[[], frozenset[str]]
    control_topic_id: Callable[[], TopicId | None]
    refused: Callable[[], int] = lambda: 0


ASKED_EVERY_MS = 1_000
"""Shortest interval between looks at the table that notices of an operator's action cause."""


class MisconfigurationDetector:
    """Looks at table and group while the participant hears no coordinator.

    It also looks at once when a NOTICE reports an operator's action, which may have stopped the
    sink. Only the table decides: a forged notice causes a look, and nothing else.
    """

    def __init__(self, settings: SinkSettings, sources: Sources, now_ms: int) -> None:
        times = settings.coordinator
        self._settings = settings
        self._sources = sources
        self._every_ms = (
            times.election_timeout_ms + times.commit_interval_ms + times.commit_timeout_ms
        )
        self._due_ms = now_ms + self._every_ms
        self._heard: object = None
        self._before: CommitRecord | None = None
        self._others: frozenset[str] = frozenset()
        self._refused = 0
        self._asked = False
        self._asked_due_ms = now_ms

    def on_event(self, envelope: Envelope) -> None:
        """Take an event from the control topic, of any sink."""
        event = envelope.event
        if isinstance(event, Notice) and event.kind is NoticeKind.ASKED:
            self._asked |= envelope.sink == self._settings.name

    def require_not_misconfigured_or_stopped(
        self, state: State, now_ms: int, *, leads: bool
    ) -> None:
        """Raise an error if others commit elsewhere, or if an operator stopped the sink.

        Raises ``OtherConfiguration``, ``GroupTaken`` or, by the table, ``SinkStopped``.

        Nothing is asked while a coordinator is heard, which speaks at least once per interval. A
        finding must stand at two looks in a row. A record that does not move proves nothing: all
        participants may have been given another topic since.
        """
        self._require_not_stopped_after_request(state, now_ms)
        term = state.term
        heard = (term.epoch, term.coordinator, term.settled_to, term.ended, term.following)
        if leads or not state.work.owned or heard != self._heard:
            self._heard, self._due_ms = heard, now_ms + self._every_ms
            self._before, self._others = None, frozenset()
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + self._every_ms
        try:
            record, others = self._sources.record(), self._sources.sinks() - {state.sink}
            here, refused = self._sources.control_topic_id(), self._sources.refused()
        except RetryLater:
            return
        require_not_stopped(record, state.sink)
        before, self._before = self._before, record
        again, self._others = others & self._others, others
        unheard, self._refused = refused > self._refused, refused
        moves = record is not None and before is not None and not record.is_same_commit(before)
        error = self._other_coordinator_error(record, here) if moves and record else None
        if error is None and moves and unheard:
            error = self._other_signing_key_error()
        if error is None and again:
            error = group_taken_error(self._settings.source.group_id, min(again), state.sink)
        if error:
            raise error

    def _require_not_stopped_after_request(self, state: State, now_ms: int) -> None:
        if not self._asked or now_ms < self._asked_due_ms:
            return
        self._asked_due_ms = now_ms + ASKED_EVERY_MS
        try:
            record = self._sources.record()
        except RetryLater:
            return
        self._asked = False
        require_not_stopped(record, state.sink)

    def _other_coordinator_error(
        self, record: CommitRecord, topic_id_here: TopicId | None
    ) -> HeadgateError | None:
        ours = self._settings.control.topic
        coordinated = (
            f"sink {record.sink!r} is coordinated by {record.coordinator.member} on control topic"
        )
        lost = "the partitions of this participant would never be committed"
        if record.control_topic not in (None, ours):
            return OtherConfiguration(
                f"{coordinated} {record.control_topic}, but this sink file names {ours}: {lost}",
                "give all participants of the sink the same file; to change control.topic, stop "
                "all of them first",
            )
        if topic_id_here is not None and record.control_topic_id not in (None, topic_id_here):
            return OtherConfiguration(
                f"{coordinated} {ours} with id {record.control_topic_id}, but "
                f"{ours} in this participant's cluster has id {topic_id_here}: {lost}",
                "compare bootstrap.servers: all participants of a sink must use one Kafka cluster",
            )
        return None

    def _other_signing_key_error(self) -> HeadgateError:
        return OtherConfiguration(
            f"sink {self._settings.name!r} is running on control topic "
            f"{self._settings.control.topic}, but its events are not signed with this sink file's "
            "control.key: this participant hears nobody",
            "give all participants of the sink the same control.key; docs/guides/security.md "
            "explains how to rotate it",
        )
