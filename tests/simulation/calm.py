"""What must hold while nothing fails: no honest work is refused, dropped or done twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.verdicts import Kind, Violation

from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    EndCommit,
    Envelope,
    Presence,
    PresenceKind,
    Settlement,
    StartCommit,
    WriteStatus,
)
from headgate.control_protocol.identifiers import Epoch, Sender, TopicPartition
from headgate.control_protocol.message_encoding import Skipped
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch

if TYPE_CHECKING:
    from simulation.world import World

ELECTION = TopicPartition("source", 0)
PENDING_MAX = 12
STATUSES_MAX = 60
MOVED_WAITS_MS_MAX = 700
STANDS_MS_MAX = 4_000
STALE = "file of an earlier transaction"
_GAINS = (PresenceKind.JOINED, PresenceKind.GAINED)


class Calm:
    """Looks at what is said and read; switched on while the weather is calm."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._read: dict[tuple[Epoch, TopicPartition], list[OffsetRange]] = {}
        self._sets: dict[tuple[Epoch, int], frozenset[TopicPartition]] = {}
        self._counted: set[tuple[Epoch, Sender, int]] = set()
        self._starts: set[tuple[Epoch, int]] = set()
        self._newborn: dict[Epoch, set[TopicPartition]] = {}
        self._unnamed: dict[Epoch, set[TopicPartition]] = {}
        self._settled_to: dict[tuple[Epoch, int], int] = {}
        self._gained_ms: int | None = None
        self._stands: dict[TopicPartition, tuple[int, int]] = {}
        self._leader: str | None = None
        self._epoch = self._echoed_epoch = Epoch(0)
        self.on = False
        self.epochs = 0
        self.elections = 0
        """Moves of the election partition and losses of the log: each may cost an epoch."""

    def begin(self) -> None:
        self.on = True
        self._read.clear()
        self._gained_ms = None
        self._stands.clear()
        # A claim that a catalog reported and the table does not have, said again to those who had
        # not heard it, cannot be told from a new one (LOG-5): the leader must go above it.
        is_below_echo = self._echoed_epoch > self._epoch
        self.epochs, self.elections = 0, int(self._election_is_due()) + int(is_below_echo)

    def log_is_lost(self) -> None:
        """What was said since the last commit is void: an epoch is due, and the open transaction's
        work is announced once more, so a partition begins to stand still from here."""
        self.elections += 1
        self._stands.clear()

    def _election_is_due(self) -> bool:
        """Before the calm the election partition was given to another than who led last."""
        heirs = (member for member, at in self._world.group.wanted.items() if ELECTION in at)
        return next(heirs, None) != self._leader

    def on_echo(self, said: Envelope | Skipped) -> None:
        """An old event is said again."""
        if isinstance(said, Envelope):
            self._echoed_epoch = max(self._echoed_epoch, said.epoch)

    def said(self, envelope: Envelope, offset: int) -> None:
        """It stands in the log, at this place for the first time."""
        self._complete(envelope, offset)
        event = envelope.event
        if isinstance(event, StartCommit) and event.settled_to is None:
            life = envelope.sender.incarnation.partition("c")[0]
            self._leader = f"{envelope.sender.member}.{life}"  # as the group calls it
            self._epoch = envelope.epoch
        stale = isinstance(event, Settlement) and STALE in event.reason
        self._world.struck["stale status refused"] += stale
        if not self.on:
            return
        self._end_comes_soon(envelope)
        refused = isinstance(event, AbortCommit) or (isinstance(event, Settlement) and event.reason)
        known = isinstance(event, Settlement) and "which is suspended" in event.reason  # SUSPEND-2
        # Behind a forged number that leapt, an old status said again counts as one to judge
        # (LOG-6).
        known |= self._world.struck["old event said again"] > 0
        if self._world.stamps and refused:  # TOKEN-2: what comes late, and after that, comes again
            known = True
        if refused and not known:
            if not self._world.events.homeless_of_late():
                raise Violation(Kind.WASTE, f"calm, but honest work is not taken: {event.reason}")
            if any(str(at) in event.reason for at in self._unnamed.get(envelope.epoch, ())):
                self._read.clear()  # the claim waited for one that nobody had: the rest comes again
        if isinstance(event, StartCommit) and event.settled_to is None:
            self.epochs += 1
            if self.epochs > self.elections:
                raise Violation(Kind.WASTE, "calm, but an epoch was given up")

    def _complete(self, envelope: Envelope, offset: int) -> None:
        """COMMIT-3: what is settled without a word of what is missing lacks nothing."""
        event, epoch = envelope.event, envelope.epoch
        place = (epoch, self._world.log.generation)
        unnamed = self._unnamed.setdefault(epoch, set())
        if isinstance(event, WriteStatus):
            unnamed -= {*event.written, *event.unknown}
        if isinstance(event, Presence) and event.kind in _GAINS:
            unnamed -= event.concerns
        if isinstance(event, StartCommit):
            start = frozenset(event.offsets)
            if event.settled_to is None:
                unnamed |= start
            self._sets[epoch, envelope.transaction] = start
            before = self._sets.get((epoch, envelope.transaction - 1), start)
            self._newborn.setdefault(epoch, set()).update(start - before)
            if event.settled_to is None:
                self._settled_to.setdefault(place, self._earliest(envelope, offset) + 1)
        if not isinstance(event, AckCommit) or place not in self._settled_to:
            return
        begin, self._settled_to[place] = self._settled_to[place], event.settled_to
        named = self._named(epoch, begin, event.settled_to)
        if named is None or event.reason or event.settled_to <= begin:
            return
        newborn = self._newborn.get(epoch, set())
        newborn -= named
        missing = self._sets.get((epoch, envelope.transaction), frozenset()) - named - newborn
        if missing:
            raise Violation(
                Kind.UNTRUTH, f"{epoch}.{envelope.transaction} is called complete without {missing}"
            )

    def _earliest(self, start: Envelope, offset: int) -> int:
        """Where its first copy is: one that came late was said before, and nobody told."""
        log = self._world.log
        copies = (
            place
            for place, said in enumerate(log.messages, log.begin)
            if isinstance(said, Envelope)
            and (said.sender, said.epoch, said.event) == (start.sender, start.epoch, start.event)
        )
        return next(copies, offset)

    def _named(self, epoch: Epoch, begin: int, end: int) -> set[TopicPartition] | None:
        """By whole statuses of the epoch and by gains; unknown where the log lost something."""
        log = self._world.log
        if self._world.climate.part_bytes is not None or self._world.log_truncated:
            return None
        named: set[TopicPartition] = set()
        for said in log.messages[begin - log.begin : end - log.begin]:
            event = said.event  # type: ignore[attr-defined]
            if isinstance(event, WriteStatus) and said.epoch == epoch:  # type: ignore[attr-defined]
                identity = (epoch, said.sender, event.status_number)  # type: ignore[attr-defined]
                if identity in self._counted:
                    continue
                self._counted.add(identity)
                named.update(event.unknown, event.written)
            if isinstance(event, Presence) and event.kind in _GAINS:
                named.update(event.concerns)
        return named

    def tried(self, envelope: Envelope) -> None:
        """It is appended, whatever becomes of that. COMMIT-1: who answered END can go on at
        once."""
        if isinstance(envelope.event, StartCommit):
            self._starts.add((envelope.epoch, envelope.transaction))
        after = (envelope.epoch, envelope.transaction + 1)
        if self.on and isinstance(envelope.event, Settlement) and after not in self._starts:
            raise Violation(
                Kind.WASTE, f"calm, but nobody may read while {after[1] - 1} is settled"
            )

    def _end_comes_soon(self, envelope: Envelope) -> None:
        """COMMIT-2: a moved partition does not stand still for an interval."""
        now_ms, rates = self._world.clock.now_ms, self._world.rates
        event = envelope.event
        if rates.append or rates.commit or self.elections:
            self._gained_ms = None  # an END of this weather may come late, or never
            return
        if isinstance(event, Presence) and event.kind is PresenceKind.GAINED and event.concerns:
            self._gained_ms = self._gained_ms or now_ms
        if isinstance(event, EndCommit):
            waited_ms = now_ms - (self._gained_ms or now_ms)
            self._gained_ms = None
            if waited_ms > MOVED_WAITS_MS_MAX:
                raise Violation(
                    Kind.WASTE, f"calm, but a moved partition waits {waited_ms} ms for END"
                )

    def reads(self, batch: Batch) -> None:
        """Nothing is read twice in an epoch; a new one voids what was not settled (EPOCH-3)."""
        if not self.on or self._world.log.generation or self._world.trouble.struck:
            return
        if self._world.stamps:  # what a late status said is read again (TOKEN-2)
            return
        for at, offsets in batch.ranges.items():
            before = self._read.setdefault((batch.transaction.epoch, at), [])
            if any(read.begin < offsets.end and offsets.begin < read.end for read in before):
                raise Violation(Kind.WASTE, f"calm, but {at} {offsets} is read again")
            before.append(offsets)

    def gives_back(self, batch: Batch) -> None:
        """SCHEMA-2: what met a need counts as not read."""
        for at, offsets in batch.ranges.items():
            read = self._read.get((batch.transaction.epoch, at), [])
            if offsets in read:
                read.remove(offsets)

    def stands_still(self) -> None:
        """A partition that has rows, an owner and no pause goes on, through elections too."""
        world, now_ms = self._world, self._world.clock.now_ms
        newest = world.oracle.newest
        paused = newest is None or newest.paused or world.paused_ms is not None
        if not self.on or paused or world.events.homeless_of_late():
            self._stands.clear()
            return
        lag = world.oracle.lag()
        stands = {at: (n, now_ms) for at, n in world.oracle.stored().items() if at in lag}
        for at, (offset, _) in stands.items():
            since = self._stands.get(at)
            if since and since[0] == offset:
                stands[at] = since
        self._stands = stands
        limit_ms = 2 * world.climate.coordinators.commit_interval_ms + STANDS_MS_MAX
        still = [str(at) for at, (_, since_ms) in stands.items() if now_ms - since_ms > limit_ms]
        if still:
            raise Violation(Kind.STARVATION, f"calm, but for {limit_ms} ms these stand: {still}")

    def memory(self) -> None:
        """Whatever the weather: what the machines remember has a bound."""
        for node in self._world.nodes:
            if node.gone:
                continue
            pending = len(node.participant.state.said.pending)
            if pending > PENDING_MAX:
                raise Violation(Kind.WASTE, f"{node.name} remembers {pending} statuses of its own")
            term = node.coordinator.state.term if node.coordinator else None
            if term is not None and len(term.collection.statuses) > STATUSES_MAX:
                raise Violation(
                    Kind.WASTE,
                    f"{node.name} remembers {len(term.collection.statuses)} unjudged statuses",
                )
