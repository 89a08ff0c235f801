"""Reports where a sink stands: epoch and offsets, last transactions, who is working on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headgate.config.sink_settings import SinkSettings
from headgate.config.table_format_registry import describe_weaker_guarantee
from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    MissingRights,
    RetryLater,
    TableMissing,
)
from headgate.control_protocol.events import Envelope, Presence
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.message_encoding import SkipReason
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.spark_batch_decision import QUERY_TOPIC, is_record_of_query
from headgate.control_protocol.table_history import (
    FencedConnector,
    History,
    Newest,
    empty_history,
)
from headgate.kafka.cluster_queries import Cluster
from headgate.kafka.first_record_timestamps import try_read_first_timestamps
from headgate.operations.access.kafka_connection import (
    open_reachable_source_topics,
    read_control_tail,
)
from headgate.operations.access.tables import (
    describe_unusable_tables,
    find_start_error_of_table,
    find_unfinished_rollback_error,
    open_tables_for_reading,
)
from headgate.operations.status.held_partitions import (
    HeldPartition,
    describe_held_partitions,
    find_held_partitions,
)
from headgate.operations.status.report import (
    MEND_TABLES,
    CommitSummary,
    OffsetsReport,
    ParticipantStatus,
    PartitionStatus,
    RejectedRecord,
    StatusReport,
    total_lag_of,
)
from headgate.operations.status.returned_connector import (
    fenced_connector_of,
    require_connector_not_returned,
)
from headgate.runtime.health import (
    EXIT_CODES,
    Condition,
    Facts,
    Heard,
    LastError,
    condition_from,
    describe_open_transaction,
    summarize_heard_events,
)
from headgate.runtime.sink_tables import SinkTables
from headgate.runtime.telemetry.coordinator_progress import lag_gauges
from headgate.runtime.telemetry.metric_catalog import LAG_SECONDS
from headgate.runtime.wall_clock import wall_ms

TRANSACTIONS_SHOWN = 10
CONTROL_RECORDS_READ = 2_000
SIGNS_MISSED = 3  # a participant that missed more signs of life is not shown as alive
_REFUSED = {
    SkipReason.UNSIGNED: (
        "unsigned events of this sink were ignored: does every member have control.key, or "
        "does somebody forge them?"
    ),
    SkipReason.WRONGLY_SIGNED: (
        "events of this sink with a wrong signature were ignored: has every member the same "
        "control.key, or does somebody forge them?"
    ),
    SkipReason.SIGNED: (
        "signed events of this sink could not be checked: this sink file has no control.key"
    ),
    SkipReason.OTHER_VERSION: (
        "events of this sink are of another version of headgate: participants of two versions do "
        "not hear each other (stop all of them, and start one version)"
    ),
}


def read_status(
    settings: SinkSettings, transactions: int = TRANSACTIONS_SHOWN, *, with_age: bool = False
) -> StatusReport:
    """Look at the sink; without the brokers, report only what the table says.

    ``with_age``: also the age of the first record that is not in the table, by topic. Raises what
    opening the table raises.
    """
    notes = _Notes(settings.redact)
    now_ms = wall_ms()
    since_ms = now_ms - settings.coordinator.records_overdue_after_ms
    table_status = _read_table_status(settings, Newest(transactions, since_ms), notes)
    history, wrong, record = (
        table_status.history,
        table_status.wrong,
        table_status.history.current_record,
    )
    notes.texts += filter(None, [describe_weaker_guarantee(settings)])
    logs = _read_source_logs_or_note_failure(settings, notes, unread_since_ms=since_ms)
    partitions, held = (
        tuple(_partition_statuses(history, logs)),
        _find_and_note_held_partitions(settings, history, logs, notes),
    )
    # Brokers that did not answer once are not waited for again.
    envelopes = _read_control_tail_or_note_failure(settings, notes) if notes.reachable else []
    heard_events = summarize_heard_events(
        envelopes, now_ms, SIGNS_MISSED * settings.participant.presence_interval_ms
    )
    stopped = record is not None and record.stopped
    of_query = is_record_of_query(record) and not heard_events.alive
    if of_query:
        notes.texts.append("a Spark query fills the table: only its commits show whether it runs")
    ask_group = notes.reachable and heard_events.silent and not (stopped or of_query)
    cluster, group = Cluster(settings.kafka), settings.source.group_id
    unheard = 0
    if ask_group:
        unheard = _count_and_note_silent_members(cluster, group, settings.control.topic, notes)
    if table_status.connector and not wrong and notes.reachable:
        _note_returned_connector(cluster, table_status.connector, notes)
    if not (wrong or record) and notes.reachable:
        refused = find_start_error_of_table(settings)
        wrong = LastError.from_error(refused, settings.redact) if refused else None
    error = wrong or notes.wrong or heard_events.error
    stalled = _find_stalled_partitions(history, logs, since_ms)
    condition = condition_from(
        Facts(
            reachable=notes.reachable,
            epoch=record.transaction.epoch if record else 0,
            paused=record.paused if record else False,
            lag=total_lag_of(partitions, held),
            alive=len(heard_events.alive),
            ended=heard_events.ended,
            error=error,
            stalled=stalled,
            stopped=stopped,
            unheard=unheard,
            of_query=of_query,
            overdue=record is None
            and (heard_events.since_ms or now_ms)
            < now_ms - settings.coordinator.records_overdue_after_ms,
        )
    )
    report = StatusReport(
        sink=settings.name,
        condition=condition.value,
        table=settings.table.identifier,
        **_status_report_fields_of(history),
        open_transaction=describe_open_transaction(envelopes),
        pending_rows=sum(pending_commit.record_count for pending_commit in table_status.pending),
        partitions=partitions,
        held=held,
        transactions=tuple(_newest_commit_summaries(history, transactions)),
        participants=tuple(_alive_participants(heard_events, now_ms)),
        participants_known=notes.reachable,
        last_error=error,
        notes=tuple(notes.texts),
        exit_code=notes.exit_code
        if condition is Condition.UNKNOWN and notes.exit_code
        else EXIT_CODES[condition] or notes.exit_code,
        stalled=tuple(map(str, stalled)),
        rejected_records=table_status.bad,
    )
    if with_age and notes.reachable:
        earliest = partial(try_read_first_timestamps, settings.kafka, settings.source.group_id)
        return replace(report, lag_seconds=_lag_ages_by_topic(report, earliest, now_ms))
    return report


def _status_report_fields_of(history: History) -> Mapping[str, Any]:
    record = history.current_record
    who = record.actor or record.coordinator.member if record else ""
    return {
        "uuid": history.uuid,
        "branch": history.branch,
        "snapshot_id": history.head,
        "last_commit_ms": history.commits[-1].committed_ms if history.commits else None,
        "epoch": record.transaction.epoch if record else 0,
        "transaction": str(record.transaction) if record else None,
        "coordinator": str(record.coordinator) if record else None,
        "paused": record.paused if record else False,
        "valid_through_ms": record.valid_through_ms if record else None,
        "stopped_by": who if record and record.stopped else None,
    }


def _lag_ages_by_topic(
    report: StatusReport,
    read_first_times_ms: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]],
    now_ms: int,
) -> Mapping[str, float]:
    """Return the age of the oldest unstored record by topic, in seconds; without one, 0.

    ``read_first_times_ms`` asks for the times of the first records. Empty if the brokers do not
    answer.
    """
    partitions = (each for each in report.partitions if each.topic != QUERY_TOPIC)
    at = {TopicPartition(p.topic, p.partition): p for p in partitions}
    lags = {place: p.lag or 0 for place, p in at.items()}
    lags |= {each.at: each.records for each in report.held}
    stored = {place: p.next_offset for place, p in at.items()}
    stored |= {each.at: each.log_begin for each in report.held}
    behind = sorted((each for each, lag in lags.items() if lag), key=lambda each: -lags[each])
    try:
        first = read_first_times_ms({each: stored[each] for each in behind})
    except RetryLater:
        return {}
    gauges = lag_gauges(lags, first, now_ms)
    return {g.labels["topic"]: g.value for g in gauges if g.name == LAG_SECONDS}


def read_offsets(settings: SinkSettings) -> OffsetsReport:
    """Return the stored next offsets next to the source's logs.

    Raises as ``read_status``, and ``TableMissing`` before the first start has created the table.
    """
    notes = _Notes(settings.redact)
    with open_tables_for_reading(settings) as tables:
        history = tables.reader.history()
    logs = _read_source_logs_or_note_failure(settings, notes)
    partitions = tuple(_partition_statuses(history, logs))
    _find_and_note_held_partitions(settings, history, logs, notes)
    error = notes.wrong
    if error:
        notes.texts.append(f"{error.code} {error.text}")
    return OffsetsReport(partitions, tuple(notes.texts), notes.exit_code or (1 if error else 0))


@dataclass(frozen=True, slots=True)
class _TableStatus:
    """What the table says, what would stop a coordinator there, what is pending, and the newest
    rejected records."""

    history: History
    wrong: LastError | None = None
    pending: tuple[PendingCommit, ...] = ()
    bad: tuple[RejectedRecord, ...] = ()
    connector: FencedConnector | None = None


def _read_table_status(settings: SinkSettings, newest: Newest, notes: _Notes) -> _TableStatus:
    try:
        with open_tables_for_reading(settings) as tables:
            history = tables.reader.history(newest)
            refused = find_unfinished_rollback_error(tables)
            pending = tables.read_undelivered_commits(history.current_record)
            gone = describe_unusable_tables(tables, history)
            notes.texts += map(settings.redact, [*gone, MEND_TABLES] if gone else [])
            bad = _read_rejected_records(tables, history, notes)
            connector = fenced_connector_of(tables.reader)
    except TableMissing:
        if not settings.table.create:
            raise
        return _TableStatus(empty_history(settings.table.identifier, settings.table.branch))
    wrong = LastError.from_error(refused, settings.redact) if refused else None
    return _TableStatus(history, wrong, pending, bad, connector)


def _read_rejected_records(
    tables: SinkTables, history: History, notes: _Notes
) -> tuple[RejectedRecord, ...]:
    if not any(commit.record.quarantined for commit in history.commits):
        return ()
    from headgate.operations.status.rejected_records import (
        read_newest_rejected_records,
    )  # only if there are some

    try:
        return read_newest_rejected_records(tables)
    except HeadgateError as error:
        text = f"the last rejected records are not known: {error}"
        notes.texts.append(tables.settings.redact(text))
        return ()


class _Notes:
    """What could not be asked, what an answer showed as wrong, and the exit code for both."""

    def __init__(self, redacted: Callable[[str], str]) -> None:
        self.redact = redacted
        self.texts: list[str] = []
        self.exit_code = 0
        self.reachable = True
        self.wrong: LastError | None = None

    def note_failure(self, what_is: str, error: HeadgateError) -> None:
        """Note that ``what_is`` ("lag is") is not known, or an error that is no outage as wrong."""
        if isinstance(error, RetryLater | MissingRights):
            self.texts.append(f"{what_is} not known: {self.redact(str(error))}")
            self.exit_code, self.reachable = error.exit_code, False
        else:
            self.wrong = LastError.from_error(error, self.redact)


@dataclass(frozen=True, slots=True)
class _PartitionLog:
    """A source partition. ``unread_before``: the first offset that came after the asked time."""

    range: OffsetRange
    unread_before: int | None = None


def _partition_statuses(
    history: History, logs: Mapping[TopicPartition, _PartitionLog]
) -> Iterable[PartitionStatus]:
    stored = history.current_record.offsets if history.current_record else {}
    for at, offset in sorted(stored.items()):
        log = logs[at].range if at in logs else None
        yield PartitionStatus(
            topic=at.topic,
            partition=at.partition,
            next_offset=offset,
            log_begin=log.begin if log is not None else None,
            log_end=log.end if log is not None else None,
            lag=log.end - offset if log is not None and offset <= log.end else None,
        )


def _find_and_note_held_partitions(
    settings: SinkSettings,
    history: History,
    logs: Mapping[TopicPartition, _PartitionLog],
    notes: _Notes,
) -> tuple[HeldPartition, ...]:
    """Return what is held (KEY-8), and note all that the table's record does not name."""
    stored = history.current_record.offsets if history.current_record else {}
    held = find_held_partitions(settings, stored, {at: log.range for at, log in logs.items()})
    others = sorted(logs.keys() - stored.keys() - {each.at for each in held})
    if others:
        notes.texts.append(f"not read yet: {', '.join(map(str, others))}")
    notes.texts += describe_held_partitions(settings.changes, held, history.commits)
    return held


def _read_source_logs_or_note_failure(
    settings: SinkSettings, notes: _Notes, unread_since_ms: int | None = None
) -> Mapping[TopicPartition, _PartitionLog]:
    try:
        with open_reachable_source_topics(settings) as topics:
            described = topics.describe()
            before = topics.offsets_at(unread_since_ms) if unread_since_ms else {}
    except (RetryLater, ConfigurationError) as error:
        notes.note_failure("lag and participants are", error)
        return {}
    return {
        (at := TopicPartition(name, number)): _PartitionLog(log, before.get(at))
        for name, topic in described.items()
        for number, log in topic.partitions.items()
    }


def _find_stalled_partitions(
    history: History, logs: Mapping[TopicPartition, _PartitionLog], since_ms: int
) -> tuple[TopicPartition, ...]:
    """Return partitions that have not moved since then, though there were records to read."""
    record = history.current_record
    earlier = [commit.record for commit in history.commits if commit.committed_ms <= since_ms]
    if record is None or not earlier:
        return ()
    return tuple(
        at
        for at, offset in sorted(record.offsets.items())
        if earlier[-1].offsets.get(at) == offset
        and at in logs
        and offset < max(logs[at].unread_before or 0, logs[at].range.begin)
    )


def _newest_commit_summaries(history: History, count: int) -> Iterable[CommitSummary]:
    for commit in reversed(history.commits[-count:]):
        yield CommitSummary(
            transaction=str(commit.record.transaction),
            snapshot_id=commit.snapshot_id,
            committed_ms=commit.committed_ms,
            records=commit.record.records,
            claim=commit.record.is_claim,
            quarantined=commit.record.quarantined,
            skipped=commit.record.skipped,
            valid_through_ms=commit.record.valid_through_ms,
            keys=commit.record.keys,
        )


def _read_control_tail_or_note_failure(settings: SinkSettings, notes: _Notes) -> list[Envelope]:
    refused: Counter[SkipReason] = Counter()
    try:
        envelopes = read_control_tail(settings, CONTROL_RECORDS_READ, refused)
    except (RetryLater, ConfigurationError) as error:
        notes.note_failure("participants are", error)
        return []
    for reason, count in sorted(refused.items()):
        notes.texts.append(f"{count} {_REFUSED[reason]}")
        notes.exit_code = notes.exit_code or 1
    return envelopes


def _count_and_note_silent_members(cluster: Cluster, group: str, topic: str, notes: _Notes) -> int:
    """Return how many are in the group although nobody is heard, and note who they are.

    If the group cannot be asked, nothing is known: a process that cannot speak is not ready, and
    must not be reported as one that stopped.
    """
    try:
        members = cluster.describe_group(group).members
    except (RetryLater, ConfigurationError) as error:
        notes.note_failure(f"members of group {group} are", error)
        return 0
    if members:
        notes.texts.append(
            f"group {group} has members that nobody hears on control topic {topic}: "
            f"{', '.join(members)} - were they killed just now, is their clock wrong (HG-410), or "
            "their control topic another one? their logs say it"
        )
    return len(members)


def _note_returned_connector(cluster: Cluster, connector: FencedConnector, notes: _Notes) -> None:
    try:
        require_connector_not_returned(cluster, connector)
    except (RetryLater, ConfigurationError) as error:
        notes.note_failure(f"members of group {connector.group} are", error)


def _alive_participants(heard_events: Heard, now_ms: int) -> Iterable[ParticipantStatus]:
    for sender, envelope in sorted(heard_events.alive.items()):
        presence = envelope.event
        assert isinstance(presence, Presence)  # how participants are known to be alive
        yield ParticipantStatus(
            member=sender.member,
            incarnation=sender.incarnation,
            state=presence.state,
            partitions=tuple(str(at) for at in sorted(presence.owned)),
            buffered_records=presence.buffered_records,
            seen_ms_ago=max(0, now_ms - envelope.time_ms),
        )
