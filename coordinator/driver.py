"""Gives the pure machine its log, table, sources and clock; one turn at a time, no thread.

``run_once`` reads the log, passes events and time to the machine, executes the actions in order,
and feeds the results back until no action is left.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from headgate.control_protocol.errors import (
    HeadgateError,
    RetryLater,
    Unreachable,
)
from headgate.control_protocol.event_reader import Listener
from headgate.control_protocol.events import Envelope, Settlement
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.log_events import LogEvent, about
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    Clock,
    CommitOutcome,
    ControlLog,
    PrimaryTable,
    Secondaries,
    SourceTopics,
    TopicState,
)
from headgate.control_protocol.quarantine_policy import BadRecordLimits
from headgate.control_protocol.redacted_log import redacted_logger
from headgate.control_protocol.redaction import Redaction
from headgate.coordinator.actions import (
    AcknowledgeDelivered,
    Action,
    Append,
    CallFailed,
    ChangeTables,
    CommitAnswered,
    CommitTable,
    DeliveriesAnswered,
    DeliverPendingCommits,
    DescribeSecondaries,
    DescribeSources,
    Drafted,
    DraftManifests,
    EvolveTable,
    Heard,
    Input,
    LeadershipGained,
    LogLine,
    LogTruncated,
    ReadTable,
    SecondariesRead,
    SourcesDescribed,
    Stop,
    Stopped,
    TableEvolved,
    TableRead,
    TablesChanged,
    Tick,
    TidyDrafts,
)
from headgate.coordinator.machine import step
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import CoordinatorSettings
from headgate.coordinator.state import Identity, State

_log = redacted_logger("headgate.coordinator")
_Answer = TypeVar("_Answer")
Split = tuple[dict[str, _Answer], dict[str, HeadgateError]]

TRIES_IN_SILENCE = 3
SILENCE_MS_MAX = 5_000
"""A call that failed once or twice within this time is not reported: the next one mostly works."""


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where the very first claim begins: ``earliest``, ``latest``, or a time in epoch ms."""

    where: str | int = "earliest"

    def resolve(self, topics: SourceTopics, described: dict[str, TopicState]) -> Offsets:
        if isinstance(self.where, int):
            return topics.offsets_at(self.where)
        latest = self.where == "latest"
        return Offsets(
            {
                TopicPartition(topic, number): log.end if latest else log.begin
                for topic, state in described.items()
                for number, log in state.partitions.items()
            }
        )


@dataclass(frozen=True, slots=True)
class World:
    """The ports of one coordinator."""

    log: ControlLog
    table: PrimaryTable
    topics: SourceTopics
    clock: Clock
    ensure_log: Callable[[], None] = lambda: None
    """Creates the control topic when it is missing; called before seeking its end."""
    redaction: Redaction = field(default_factory=Redaction)
    """Masks secrets in everything that leaves this process."""
    control_topic_id: Callable[[], TopicId | None] = lambda: None
    """Returns the id of the topic that holds the log, if known."""
    on_trouble: Callable[[str, int | None], None] = lambda *_: None
    """Called with a failure that has repeated so often that a person should know, and the
    milliseconds until the next attempt.
    """
    secondaries: Secondaries | None = None
    """Set where the identity, or the table's record, may name secondary tables."""

    stamp: Callable[[], str] = lambda: ""
    """Returns the table's ``StampingTable.stamp``, if it has one; raises what ``read`` does."""


class CoordinatorDriver:
    """One life of one coordinator. Raises the ``StopSink`` error that ends it."""

    def __init__(
        self,
        identity: Identity,
        settings: CoordinatorSettings,
        world: World,
        start_at: StartAt,
        *,
        limits: BadRecordLimits | None = None,
    ) -> None:
        self.state = State(identity, settings, limits or BadRecordLimits())
        self._world = world
        self._start_at = start_at
        self._listener = Listener(world.log, identity.sink)
        self._sequence = 0
        self._fails_since_ms = 0
        self._adopted: CoordinatorSettings | None = None

    def adopt(self, settings: CoordinatorSettings) -> None:
        """Use these settings from the next START on; any thread may call it."""
        self._adopted = settings

    def primary(self) -> None:
        """Let the machine claim: a fresh poll shows ownership."""
        if not self._listener.behind:
            self._feed(LeadershipGained())

    def run_once(self, timeout_ms: int) -> bool:
        """Make one turn: at most ``timeout_ms`` of waiting for the log, plus the calls it makes.

        Return ``False`` when the log cannot be read now: wait a little before the next turn.
        """
        heard = False
        if self._adopted and self.state.phase in (Phase.OPEN, Phase.FOLLOWING):
            adopted, self._adopted = self._adopted, None
            self.state = replace(self.state, settings=adopted)
        try:
            if self._listener.behind:
                self._catch_up()
            for record in self._listener.hear(timeout_ms):
                self._feed(Heard(record))
            heard = not self._listener.behind
        except RetryLater as error:
            _log.warning("%s", error, extra=about(LogEvent.CONTROL_TOPIC_UNAVAILABLE))
        self._feed(Tick())
        return heard

    def _catch_up(self) -> None:
        """Seek the log's end *before* anything is appended: every own event must be heard."""
        self._world.ensure_log()
        broken = self._listener.stand()
        if broken is not None:
            self._feed(LogTruncated(broken))

    def _feed(self, given: Input) -> None:
        inputs: deque[Input] = deque([given])
        while inputs:
            self.state, actions = step(
                self.state, inputs.popleft(), self._world.clock.monotonic_ms()
            )
            for action in actions:
                answer = self._execute(action)
                if answer is not None:
                    inputs.append(answer)

    def _execute(self, action: Action) -> Input | None:
        if isinstance(action, Stop):
            raise self._world.redaction.of_error(action.error)
        try:
            return self._call(action)
        except RetryLater as error:
            return CallFailed(str(error))
        except HeadgateError as error:
            return Stopped(error)

    def _call(self, action: Action) -> Input | None:
        match action:
            case ReadTable():
                return TableRead(self._world.table.read())
            case DescribeSources(first_start):
                found = describe_sources(
                    self._world.topics, self._start_at, first_start=first_start
                )
                topic_id, stamp = self._world.control_topic_id(), self._world.stamp()
                return replace(found, control_topic_id=topic_id, stamp=stamp)
            case CommitTable(attempt):
                return CommitAnswered(self._world.table.commit(attempt))
            case EvolveTable(base, columns):
                return TableEvolved(self._world.table.evolve(base, columns))
            case (
                DescribeSecondaries()
                | DraftManifests()
                | DeliverPendingCommits()
                | TidyDrafts()
                | AcknowledgeDelivered()
                | ChangeTables()
            ):
                return self._call_secondaries(action)
            case Append():
                self._world.log.append(self._envelopes(action))
                self._tell_settled(action)
            case LogLine(text, trouble, lasts=lasts, event=event):
                level = logging.WARNING if trouble else logging.INFO
                extra = about(event, epoch=self.state.term.epoch if self.state.term else None)
                _log.log(level, "sink %s: %s", self.state.identity.sink, text, extra=extra)
                if trouble:
                    self._complain(text, lasts=lasts)
        return None

    def _call_secondaries(
        self,
        action: DescribeSecondaries
        | DraftManifests
        | DeliverPendingCommits
        | TidyDrafts
        | AcknowledgeDelivered
        | ChangeTables,
    ) -> Input | None:
        secondaries = self._world.secondaries
        assert secondaries is not None, "this sink has no secondary tables"
        match action:
            case DescribeSecondaries():
                return read_secondaries(secondaries, action, self._world.clock.wall_ms())
            case DraftManifests(drafts):
                pending_commits, troubles = _split_errors(secondaries.draft(drafts))
                return Drafted(
                    tuple(
                        pending_commit
                        for each in pending_commits.values()
                        for pending_commit in each
                    ),
                    troubles,
                )
            case DeliverPendingCommits(deliveries, timeout_ms):
                delivered: Split[CommitOutcome] = _split_errors(
                    secondaries.deliver(deliveries, timeout_ms)
                )
                return DeliveriesAnswered(*delivered)
            case ChangeTables(wants):
                return TablesChanged(secondaries.change(wants))
            case TidyDrafts(before, pending):
                secondaries.tidy(before, pending)
            case AcknowledgeDelivered(pending_commits):
                secondaries.acknowledge(pending_commits)
        return None

    def _complain(self, text: str, *, lasts: bool) -> None:
        now_ms, failures = self._world.clock.monotonic_ms(), self.state.failures
        if failures <= 1:
            self._fails_since_ms = now_ms
        lasts |= failures > 1 and now_ms - self._fails_since_ms >= SILENCE_MS_MAX
        if lasts or failures >= TRIES_IN_SILENCE:
            again_ms = self.state.retry_at_ms
            self._world.on_trouble(text, None if again_ms is None else max(0, again_ms - now_ms))

    def _tell_settled(self, said: Append) -> None:
        """Log one line per commit, with whatever was not in order."""
        for number, event in said.events:
            if not isinstance(event, Settlement):
                continue
            rows = sum(table.records for table in event.tables if table.snapshot_id)
            level = logging.WARNING if event.reason else logging.INFO
            if event.reason or any(table.snapshot_id for table in event.tables):
                told = f"transaction {said.epoch}.{number}: {rows} rows committed"
                aside = self.state.identity.secondaries
                if bad := sum(t.records for t in event.tables if t.table in aside):
                    told += f", {bad} records quarantined"
                why = f"; {event.reason}" if event.reason else ""
                said_of = {"epoch": said.epoch, "transaction": number, "rows": rows}
                extra = about(LogEvent.TRANSACTION_SETTLED, **said_of)
                _log.log(level, "sink %s: %s%s", self.state.identity.sink, told, why, extra=extra)

    def _envelopes(self, said: Append) -> list[Envelope]:
        envelopes = []
        for transaction, event in said.events:
            self._sequence += 1
            envelopes.append(
                Envelope(
                    sink=self.state.identity.sink,
                    epoch=said.epoch,
                    transaction=transaction,
                    sender=self.state.identity.sender,
                    sequence=self._sequence,
                    time_ms=self._world.clock.wall_ms(),
                    event=self._world.redaction.of_event(event),
                )
            )
        return envelopes


def read_secondaries(
    secondaries: Secondaries, asked: DescribeSecondaries, wall_ms: int
) -> SecondariesRead:
    """Return what the tables answer, and which of the remembered ones are gone (N5)."""
    gone = secondaries.missing(asked.remembered) if asked.remembered else {}
    views, troubles = _split_errors({**gone, **secondaries.describe(asked.tables)})
    return SecondariesRead(views, wall_ms, troubles)


def _split_errors(
    answers: Mapping[str, _Answer | HeadgateError],
) -> Split[_Answer]:
    """Split the answers of secondary tables from the errors of those that can be suspended (I1)."""
    troubles = {name: each for name, each in answers.items() if isinstance(each, HeadgateError)}
    return {n: a for n, a in answers.items() if not isinstance(a, HeadgateError)}, troubles


def describe_sources(
    topics: SourceTopics, start_at: StartAt, *, first_start: bool
) -> SourcesDescribed:
    """Return what a claim needs to know of the sources. Raises ``Unreachable``."""
    states = dict(topics.describe())
    if not first_start:
        return SourcesDescribed(states)
    silent = [f"{topic}/{n}" for topic, state in states.items() for n in state.silent]
    if silent:  # if left out, it would begin at its log's begin, whatever ``start_at`` says
        raise Unreachable(f"a first start needs every partition; without leader: {silent}")
    start = start_at.resolve(topics, states)
    return SourcesDescribed(states, start, topics.committed_note())
