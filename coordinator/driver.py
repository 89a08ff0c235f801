"""Gives the coordinator's machine its log, table, sources and clock."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Protocol, TypeVar

from headgate.control_protocol.errors import (
    HeadgateError,
    RetryLater,
    Unreachable,
)
from headgate.control_protocol.events import Settlement
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.machine_driver import MachineDriver
from headgate.control_protocol.machine_io import LogLine, OutgoingEvent
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    AllSecondaryTables,
    Clock,
    CommitOutcome,
    ControlLog,
    Landed,
    PrimaryTable,
    SourceTopics,
    TopicState,
)
from headgate.control_protocol.quarantine_policy import BadRecordLimits
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.control_protocol.redaction import Redaction
from headgate.coordinator.inputs_and_actions import (
    AcknowledgeDelivered,
    Action,
    CallFailed,
    ChangeTables,
    CommitAnswered,
    CommitTable,
    DeliveriesAnswered,
    DeliverPendingCommits,
    EvolveTable,
    Input,
    LeadershipGained,
    Look,
    Looked,
    ManifestsStaged,
    SecondariesRead,
    SourcesDescribed,
    StageManifests,
    Stopped,
    TableEvolved,
    TablesChanged,
    TidyStagedManifests,
)
from headgate.coordinator.machine import step
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import CoordinatorSettings
from headgate.coordinator.state import Identity, State, Timer

_log = redacted_logger("headgate.coordinator")
_Answer = TypeVar("_Answer")
Split = tuple[dict[str, _Answer], dict[str, HeadgateError]]

TRIES_IN_SILENCE = 3
SILENCE_MS_MAX = 5_000
"""A call that failed once or twice within this time is not reported: the next one mostly works."""


@dataclass(frozen=True, slots=True)
class StartAt:
    """Says where the very first claim begins: ``earliest``, ``latest``, or a time in epoch ms."""

    where: str | int = "earliest"

    def first_offsets(self, topics: SourceTopics, described: dict[str, TopicState]) -> Offsets:
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
    """Holds the ports of one coordinator."""

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
    secondaries: AllSecondaryTables | None = None
    """Set where the identity, or the table's record, may name secondary tables."""

    stamp: Callable[[], str] = lambda: ""
    """Returns the table's ``new_token()``, if it has such; raises what ``read`` does."""


class LogTurn(Enum):
    """Says whether a turn could read the log."""

    READ = auto()
    UNREADABLE = auto()


class CoordinatorDriver(MachineDriver[State, Input, Action]):
    """Runs one life of one coordinator. Raises the ``StopSink`` error that ends it."""

    def __init__(
        self,
        identity: Identity,
        settings: CoordinatorSettings,
        world: World,
        start_at: StartAt,
        *,
        limits: BadRecordLimits | None = None,
    ) -> None:
        super().__init__(
            State(identity, settings, limits or BadRecordLimits()),
            (identity.sink, identity.sender),
            world.log,
            world.clock,
            redaction=world.redaction,
            logger=_log,
        )
        self._world = world
        self._start_at = start_at
        self._fails_since_ms = 0
        self._adopted: CoordinatorSettings | None = None

    def adopt_settings(self, settings: CoordinatorSettings) -> None:
        """Use these settings from the next START on; any thread may call it."""
        self._adopted = settings

    def begin_to_lead_if_caught_up(self) -> None:
        """Tell the machine that leadership was gained, as a fresh poll shows; do nothing while the
        log is still to be caught up with."""
        if not self._listener.behind:
            self._feed_machine(LeadershipGained())

    def run_once(self, timeout_ms: int) -> LogTurn:
        """Make one turn: at most ``timeout_ms`` of waiting for the log, plus the calls it makes.

        Where the log is ``UNREADABLE`` now, wait a little before the next turn.
        """
        log = LogTurn.UNREADABLE
        adopted = self._adopted  # stays there: another thread may just set a newer one
        if (
            adopted is not None
            and adopted is not self.state.settings
            and self.state.phase in (Phase.OPEN, Phase.FOLLOWING)
        ):
            self.state = replace(self.state, settings=adopted)
        try:
            if self._listener.behind:
                self._world.ensure_log()
                self._seek_log_end_and_report_gap()
            self._feed_events_of_log(timeout_ms)
            if not self._listener.behind:
                log = LogTurn.READ
        except RetryLater as error:
            _log.warning("%s", error, extra=event_extra(LogEvent.CONTROL_TOPIC_UNAVAILABLE))
        self._tick()
        return log

    def _step_machine(self, given: Input) -> Sequence[Action]:
        self.state, actions = step(self.state, given, self._clock.monotonic_ms())
        return actions

    def _on_failure(self, action: Action, error: HeadgateError) -> Input:  # noqa: ARG002
        # Not raised here: the machine ends its term first, and then asks for the stop.
        return CallFailed(str(error)) if isinstance(error, RetryLater) else Stopped(error)

    def _epoch(self) -> int | None:
        return self.state.term.epoch if self.state.term else None

    def _may_wait_until_deadline(self) -> bool:
        """In the other phases some things are due by others' silence, which no deadline names."""
        return self.state.phase is Phase.OPEN

    def _call_port(self, action: Action) -> Input | None:
        match action:
            case Look():
                return self._answer_look(action)
            case CommitTable(attempt):
                return CommitAnswered(self._world.table.commit(attempt))
            case EvolveTable(base, columns):
                return TableEvolved(self._world.table.evolve(base, columns))
            case (
                StageManifests()
                | DeliverPendingCommits()
                | TidyStagedManifests()
                | AcknowledgeDelivered()
                | ChangeTables()
            ):
                return self._call_secondaries(action)
        return None

    def _answer_look(self, asked: Look) -> Looked:
        world = self._world
        found = answer_look(asked, world, self._start_at, world.clock.wall_ms)
        if (described := found.sources) is None:
            return found
        topic_id, stamp = world.control_topic_id(), world.stamp()
        return replace(found, sources=replace(described, control_topic_id=topic_id, stamp=stamp))

    def _call_secondaries(
        self,
        action: StageManifests
        | DeliverPendingCommits
        | TidyStagedManifests
        | AcknowledgeDelivered
        | ChangeTables,
    ) -> Input | None:
        secondaries = self._world.secondaries
        assert secondaries is not None, "this sink has no secondary tables"
        match action:
            case StageManifests(drafts):
                pending_commits, troubles = _split_off_errors(
                    secondaries.stage(drafts), self._redaction
                )
                return ManifestsStaged(
                    tuple(
                        pending_commit
                        for each in pending_commits.values()
                        for pending_commit in each
                    ),
                    troubles,
                )
            case DeliverPendingCommits(deliveries, timeout_ms):
                delivered: Split[CommitOutcome] = _split_off_errors(
                    secondaries.deliver(deliveries, timeout_ms), self._redaction
                )
                outcomes, troubles = delivered
                redacted = {name: self._with_reason_redacted(o) for name, o in outcomes.items()}
                return DeliveriesAnswered(redacted, troubles)
            case ChangeTables(wants):
                return TablesChanged(
                    tuple(
                        replace(
                            said,
                            why=self._redaction(said.why),
                            failure=self._redaction(said.failure),
                        )
                        for said in secondaries.create_or_change_tables(wants)
                    )
                )
            case TidyStagedManifests(before, pending):
                secondaries.delete_undecided_manifests(before, pending)
            case AcknowledgeDelivered(pending_commits):
                secondaries.delete_delivered_key_files(pending_commits)
        return None

    def _with_reason_redacted(self, outcome: CommitOutcome) -> CommitOutcome:
        if isinstance(outcome, Landed):
            return outcome
        return replace(outcome, reason=self._redaction(outcome.reason))

    def _on_logged(self, line: LogLine) -> None:
        """Report a failure where people look, once it repeats or lasts."""
        if not line.trouble:
            return
        now_ms, failures = self._clock.monotonic_ms(), self.state.call.failures
        if failures <= 1:
            self._fails_since_ms = now_ms
        lasts = line.lasts or (failures > 1 and now_ms - self._fails_since_ms >= SILENCE_MS_MAX)
        if lasts or failures >= TRIES_IN_SILENCE:
            again_ms = self.state.deadlines.get(Timer.RETRY)
            in_ms = None if again_ms is None else max(0, again_ms - now_ms)
            self._world.on_trouble(line.text, in_ms)

    def _on_appended(self, events: Sequence[OutgoingEvent]) -> None:
        """Log one line per commit, with whatever was not in order."""
        for said in events:
            if isinstance(said.event, Settlement):
                self._log_settlement(said, said.event)

    def _log_settlement(self, said: OutgoingEvent, settlement: Settlement) -> None:
        rows = sum(table.records for table in settlement.tables if table.snapshot_id)
        level = logging.WARNING if settlement.reason else logging.INFO
        if settlement.reason or any(table.snapshot_id for table in settlement.tables):
            text = f"transaction {said.epoch}.{said.transaction}: {rows} rows committed"
            aside = self.state.identity.secondaries
            if bad := sum(t.records for t in settlement.tables if t.table in aside):
                text += f", {bad} records quarantined"
            why = f"; {settlement.reason}" if settlement.reason else ""
            ids = {"epoch": said.epoch, "transaction": said.transaction, "rows": rows}
            extra = event_extra(LogEvent.TRANSACTION_SETTLED, **ids)
            _log.log(level, "sink %s: %s%s", self._sink, text, why, extra=extra)


class ReadablePorts(Protocol):
    """Says what a look reads: the ports of a coordinator, or of a person's claim."""

    @property
    def table(self) -> PrimaryTable: ...

    @property
    def topics(self) -> SourceTopics: ...

    @property
    def secondaries(self) -> AllSecondaryTables | None: ...

    @property
    def redaction(self) -> Redaction: ...


def answer_look(
    asked: Look, ports: ReadablePorts, start_at: StartAt, wall_ms: Callable[[], int]
) -> Looked:
    """Read what is asked for, in the order that PENDING-4 needs: the primary table first."""
    primary = ports.table.read() if asked.primary else None
    secondaries = sources = None
    looked_wall_ms = wall_ms()  # also where no secondary table is read: it may get some later
    if asked.tables or asked.remembered:
        assert ports.secondaries is not None, "this sink has no secondary tables"
        secondaries = _read_secondaries(ports.secondaries, asked, ports.redaction)
    if asked.sources:
        sources = _describe_sources(ports.topics, start_at, first_start=asked.first_start)
    return Looked(primary, secondaries, sources, looked_wall_ms)


def _read_secondaries(
    secondaries: AllSecondaryTables, asked: Look, redaction: Redaction
) -> SecondariesRead:
    """Return what the tables answer, and which of the remembered ones are gone (LEDGER-2)."""
    gone = secondaries.find_missing_tables(asked.remembered) if asked.remembered else {}
    answers = {**gone, **secondaries.try_read_views(asked.tables)}
    views, errors = _split_off_errors(answers, redaction)
    unread = {name: str(error) for name, error in errors.items() if isinstance(error, RetryLater)}
    troubles = {name: error for name, error in errors.items() if name not in unread}
    return SecondariesRead(views, troubles, unread)


def _split_off_errors(
    answers: Mapping[str, _Answer | HeadgateError], redaction: Redaction
) -> Split[_Answer]:
    """Split the answers of secondary tables from the errors of those that can be suspended
    (SUSPEND-1), redacted in place."""
    # They are cut to length where they are said, in START and in the table's record: half a secret
    # would be found by nobody.
    troubles = {
        name: redaction.redact_in_place(each)
        for name, each in answers.items()
        if isinstance(each, HeadgateError)
    }
    return {n: a for n, a in answers.items() if not isinstance(a, HeadgateError)}, troubles


def _describe_sources(
    topics: SourceTopics, start_at: StartAt, *, first_start: bool
) -> SourcesDescribed:
    """Return what a claim needs to know of the sources. Raises ``Unreachable``."""
    states = dict(topics.describe())
    if not first_start:
        return SourcesDescribed(states)
    silent = [f"{topic}/{n}" for topic, state in states.items() for n in state.silent]
    if silent:  # if left out, it would begin at its log's begin, whatever ``start_at`` says
        raise Unreachable(f"a first start needs every partition; without leader: {silent}")
    start = start_at.first_offsets(topics, states)
    return SourcesDescribed(states, start, topics.committed_offset_metadata())
