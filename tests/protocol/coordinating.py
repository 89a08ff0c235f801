"""Drives a coordinator: the pure machine, a table as a value, and a clock that the test moves.

``Coordinator.at(Phase.COLLECTING)`` is one that went the quiet way there. Everything else a test
says to it step by step; ``actions`` is what the last input made it want.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self, TypeVar

from protocol.values import (
    COORDINATOR,
    GROUP,
    RIVAL,
    SINK,
    log_record,
    offsets,
    record,
    topics,
    view,
)
from support.coordinator_states import check_step

from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import Event, LogRecord
from headgate.control_protocol.identifiers import Sender, TopicId
from headgate.control_protocol.machine_io import Append, Heard, LogLine, Stop, Tick
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    EvolvedTable,
    Landed,
    Lineage,
    Refused,
    Staging,
    TableView,
    TopicState,
    Unknown,
)
from headgate.control_protocol.schema_evolution import Refusal
from headgate.coordinator.inputs_and_actions import (
    Action,
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
    TableEvolved,
)
from headgate.coordinator.machine import step
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import CoordinatorSettings
from headgate.coordinator.state import Identity, State, Term

SETTINGS = CoordinatorSettings(
    commit_interval_ms=1_000,
    commit_timeout_ms=500,
    rebalance_delay_ms=50,
    election_timeout_ms=3_000,
    idleness_ms=10_000,
    tag_refresh_interval_ms=1_000_000,
    retry_backoff_ms=10,
    retry_backoff_max_ms=80,
)
IDENTITY = Identity(SINK, GROUP, COORDINATOR)
EPOCH = 7
"""What a coordinator has claimed when the table was at epoch 6, as it is unless a test says so."""

_Wanted = TypeVar("_Wanted", bound=Action)
_Request = (
    Look
    | StageManifests
    | DeliverPendingCommits
    | CommitTable
    | EvolveTable
    | ChangeTables
    | Append
)
WALL_AHEAD_MS = 1_700_000_000_000
_STEPS_MAX = 50


class Coordinator:
    def __init__(
        self,
        table: TableView | None = None,
        settings: CoordinatorSettings = SETTINGS,
        sources: dict[str, TopicState] | None = None,
        identity: Identity = IDENTITY,
    ) -> None:
        self.state = State(identity, settings)
        self.table = table or view(record(EPOCH - 1, 4, offsets(10, 20), RIVAL))
        self.sources = sources or topics((0, 1_000), (0, 1_000))
        self.start: Offsets | None = None
        self.note: str | None = None
        self.control_topic_id: TopicId | None = None
        self.now_ms = 1_000_000
        self.next_offset = 40
        self.actions: tuple[Action, ...] = ()
        self.pending: Action | None = None
        self.heard: list[LogRecord] = []
        self.secondaries: dict[str, TableView] = {}
        self.walk: list[tuple[Phase, Phase]] = []

    @classmethod
    def at(
        cls,
        phase: Phase,
        settings: CoordinatorSettings = SETTINGS,
        table: TableView | None = None,
    ) -> Self:
        made = cls(table, settings)
        made.until(phase)
        return made

    # ------------------------------------------------------------------------------- inputs

    def given(self, given: Input) -> None:
        before = self.state
        self.state, self.actions = step(before, given, self.now_ms)
        check_step(before, self.state)
        for action in self.actions:
            if isinstance(action, _Request):
                self.pending = action
        if self.phase is not before.phase:
            self.walk.append((before.phase, self.phase))

    def until(self, phase: Phase) -> None:
        """Ordinary things happen until it is there."""
        for _ in range(_STEPS_MAX):
            if self.phase is phase:
                return
            self.goes_on()
        raise AssertionError(f"never came to {phase}, is {self.phase}")

    def goes_on(self) -> None:
        """The next ordinary thing: what was wanted works, time passes, nobody else says a word."""
        pending, self.pending = self.pending, None
        match pending:
            case Look():
                self.looks(pending)
            case CommitTable():
                self.lands(pending.attempt)
            case StageManifests():
                self.drafts(pending)
            case DeliverPendingCommits():
                self.delivers(pending)
            case EvolveTable():
                self.evolves()
            case Append():
                self.hears_itself(pending)
            case None if self.phase is Phase.FOLLOWING:
                self.given(LeadershipGained())
            case None:
                self.waits(self.state.settings.commit_interval_ms)

    def follow(self, *secondaries: TableView) -> None:
        """The settings name these secondary tables, and here they are."""
        self.secondaries = {secondary.table: secondary for secondary in secondaries}
        identity = replace(self.state.identity, secondaries=tuple(self.secondaries))
        self.state = replace(self.state, identity=identity)

    def looks(self, asked: Look | None = None, read: SecondariesRead | None = None) -> None:
        """What it asked for is answered; ``read``: with these secondary tables."""
        asked = asked or self.state.call.asked
        if asked is None:
            return
        self.pending = None
        views = dict(self.secondaries)
        read = read or SecondariesRead(views)
        self.given(
            Looked(
                self.table if asked.primary else None,
                read if asked.tables or asked.remembered else None,
                self.sources_described() if asked.sources else None,
                self.now_ms + WALL_AHEAD_MS,
            )
        )

    def sources_described(self) -> SourcesDescribed:
        return SourcesDescribed(self.sources, self.start, self.note, self.control_topic_id)

    def follows(self, *secondaries: TableView) -> None:
        """The secondary tables are read; those that are named here are as given now."""
        self.secondaries |= {secondary.table: secondary for secondary in secondaries}
        self.looks()

    def drafts(self, wanted: StageManifests | None = None) -> None:
        """The manifests are written."""
        self.pending = None
        wanted = wanted or self.only(StageManifests)
        self.given(ManifestsStaged(tuple(drafted(draft) for draft in wanted.drafts)))

    def delivers(self, wanted: DeliverPendingCommits | None = None) -> None:
        """The catalog takes all deliveries, and says so."""
        self.pending = None
        wanted = wanted or self.only(DeliverPendingCommits)
        outcomes = {}
        for delivery in wanted.deliveries:
            landed = moved_by(delivery.base, delivery)
            self.secondaries[landed.table] = landed
            assert landed.tag is not None
            outcomes[landed.table] = Landed(landed.tag, landed)
        self.given(DeliveriesAnswered(outcomes))

    def unanswered(self, *, refused: bool = False) -> None:
        """The deliveries that it wants do not land, and the secondary tables show it."""
        self.pending = None
        outcome = Refused("the tag moved") if refused else Unknown("no answer in time")
        names = [delivery.base.table for delivery in self.only(DeliverPendingCommits).deliveries]
        self.given(DeliveriesAnswered(dict.fromkeys(names, outcome)))
        self.follows()

    def described(self) -> None:
        """The sources answer, and whatever else it asked for."""
        self.looks()

    def waits(self, ms: int) -> None:
        self.now_ms += ms
        self.given(Tick())

    def hears(
        self,
        event: Event,
        sender: Sender,
        *,
        epoch: int = EPOCH,
        transaction: int = 0,
        sequence: int | None = None,
    ) -> int:
        """Returns the place in the log, which is its sequence as well where none is given."""
        at = self.next_offset
        self.next_offset += 1
        number = at if sequence is None else sequence
        heard = log_record(at, event, sender, epoch=epoch, transaction=transaction, sequence=number)
        self.heard.append(heard)
        self.given(Heard(heard))
        return at

    def hears_itself(self, said: Append | None = None) -> None:
        """All that it last said, in order."""
        said = said or self.only(Append)
        self.pending = None
        for one in said.events:
            self.hears(one.event, COORDINATOR, epoch=one.epoch, transaction=one.transaction)

    def lands(self, attempt: CommitAttempt | None = None) -> None:
        """The catalog takes the attempt and says so."""
        landed = self.takes(attempt)
        assert landed.tag is not None
        self.given(CommitAnswered(Landed(landed.tag, landed)))

    def takes(self, attempt: CommitAttempt | None = None) -> TableView:
        """The catalog takes the attempt; whether it says so is another matter."""
        self.pending = None
        self.table = moved_by(self.table, attempt or self.attempt)
        return self.table

    def evolves(self, *refused: Refusal) -> None:
        """The catalog changes the columns and says so."""
        self.pending = None
        self.table = replace(self.table, schema_id=self.table.schema_id + 1)
        self.given(TableEvolved(EvolvedTable(self.table, ("+tip",), refused)))

    def refused(self) -> None:
        self.pending = None
        self.given(CommitAnswered(Refused("the branch head moved")))

    def unsure(self) -> None:
        self.pending = None
        self.given(CommitAnswered(Unknown("no answer in time")))

    def reads(self, table: TableView | None = None) -> None:
        """The primary table is read; and whatever else it asked for."""
        self.table = table or self.table
        self.looks()

    # ------------------------------------------------------------------------------ outputs

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def term(self) -> Term:
        assert self.state.term is not None
        return self.state.term

    @property
    def attempt(self) -> CommitAttempt:
        return self.only(CommitTable).attempt

    @property
    def said(self) -> tuple[Event, ...]:
        """The events that the last input made it say."""
        return tuple(one.event for a in self.all(Append) for one in a.events)

    @property
    def error(self) -> HeadgateError:
        return self.only(Stop).error

    @property
    def told(self) -> str:
        return "; ".join(tell.text for tell in self.all(LogLine))

    def all(self, kind: type[_Wanted]) -> list[_Wanted]:
        return [action for action in self.actions if isinstance(action, kind)]

    def only(self, kind: type[_Wanted]) -> _Wanted:
        (action,) = self.all(kind)
        return action

    def wants(self, kind: type[Action]) -> bool:
        return bool(self.all(kind))

    @property
    def reads_primary(self) -> bool:
        return any(look.primary for look in self.all(Look))

    @property
    def reads_tables(self) -> tuple[str, ...]:
        return tuple(table for look in self.all(Look) for table in look.tables)

    @property
    def reads_secondaries(self) -> bool:
        return any(look.tables or look.remembered for look in self.all(Look))

    @property
    def asks_sources(self) -> bool:
        return any(look.sources for look in self.all(Look))


def drafted(draft: Staging) -> PendingCommit:
    """What a secondary table is pending by a decision."""
    return PendingCommit(
        transaction=draft.transaction,
        coordinator=draft.coordinator,
        secondary=draft.table.uuid,
        table=draft.table.table,
        manifest=f"{draft.table.table}/{draft.transaction}.avro",
        rows=sum(file.records for file in draft.files),
        since_ms=draft.since_ms,
    )


def moved_by(table: TableView, attempt: CommitAttempt) -> TableView:
    """The table after the catalog took the attempt: a new snapshot under branch and tag."""
    snapshot = max(table.head or 0, table.tag or 0) + 1
    return replace(
        table,
        head=snapshot,
        tag=snapshot,
        record=attempt.record,
        branch_record=attempt.record,
        lineage=Lineage.CONTAINS_TAG,
    )


def with_foreign_commit(table: TableView) -> TableView:
    """The table after somebody else's commit: only the branch moved."""
    return replace(table, head=(table.head or 0) + 1_000)
