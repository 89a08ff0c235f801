"""Where a sink stands: its epoch and offsets, its last transactions, who works on it now."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headgate.control_protocol.codec import SkipReason
from headgate.control_protocol.errors import ConfigurationError, HeadgateError, RetryLater
from headgate.control_protocol.events import (
    EndCommit,
    Envelope,
    Presence,
    PresenceKind,
    StartCommit,
)
from headgate.control_protocol.identifiers import Sender, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.operations.history import History, read_history
from headgate.operations.kafka_access import control_tail, source_topics
from headgate.operations.table_access import opened_table
from headgate.sink.settings import SinkSettings

TRANSACTIONS_SHOWN = 10
CONTROL_RECORDS_READ = 2_000
SIGNS_MISSED = 3
"""A participant that missed more signs of life than this is not shown as alive."""
_REFUSED = {
    SkipReason.UNSIGNED: (
        "unsigned events of this sink were passed over: does every member have control.key, or "
        "does somebody forge them?"
    ),
    SkipReason.WRONGLY_SIGNED: (
        "events of this sink with a wrong signature were passed over: has every member the same "
        "control.key, or does somebody forge them?"
    ),
    SkipReason.SIGNED: (
        "signed events of this sink could not be checked: this sink file has no control.key"
    ),
}


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """``next_offset`` by the table; ``log`` and ``lag`` (in offsets) when the source answers."""

    topic: str
    partition: int
    next_offset: int
    log_begin: int | None = None
    log_end: int | None = None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """One commit of the table, newest first."""

    transaction: str
    snapshot_id: int
    committed_ms: int
    records: int
    claim: bool
    quarantined: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class ParticipantStatus:
    """A participant by its last sign of life, ``seen_ms_ago`` by the clocks of two machines."""

    member: str
    incarnation: str
    state: str
    partitions: tuple[str, ...]
    buffered_records: int
    seen_ms_ago: int


@dataclass(frozen=True, slots=True)
class OffsetsReport:
    """``notes``: what could not be asked, and why; ``exit_code`` is then that of the reason."""

    partitions: tuple[PartitionStatus, ...]
    notes: tuple[str, ...]
    exit_code: int


@dataclass(frozen=True, slots=True)
class StatusReport:
    """``epoch`` 0: never started. ``notes`` and ``exit_code`` as in ``OffsetsReport``."""

    sink: str
    table: str
    uuid: str
    branch: str
    snapshot_id: int | None
    epoch: int
    transaction: str | None
    coordinator: str | None
    open_transaction: str | None
    paused: bool
    last_commit_ms: int | None
    valid_through_ms: int | None
    partitions: tuple[PartitionStatus, ...]
    transactions: tuple[TransactionStatus, ...]
    participants: tuple[ParticipantStatus, ...]
    notes: tuple[str, ...]
    exit_code: int

    @property
    def lag(self) -> int | None:
        lags = [partition.lag for partition in self.partitions]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if lags and len(known) == len(lags) else None

    def as_json(self) -> Mapping[str, Any]:
        return {**asdict(self), "lag": self.lag}


def status(settings: SinkSettings) -> StatusReport:
    """Raises what opening the table raises; without the brokers it tells what the table says."""
    notes = _Notes(settings)
    with opened_table(settings) as table:
        history = read_history(table, settings.name, settings.table.branch)
    record = history.record
    partitions = tuple(_partitions(settings, history, notes))
    unreachable = any(partition.log_end is None for partition in partitions)
    # Brokers that did not answer once are not waited for a second time.
    envelopes = [] if unreachable else _heard(settings, notes)
    return StatusReport(
        sink=settings.name,
        table=settings.table.identifier,
        uuid=history.uuid,
        branch=history.branch,
        snapshot_id=history.head,
        epoch=record.transaction.epoch if record else 0,
        transaction=str(record.transaction) if record else None,
        coordinator=str(record.coordinator) if record else None,
        open_transaction=_open_transaction(envelopes),
        paused=record.paused if record else False,
        last_commit_ms=history.commits[-1].committed_ms if history.commits else None,
        valid_through_ms=record.valid_through_ms if record else None,
        partitions=partitions,
        transactions=tuple(_transactions(history)),
        participants=tuple(_alive(settings, envelopes, time.time_ns() // 1_000_000)),
        notes=tuple(notes.texts),
        exit_code=notes.exit_code,
    )


def offsets(settings: SinkSettings) -> OffsetsReport:
    """The stored next offsets beside the source's logs. Raises as ``status``."""
    notes = _Notes(settings)
    with opened_table(settings) as table:
        history = read_history(table, settings.name, settings.table.branch)
    partitions = tuple(_partitions(settings, history, notes))
    return OffsetsReport(partitions, tuple(notes.texts), notes.exit_code)


class _Notes:
    """What could not be asked."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self.texts: list[str] = []
        self.exit_code = 0

    def failed(self, what: str, error: HeadgateError) -> None:
        self.texts.append(f"{what} not known: {self._settings.redacted(str(error))}")
        self.exit_code = error.exit_code


def _partitions(
    settings: SinkSettings, history: History, notes: _Notes
) -> Iterable[PartitionStatus]:
    stored = history.record.offsets if history.record else {}
    logs = _logs(settings, notes)
    for at, offset in sorted(stored.items()):
        log = logs.get(at)  # an empty one is false
        yield PartitionStatus(
            topic=at.topic,
            partition=at.partition,
            next_offset=offset,
            log_begin=log.begin if log is not None else None,
            log_end=log.end if log is not None else None,
            lag=log.end - offset if log is not None else None,
        )
    if unread := sorted(logs.keys() - stored.keys()):
        notes.texts.append(f"not read yet: {', '.join(str(at) for at in unread)}")


def _logs(settings: SinkSettings, notes: _Notes) -> Mapping[TopicPartition, OffsetRange]:
    try:
        with source_topics(settings) as topics:
            found = topics.describe()
    except (RetryLater, ConfigurationError) as error:
        notes.failed("lag and participants are", error)
        return {}
    return {
        TopicPartition(name, number): log
        for name, topic in found.items()
        for number, log in topic.partitions.items()
    }


def _transactions(history: History) -> Iterable[TransactionStatus]:
    for commit in reversed(history.commits[-TRANSACTIONS_SHOWN:]):
        yield TransactionStatus(
            transaction=str(commit.record.transaction),
            snapshot_id=commit.snapshot_id,
            committed_ms=commit.committed_ms,
            records=commit.record.records,
            claim=commit.record.claim,
            quarantined=commit.record.quarantined,
            skipped=commit.record.skipped,
        )


def _heard(settings: SinkSettings, notes: _Notes) -> list[Envelope]:
    refused: Counter[SkipReason] = Counter()
    try:
        envelopes = control_tail(settings, CONTROL_RECORDS_READ, refused)
    except (RetryLater, ConfigurationError) as error:
        notes.failed("participants are", error)
        return []
    for reason, count in sorted(refused.items()):
        notes.texts.append(f"{count} {_REFUSED[reason]}")
        notes.exit_code = notes.exit_code or 1
    return envelopes


def _open_transaction(envelopes: list[Envelope]) -> str | None:
    """The newest transaction that a coordinator opened and did not end yet."""
    for envelope in reversed(envelopes):
        match envelope.event:
            case StartCommit():
                return f"{envelope.epoch}.{envelope.transaction}"
            case EndCommit():
                return f"{envelope.epoch}.{envelope.transaction} (closing)"
    return None


def _alive(
    settings: SinkSettings, envelopes: list[Envelope], now_ms: int
) -> Iterable[ParticipantStatus]:
    """By each participant's last PRESENCE; one that says that it lost everything has left."""
    last: dict[Sender, tuple[Envelope, Presence]] = {}
    for envelope in envelopes:
        if isinstance(envelope.event, Presence):
            last[envelope.sender] = (envelope, envelope.event)
    silence_ms_max = SIGNS_MISSED * settings.participant.presence_interval_ms
    for sender, (envelope, presence) in sorted(last.items()):
        seen_ms_ago = max(0, now_ms - envelope.time_ms)
        left = presence.kind is PresenceKind.LOST and not presence.owned
        if seen_ms_ago <= silence_ms_max and not left:
            yield ParticipantStatus(
                member=sender.member,
                incarnation=sender.incarnation,
                state=presence.state,
                partitions=tuple(str(at) for at in sorted(presence.owned)),
                buffered_records=presence.buffered_records,
                seen_ms_ago=seen_ms_ago,
            )
