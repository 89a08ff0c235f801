"""Waits until a sink's table holds what somebody waits for.

That is a time (``headgate wait``: every record up to it), or the place where the topics ended when
a run began (``headgate run --until-latest``). Only what can be read in the table counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import (
    HeadgateError,
    RetryLater,
    TableMissing,
    type_and_first_line_of,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.ports import TopicState
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.operations.access.kafka_connection import read_topics
from headgate.operations.access.tables import open_tables_for_reading, routed_tables_in_ledger
from headgate.runtime.wall_clock import format_utc

LOOKED_AT_S = 2.0

_log = redacted_logger(__name__)

Topics = Mapping[str, TopicState]
"""Source topics by name."""


def wait_and_describe_tables_behind(
    settings: SinkSettings, through_ms: int, timeout_s: float
) -> tuple[str, ...]:
    """Return nothing once all tables are complete up to a time (epoch ms), else what is behind.

    The table says so itself (valid-through), unless nothing has come since: then it must hold what
    is in the topics once the time, and ``idleness_ms``, have passed. What does not answer is asked
    again until ``timeout_s`` is over. Raises ``RetryLater`` if the last look failed, else as
    ``open_tables_for_reading`` and ``open_reachable_source_topics``.
    """
    until_s = time.monotonic() + timeout_s
    past_ms = through_ms + settings.coordinator.idleness_ms
    topics: Topics | None = None
    while True:
        left_s = until_s - time.monotonic()
        try:
            if topics is None and time.time() * 1000 >= past_ms:
                topics = read_topics(settings)
            behind = tuple(_describe_tables_behind(settings, through_ms, topics))
        except RetryLater:
            if left_s <= 0:
                raise
        else:
            if not behind or left_s <= 0:
                return behind
        time.sleep(max(0.0, min(LOOKED_AT_S, left_s)))


def count_missing_offsets(
    record: CommitRecord | None, topics: Topics
) -> Mapping[TopicPartition, int]:
    """Return how many offsets of the topics, as they were, are not in the table.

    Partitions that lack none, or hold no record, are left out. Offsets of a topic that was deleted
    and created again say nothing about the new one.
    """
    missing: dict[TopicPartition, int] = {}
    for name, topic in topics.items():
        same = record is not None and record.topic_ids.get(name) == topic.topic_id
        offsets = record.offsets if record is not None and same else {}
        for number, log in topic.partitions.items():
            at = TopicPartition(name, number)
            if (count := log.end - max(log.begin, offsets.get(at, 0))) > 0:
                missing[at] = count
    return missing


def _describe_tables_behind(
    settings: SinkSettings, through_ms: int, topics: Topics | None
) -> Iterator[str]:
    try:
        with open_tables_for_reading(settings) as tables:
            record = tables.reader.view().record
            own = _describe_table_if_behind(
                tables.name, record.valid_through_ms if record else None, through_ms
            )
            is_behind = bool(own) and (
                topics is None or record is None or bool(count_missing_offsets(record, topics))
            )
            asks_others = bool(settings.tables) and not is_behind
            filled = (
                routed_tables_in_ledger(tables, tables.reader.history())
                if asks_others
                else set[str]()
            )
    except TableMissing as error:
        yield error.message
        return
    if is_behind:
        yield own + _why_behind_suffix(record)
    elif settings.tables:
        from headgate.operations.many_tables.list import list_tables

        for each in list_tables(settings).tables:
            if each.state == "missing" and each.table not in filled:
                continue  # a topic names it, and no record of that came
            text = _describe_table_if_behind(each.table, each.valid_through_ms, through_ms)
            if text and not (each.state == "open" and each.pending_rows == 0):
                yield text if each.state == "open" else f"{text} ({each.state}: {each.reason})"


def _describe_table_if_behind(
    table: str, valid_through_ms: int | None, wanted_through_ms: int
) -> str:
    if valid_through_ms is None:
        return f"{table} is not known to be complete up to any time"
    if valid_through_ms >= wanted_through_ms:
        return ""
    return f"{table} is complete up to {format_utc(valid_through_ms, '%Y-%m-%dT%H:%M:%SZ')}"


def _why_behind_suffix(record: CommitRecord | None) -> str:
    if record is None:
        return ": nothing is committed yet"
    hold = _describe_hold(record)
    return hold and f", and {hold}"


def _describe_hold(record: CommitRecord) -> str:
    """Return what a person did that keeps the sink from going on; empty for nothing."""
    if record.stopped:
        return "a person stopped the sink"
    return "the sink is paused" if record.paused else ""


@dataclass(slots=True)
class UntilLatest:
    """Sets ``stop`` once the table holds all that was in the topics when this was made.

    It sets it also where a person has stopped or paused the sink, and leaves it so until records
    would be overdue. ``topics``: as they were then. ``suspended``: tables that wait for a person,
    whose rows are pending still. Raises as ``open_reachable_source_topics``.
    """

    settings: SinkSettings
    stop: threading.Event = field(default_factory=threading.Event)
    topics: Topics = field(default_factory=dict)
    missing: Mapping[TopicPartition, int] = field(default_factory=dict)
    """What was still to be read at the last look: for each partition, how many offsets."""
    pending: bool = False
    """Whether the table has decided rows that other tables of the sink do not have yet."""
    suspended: tuple[str, ...] = ()
    hold: str = ""
    """What a person did that keeps the sink from going on, by the last look."""
    held_since_s: float | None = None
    """Since when all looks have found a hold."""
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self.topics = read_topics(self.settings)
        self.missing = count_missing_offsets(None, self.topics)

    @property
    def is_reached(self) -> bool:
        return not (self.missing or self.pending)

    def __enter__(self) -> Self:
        """Begin to look at the table, in a thread of its own; the last look comes at the end."""
        if self.missing:
            self._thread = threading.Thread(
                target=self._poll_then_stop_sink_when_reached, name="headgate-until-latest"
            )
            self._thread.start()
        else:
            self.stop.set()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        if self._thread:
            self._thread.join()
        if not self.is_reached:
            with suppress(HeadgateError):
                self.refresh_is_reached()

    def _poll_then_stop_sink_when_reached(self) -> None:
        while not self.stop.wait(LOOKED_AT_S):
            try:
                if self.refresh_is_reached() or self._is_held_for_long():
                    self.stop.set()
            except HeadgateError:
                continue  # not there yet, or away for a while: the sink itself says what is wrong
            except Exception as error:  # noqa: BLE001 - without this thread the run never ends
                why = type_and_first_line_of(error)
                _log.warning("whether the table holds everything could not be read: %s", why)

    def refresh_is_reached(self) -> bool:
        """Read the table; return whether it holds everything."""
        with open_tables_for_reading(self.settings) as tables:
            record = tables.reader.view().record
            pending = {each.table for each in tables.read_undelivered_commits(record)}
        missing = count_missing_offsets(record, self.topics)
        suspended = {each.table for each in record.suspended} if record else set[str]()
        self.suspended = tuple(sorted(pending & suspended))
        self.missing, self.pending = missing, bool(pending - suspended)
        self.hold = _describe_hold(record) if record else ""
        if not self.hold:
            self.held_since_s = None
        elif self.held_since_s is None:
            self.held_since_s = time.monotonic()
        return self.is_reached

    def _is_held_for_long(self) -> bool:
        """Return whether it is no restart, and no pause whose end this run was to hear."""
        if self.held_since_s is None:
            return False
        held_s = time.monotonic() - self.held_since_s
        return held_s * 1000 >= self.settings.coordinator.records_overdue_after_ms
