"""Renames what two situations may share: control offsets, epochs, numbers and snapshots.

All of them only grow and are only compared, so that a situation is the same when they are replaced
by their ranks. Ranks are taken over everything in the world that is still compared with anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from exploration.small_table import Call, Table, Update, drafted_in
from exploration.small_world import Member, Seat, World

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.events import (
    Answer,
    Envelope,
    Presence,
    Proposal,
    Settlement,
    StartCommit,
    Tables,
    WriteStatus,
    WrittenFile,
    WrittenRange,
)
from headgate.control_protocol.identifiers import Sender, TransactionId
from headgate.control_protocol.ports import TableView
from headgate.coordinator.state import HeardStatus, Recovery, ReplayWindow, Term
from headgate.coordinator.state import Timer as CoordinatorTimer
from headgate.participant.state import Need, OpenTransaction, State, Timer


class Ranks:
    """First every value is seen, then each is named by its rank."""

    def __init__(self, *fixed: int) -> None:
        self._seen = set(fixed)
        self._rank: dict[int, int] | None = None

    def see(self, value: int) -> None:
        self._seen.add(value)

    def of(self, value: int) -> int:
        if self._rank is None:
            self._rank = {seen: rank for rank, seen in enumerate(sorted(self._seen))}
        return self._rank[value]


def _sayable(world: World) -> frozenset[tuple[Sender, int]]:
    """What participants said that may be heard again: a window matters for nothing else."""
    held = (said for one in (*world.seats, *world.members) if one for said in one.held)
    said = {(each.sender, each.sequence) for each in (*held, *(r.envelope for r in world.log))}
    for member in world.members:
        state = member.state
        drafts = (
            *state.said.unheard,
            *(own.said for own in state.said.pending),
            *(need.said for need in state.needs.open),
        )
        said |= {(state.sender, draft.sequence) for draft in drafts}
    return frozenset(said)


class Canon:
    """One world's canonical form. Two passes over the same walk: see everything, then name it."""

    def __init__(self, world: World) -> None:
        self._places, self._epochs, self._numbers = Ranks(0), Ranks(0), Ranks(0)
        self._statuses: dict[Sender, Ranks] = {}
        self._sequences: dict[Sender, Ranks] = {}
        self._proposals: dict[Sender, Ranks] = {}
        self._snapshots: dict[int | None, int] = {None: 0}
        self._naming = False
        self._world = world
        self._sayable = _sayable(world)

    def key(self) -> Hashable:
        self._walk()
        self._naming = True
        return self._walk()

    # A place in the log is an even number, a cut between two places an odd one.

    def _place(self, offset: int | None) -> int | None:
        return None if offset is None else self._in(self._places, 2 * offset + 2)

    def _cut(self, offset: int | None) -> int | None:
        return None if offset is None else self._in(self._places, 2 * offset + 1)

    def _in(self, ranks: Ranks, value: int) -> int:
        if self._naming:
            return ranks.of(value)
        ranks.see(value)
        return 0

    def _status_number(self, sender: Sender, number: int) -> int:
        return self._in(self._statuses.setdefault(sender, Ranks(0)), number)

    def _proposal(self, sender: Sender, number: int) -> int:
        return self._in(self._proposals.setdefault(sender, Ranks(0)), number)

    def _sequence(self, sender: Sender, sequence: int) -> int:
        return self._in(self._sequences.setdefault(sender, Ranks()), sequence)

    def _snapshot(self, snapshot: int | None) -> int:
        """Snapshots are compared for being the same only: named in the order they are met."""
        if not self._naming:
            return 0
        return self._snapshots.setdefault(snapshot, len(self._snapshots))

    def _walk(self) -> Hashable:
        world = self._world
        return (
            self._table(world.table),
            tuple(map(self._table, world.secondaries)),
            world.pause and self._envelope(world.pause),
            world.pauses,
            tuple(map(self._seat, world.seats)),
            tuple(map(self._member, world.members)),
            tuple((self._place(r.offset), self._envelope(r.envelope)) for r in world.log),
            frozenset(self._attempt(call) for call in world.air if world.takes(call)),
            world.owners,
            world.leader,
            world.faults,
        )

    def _table(self, table: Table) -> Hashable:
        stands = (self._snapshot(table.tag), self._snapshot(table.head))
        return stands, self._record(table.record), table.rows, table.schema

    # ------------------------------------------------------------------------------- coordinators

    def _seat(self, seat: Seat | None) -> Hashable:
        if seat is None:
            return None
        state = seat.state
        return (
            state.phase,
            state.identity.sender,
            self._cut(seat.position) if not seat.broken else -1,
            self._in(self._epochs, state.watch.highest_epoch),
            state.watch.superseded_ms is None,
            frozenset(
                (sender, self._sequence(sender, number))
                for sender, number in self._sayable
                if state.watch.windows.get(sender, ReplayWindow()).has_number_or_none(number)
            ),
            CoordinatorTimer.RETRY not in state.deadlines,
            state.call.failures,
            frozenset((at, each.sender, each.times) for at, each in state.refused.items()),
            state.call.asked,
            state.recovery and self._recovery(state.recovery),
            state.term and self._term(state.term, state.deadlines),
            state.call.attempt and self._attempt(state.call.attempt),
            tuple(map(self._attempt, seat.calls)),
            tuple((name, type(answer)) for name, answer in seat.answers),
            state.suspicion.doubted,
            frozenset(map(self._envelope, seat.held)),
            state.pause_asked and (state.pause_asked.paused, self._seen(state.pause_asked.seen)),
        )

    def _recovery(self, recovery: Recovery) -> Hashable:
        primary, others = recovery.found.primary, recovery.secondaries
        views = frozenset((name, self._view(view)) for name, view in others.items())
        return primary and self._view(primary), views

    def _seen(self, transaction: TransactionId) -> Hashable:
        return self._in(self._epochs, transaction.epoch), self._in(
            self._numbers, transaction.number
        )

    def _term(self, term: Term, deadlines: Mapping[CoordinatorTimer, int]) -> Hashable:
        return (
            self._in(self._epochs, term.epoch),
            self._view(term.primary.view),
            term.progress.offsets,
            self._in(self._numbers, term.progress.number),
            self._in(self._numbers, term.previous_transaction_number),
            self._cut(term.progress.settled_to),
            self._cut(term.progress.heard_to),
            term.collection.awaited,
            tuple(map(self._heard, term.collection.statuses)),
            term.collection.named_by_presence,
            term.progress.settlement and self._event(None, term.progress.settlement),
            term.pause.paused,
            self._in(self._numbers, term.pause.answered),
            term.progress.valid_through_ms,
            frozenset((at, seen.timestamp_ms) for at, seen in term.progress.activity.items()),
            frozenset(
                (name, self._view(secondary))
                for name, secondary in term.delivery.secondaries.items()
            ),
            tuple(map(self._pending_commit, term.delivery.pending)),
            (
                term.delivery.asked,
                term.has_heard_first_start,
                CoordinatorTimer.DELIVERY in deadlines,
                term.primary.overtaken,
            ),
            tuple(self._answer(waiting.answer) for waiting in term.changes.proposals),
            deadlines.get(CoordinatorTimer.CHANGES),
            term.changes.tables and self._event(None, term.changes.tables),
            term.changes.answered_in == term.progress.number,
        )

    def _answer(self, answer: Answer) -> Hashable:
        return answer.sender, self._proposal(answer.sender, answer.number)

    def _heard(self, heard: HeardStatus) -> Hashable:
        return (
            self._place(heard.offset),
            heard.sender,
            self._in(self._numbers, heard.transaction),
            self._status(heard.sender, heard.status),
        )

    def _view(self, view: TableView) -> Hashable:
        stands = (self._snapshot(view.tag), self._snapshot(view.head))
        return *stands, self._record(view.record), view.schema_id

    def _record(self, record: CommitRecord | None) -> Hashable:
        return record and (
            self._in(self._epochs, record.transaction.epoch),
            self._in(self._numbers, record.transaction.number),
            record.coordinator,
            record.offsets,
            record.paused,
            record.valid_through_ms,
            record.primary,
            tuple(map(self._pending_commit, record.pending_commits)),
        )

    def _pending_commit(self, pending_commit: PendingCommit) -> Hashable:
        named = self._seen(pending_commit.transaction)
        return named, pending_commit.table, frozenset(map(self._path, drafted_in(pending_commit)))

    def _attempt(self, attempt: Call) -> Hashable:
        if isinstance(attempt, Update):
            return self._view(attempt.base)
        files = frozenset(map(self._file, attempt.files))
        base = (attempt.base.table, self._view(attempt.base))
        return (
            base,
            self._record(attempt.record),
            files,
            tuple(map(self._pending_commit, attempt.pending_commits)),
        )

    # ------------------------------------------------------------------------------- participants

    def _member(self, member: Member) -> Hashable:
        state = member.state
        return (
            state.sender,
            self._cut(member.position) if not member.broken else -1,
            self._in(self._epochs, state.term.epoch),
            state.term.coordinator,
            self._open(state.term.writing),
            self._open(state.term.following),
            self._in(self._numbers, state.term.ended),
            self._in(self._numbers, state.term.answered),
            self._cut(state.term.settled_to),
            self._ownerships(state),
            frozenset(state.work.leaving),
            frozenset(map(self._file, state.work.files)),
            frozenset(map(self._file, state.work.quarantine_files)),
            frozenset(
                self._file(file) for files in state.work.secondary_files.values() for file in files
            ),
            state.term.paused,
            frozenset(map(self._envelope, member.held)),
            state.run.batch and tuple(sorted(state.run.batch.ranges.items())),
            state.source.last_read_done,
            frozenset(state.source.looked),
            state.work.failure,
            frozenset(state.work.failed),
            tuple(
                (
                    self._place(own.offset),
                    self._in(self._numbers, own.said.transaction),
                    self._status(state.sender, own.status),
                    self._sequence(state.sender, own.said.sequence),
                )
                for own in state.said.pending
            ),
            frozenset(self._sequence(state.sender, draft.sequence) for draft in state.said.unheard),
            Timer.RESEND in state.deadlines,
            Timer.RETRY in state.deadlines,
            self._proposal(state.sender, state.needs.number),
            tuple(self._need(state.sender, need) for need in state.needs.open),
        )

    def _need(self, sender: Sender, need: Need) -> Hashable:
        number = self._proposal(sender, need.proposal.number)
        sequence = self._sequence(sender, need.said.sequence)
        return number, sequence, need.proposal.first, need.since_ms, need.heard

    def _ownerships(self, state: State) -> Hashable:
        return frozenset(
            (
                at,
                own.since is None and self._sequence(state.sender, own.presence),
                self._place(own.since) if own.work is None else None,
                own.work and self._claim(own.work),
            )
            for at, own in state.work.owned.items()
        )

    def _open(self, opened: OpenTransaction | None) -> Hashable:
        if opened is None:
            return None
        starts = (opened.quarantine, *opened.secondaries) if opened.quarantine else ()
        ahead = tuple(start.offsets for start in starts)
        schema = opened.table.schema_id
        return self._in(self._numbers, opened.number), opened.fixed, ahead, schema

    # ------------------------------------------------------------------------------------- events

    def _envelope(self, said: Envelope) -> Hashable:
        return (
            self._in(self._epochs, said.epoch),
            self._in(self._numbers, said.transaction),
            said.sender,
            self._event(said, said.event),
        )

    def _event(self, said: Envelope | None, event: object) -> Hashable:
        match event:
            case WriteStatus() if said:
                number = self._sequence(said.sender, said.sequence)
                return number, self._status(said.sender, event)
            case Presence() if said:
                return event.kind, event.concerns, self._sequence(said.sender, said.sequence)
            case StartCommit():
                ahead = tuple(table.offsets for table in event.tables)
                schema = event.tables[0].schema_id
                return (
                    "start",
                    self._cut(event.settled_to),
                    event.offsets,
                    event.paused,
                    ahead,
                    schema,
                )
            case Proposal() if said:
                number = self._sequence(said.sender, said.sequence)
                return "proposal", number, self._proposal(said.sender, event.number), event.first
            case Tables():
                schemas = tuple(table.schema_id for table in event.tables)
                return "tables", frozenset(map(self._answer, event.answers)), schemas
            case Settlement():
                return type(event).__name__, self._cut(event.settled_to), event.offsets
            case _:
                return type(event).__name__

    def _status(self, sender: Sender, status: WriteStatus) -> Hashable:
        claims = frozenset((at, self._claim(claim)) for at, claim in status.written.items())
        files = frozenset(self._file(file) for table in status.tables for file in table.files)
        number = self._status_number(sender, status.status_number)
        part = (status.part, status.parts)
        return number, part, claims, files, frozenset(status.unknown), status.failure

    def _claim(self, claim: WrittenRange) -> Hashable:
        span = (claim.range.begin, claim.range.end)
        counts = (claim.records, claim.deleted, claim.quarantined)
        return span, counts, claim.max_timestamp_ms

    def _file(self, file: WrittenFile) -> Hashable:
        return self._path(file.path)

    def _path(self, path: str) -> Hashable:
        """``.../<epoch>-<incarnation>/<transaction>/<name>``; the name says what it holds."""
        folder, transaction, name = path.rsplit("/", 2)
        root, epoch_folder = folder.rsplit("/", 1)
        epoch, incarnation = epoch_folder.split("-")
        return (
            root,
            self._in(self._epochs, int(epoch)),
            incarnation,
            self._in(self._numbers, int(transaction)),
            name,
        )


def canonical(world: World) -> Hashable:
    return Canon(world).key()
