"""A whole deployment from one seed: real machines and drivers, simulated everything else.

Every actor (a node's participant, a node's coordinator) takes turns in an order drawn from the
seed. Before and after every call that leaves a node the world may *strike*: kill the node there,
or stall it there while all the others go on, for longer than any time-out if it likes. A ``real``
world has the real table adapter, over a catalog and storage in memory.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simulation import upheaval
from simulation.ages import AGED, Ages
from simulation.calm import Calm
from simulation.climate import FOR_EVER_MS, SLUGGISH_MS, Weather, drawn, limited, looking_round
from simulation.columns import Columns, has_some
from simulation.events import Events
from simulation.faulty import brief
from simulation.forger import Forger
from simulation.keeper import KEPT_FROM, Keeper
from simulation.kept import Kept
from simulation.keyed_fake import KeyedCatalog
from simulation.keyed_real import KeyedRealCatalog, KeyedStorage
from simulation.keys import Keys
from simulation.node import Actor, Node
from simulation.oracle import Oracle
from simulation.payday import ROUTED_KEYS, payday
from simulation.quarantine import Quarantine, has_one
from simulation.real_catalog import real_catalog
from simulation.silence import Silence
from simulation.stamps import Stamps
from simulation.trouble import Trouble
from simulation.unheard import Unheard
from simulation.wedges import Wedge
from simulation.whole import wholes
from support.verdicts import Kind, Violation

from headgate.control_protocol.errors import HeadgateError, PoisonRecord, StatusRefused
from headgate.control_protocol.events import (
    Envelope,
    Pause,
    Presence,
    PresenceKind,
    Resume,
    StartCommit,
    WriteStatus,
)
from headgate.control_protocol.identifiers import SinkName, TopicPartition, TransactionId
from headgate.control_protocol.message_encoding import decode_envelope
from headgate.control_protocol.ports import Batch, CommitAttempt
from headgate.control_protocol.testing import (
    AppendFault,
    CommitFault,
    FakeCatalog,
    FakeLog,
)
from headgate.coordinator.phases import Phase
from headgate.testing.in_memory_deployment import Deployment
from headgate.testing.node import Killed

SESSION_MS = 1_500
STEP_MS_MAX = 60
STEP_CALM_MS_MAX = 10
STEP_IDLE_MS_MAX = 150
ECHOES = 11
ECHO_RATE = 0.1
STALLS_DEEP_MAX = 4
REWRITES_APART_MS = 2_000
TURNS_BETWEEN_MEMORY_CHECKS = 50
BEYOND_ALL_TIME_OUTS_MS = 6_000

_GAINS = (PresenceKind.JOINED, PresenceKind.GAINED)
_UNSETTLED = (Phase.CLOSING, Phase.COLLECTING, Phase.COMMITTING, Phase.SETTLING)


class World(Deployment):
    def __init__(
        self, seed: int, *, real: bool = False, keyed: bool = False, stamped: bool = False
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self._echoes = random.Random(f"echoes {seed}")
        self.climate = drawn(self.random)
        limited(self.climate, random.Random(f"limits in {seed}"))
        looking_round(self.climate, seed)
        self.keys = Keys(seed, self.climate) if keyed else None
        self.ages = Ages(self, self.keys) if real and seed in AGED else None
        self.stamps = Stamps(self) if stamped else None
        self.sink = SinkName("sim")
        self.forger = Forger(self)
        self._compacted_ms = 0
        self.silence = Silence(self)
        self.unheard = Unheard(self)
        whole = self.climate.upheaval in (None, "recreate topic")
        routed = real and seed in ROUTED_KEYS and whole
        self.follows_keys = self.keys is not None and routed
        """Whether tables that rows are routed to have the key, and not the primary table."""
        if self.keys and routed:
            self.keys.of_routes(seed)
        self.rates = self.climate.rates
        super().__init__({"source": self.climate.partitions})
        self.catalog: Any = self._catalog(real=real)
        self.quarantine = (
            Quarantine(
                seed,
                self.sink,
                self.catalog.storage,
                self.clock,
                ledger=self.follows_keys
                or (self.climate.upheaval is None and not (keyed or stamped)),
            )
            if has_one(seed) and (keyed or not self.ages)  # rows of a ledger are elsewhere
            else None
        )
        self.payday = payday(seed)
        if self.follows_keys:
            assert self.quarantine is not None
            assert self.keys is not None
            self.quarantine.goes_third = self.keys.goes_third
        self.wholes = wholes(self) if real else []
        maintained = seed >= KEPT_FROM or seed in AGED or (self.follows_keys and seed % 2 == 1)
        self.keeper = Keeper(self) if real and maintained else None
        evolves = has_some(seed) and not (real or keyed)
        self.columns = Columns(seed, self.catalog) if evolves else None
        of_routes = self.keys if self.follows_keys else None
        self.kept = Kept(self.sink, self.quarantine, of_routes) if self.quarantine else None
        self.oracle = Oracle(
            self.sink,
            self.catalog,
            self.source,
            self.kept,
            columns=self.columns,
            keys=None if self.follows_keys else self.keys,
            ages=self.ages,
        )
        self.trouble = Trouble(self)
        plain = not (real or keyed or stamped)
        self.calm = Calm(self)
        self.poison: tuple[TopicPartition, int] | None = None
        self.mended = False
        """The poison is as good as any other record now."""
        self._mends_records = random.Random(f"mended {seed}").random() < 0.5
        self.broken = self.climate.upheaval is None
        self.wedge = Wedge(self, plain=plain)
        self.paused_ms: int | None = None
        self.written_ms: dict[str, int] = {}
        """When each data file was done."""
        self.incarnations = self.assignments = self.group_changes = 0
        self.deep = self.turns = self.idle = 0
        self.struck: Counter[str] = Counter()
        """How often each kind of fault really befell somebody."""
        self._restarts: list[tuple[int, Node]] = []
        self._transcript: list[tuple[int, str, Sequence[object]]] = []
        self._round: list[Actor] = []
        self._honest()
        self.events = Events(self)
        self.nodes = [Node(self, k) for k in range(self.climate.nodes)]
        for node in self.nodes:
            node.start()
        self.events.rebalance()

    def _catalog(self, *, real: bool) -> Any:
        if self.ages:
            return self.ages.new_catalog()
        if self.keys is None:
            return real_catalog(self.seed) if real else FakeCatalog()
        if not real:
            return KeyedCatalog(keys=self.keys)
        if self.follows_keys:
            return real_catalog(self.seed, KeyedStorage(self.keys))
        return KeyedRealCatalog(self.keys, "lake.records", serves=self.seed % 2 == 0)

    @property
    def catalogs(self) -> tuple[FakeCatalog, ...]:
        """The primary table's, and its secondary tables'."""
        return (self.catalog, *self.secondaries.values())

    @property
    def secondaries(self) -> dict[str, Any]:
        return self.quarantine.catalogs if self.quarantine else {}

    def one_catalog(self) -> FakeCatalog:
        return self.random.choice(self.catalogs) if self.quarantine else self.catalog

    def _honest(self) -> None:
        """What cannot be promised when the catalog lies, or a policy gives rows up."""
        climate = self.climate
        if climate.rates.lie:
            climate.start_at = replace(climate.start_at, where="earliest")
        self.oracle.checks_valid_through = climate.upheaval is None
        self.oracle.nobody_is_idle = climate.coordinators.idleness_ms == FOR_EVER_MS
        self._copies_checked = not (climate.rates.lie or climate.upheaval or self.forger.unsigned)
        self.log_truncated = self.forger.unsigned

    # ------------------------------------------------------------------------------- the transcript

    def note(self, text: str, *about: object) -> None:
        self._transcript.append((self.clock.now_ms, text, about))

    def note_said(self, node: Node, envelope: Envelope) -> None:
        self._transcript.append((self.clock.now_ms, node.name + " says {}", (envelope,)))
        self.calm.tried(envelope)
        if self.stamps:
            self.stamps.hears(envelope)

    def transcript(self, last: int = 10**9) -> str:
        return "\n".join(
            f"{at:6} " + text.format(*(brief(x) if isinstance(x, Envelope) else x for x in about))
            for at, text, about in self._transcript[-last:]
        )

    # ------------------------------------------------------------------------------- the strikes

    def chance(self, rate: float) -> bool:
        return rate > 0 and self.random.random() < rate

    def strike(self, node: Node, life: int, where: str) -> None:
        """The node is about to call, or was just answered: a good moment to hit it."""
        if node.gone or node.life != life:
            raise Killed
        if self.chance(self.rates.kill):
            self.kill(node, where)
            raise Killed
        if self.deep < STALLS_DEEP_MAX and self.chance(self.rates.stall):
            self.stall(node, where)
            if node.gone or node.life != life:
                raise Killed

    def strike_between(self, node: Node) -> None:
        """The primary table has decided, and secondary tables are not delivered. In the wildest
        weather few commits get so far: this strikes for a while when the other faults have
        stopped."""
        quarantine, weather = self.quarantine, self.climate.weather
        if self.calm.on or weather not in (Weather.WILD, Weather.UPHEAVAL) or not quarantine:
            return
        if quarantine.kills_left and self.chance(0.5):
            quarantine.kills_left -= 1
            self.kill(node, "decided and not delivered")
            raise Killed

    def kill(self, node: Node, where: str) -> None:
        self.note("{} is killed at {}", node.name, where)
        self.struck[f"kill at {where}"] += 1
        node.gone = True
        self._restarts.append((self.clock.now_ms + self.random.randint(0, 3_000), node))

    def leaves(self, node: Node, away_ms: int) -> None:
        """ELECTION-2: its process leaves the group, and comes back once it can read the table."""
        self.note("{} leaves the lead to others", node.name)
        self.struck["lead released"] += 1
        node.gone = True
        if not self.wedge.cuts(node):
            self._restarts.append((self.clock.now_ms + away_ms, node))
        self.expel(node.member)
        self.events.rebalance()

    def stall(self, node: Node, where: str) -> None:
        """The others go on while the node stands still in the middle of its call."""
        until_ms = self.clock.now_ms + self.random.choice(
            (20, 100, 400, 2_000, BEYOND_ALL_TIME_OUTS_MS)
        )
        self.note("{} stalls at {} until {}", node.name, where, until_ms)
        long = until_ms - self.clock.now_ms == BEYOND_ALL_TIME_OUTS_MS
        self.struck[f"stall{' beyond all time-outs' if long else ''} at {where}"] += 1
        life, node.stalled_until_ms = node.life, until_ms
        self._others_until(until_ms, lambda: not node.gone and node.life == life)
        self.note("{} wakes at {}", node.name, where)

    def _others_until(self, until_ms: int, as_long_as: object = lambda: True) -> None:
        self.deep += 1
        while self.clock.now_ms < until_ms and as_long_as():  # type: ignore[operator]
            self.turn()
        self.deep -= 1

    def catalog_is_slow(self) -> None:
        """The call takes its time; the node's participant and all the others go on."""
        if self.deep < STALLS_DEEP_MAX and self.chance(self.rates.slow):
            self.note("  the catalog is slow")
            self.struck["slow catalog"] += 1
            self._others_until(self.clock.now_ms + self.random.choice((50, 500, 2_500)))

    def catalog_lies(self) -> bool:
        lying = self.chance(self.rates.lie)
        self.struck["commit answered without landing"] += lying
        return lying

    def has_key(self, catalog: Any) -> bool:
        """Whether this table's records replace and delete its rows."""
        return self.keys is not None and catalog.table in self.keys.tables

    def marks_rows(self, catalog: Any) -> bool:
        """Whether deletes mark rows of this table (KEY-13)."""
        return self.keys is not None and self.keys.marks and self.has_key(catalog)

    def somebody_compacts(self, catalog: Any) -> None:
        """Between any two steps of a commit to a keyed table (KEY-5); in the calm seldom, and where
        rows expire besides, when the faults are over (seed 751011 got nowhere for 12 s)."""
        if not self.keys or not self.has_key(catalog):
            return
        healed = self.ages is not None and self.rates.event == 0
        quiet = self.calm.on or healed
        soon = quiet and self.clock.now_ms < self._compacted_ms + REWRITES_APART_MS
        if self.chance(self.keys.moves) and catalog.reachable and not soon:
            self._compacted_ms = self.clock.now_ms
            self.struck["table compacted meanwhile"] += 1
            catalog.compact()

    def commit_fault(self, catalog: FakeCatalog, called: str) -> None:
        if self.chance(self.rates.commit):
            fault = self.random.choice(list(CommitFault))
            self.note("  {}commit fault: {}", called, fault.name)
            self.struck[f"{called}commit {fault.name}"] += 1
            catalog.faults.append(fault)

    def log_fault(self) -> None:
        if self.chance(self.rates.append):
            fault = self.random.choice(list(AppendFault))
            self.note("  append fault: {}", fault.name)
            self.struck[f"append {fault.name}"] += 1
            self.log.faults.append(fault)

    def torn(self, envelopes: Sequence[Envelope]) -> int | None:
        """How many of these arrive before the connection breaks; ``None``: it holds."""
        if len(envelopes) < 2 or not self.chance(self.rates.torn):
            return None
        self.struck["append torn"] += 1
        return self.random.randrange(1, len(envelopes))

    def appended(self, envelopes: Sequence[Envelope], begin: int) -> None:
        """What is in the log now: the checkers hear it, and a retry may leave it there twice."""
        if self.log.end <= begin:
            return
        for place, envelope in enumerate(envelopes, begin):
            self._tally(envelope)
            self.forger.hears(envelope)
            self.calm.said(envelope, place)
            if isinstance(envelope.event, StartCommit):
                said = TransactionId(envelope.epoch, envelope.transaction)
                self.oracle.started(envelope.event, said, self.clock.now_ms)
        if self.chance(self.rates.again):
            self.struck["append twice"] += 1
            self.log.append(*self.log.messages[-len(envelopes) :])
        self._echo()

    def _echo(self) -> None:
        """Somebody says a genuine event again, of whatever age (LOG-5); with dice of its own, in
        some seeds, so that the others are what they would be without."""
        if self.seed % 25 == ECHOES and not self.calm.on and self._echoes.random() < ECHO_RATE:
            message = self._echoes.choice(self.log.messages)
            self.log.append(message)
            self.on_echo(message)

    def on_echo(self, message: Any) -> None:
        """An old event is said again: in bytes where events are signed, else an envelope itself."""
        self.struck["old event said again"] += 1
        if isinstance(message, bytes):
            wire, topic_id = self.forger.wire, self.log.topic_id
            message = (
                wire.verify_and_decode(message, topic_id) if wire else decode_envelope(message)
            )
        self.calm.on_echo(message)

    def _tally(self, said: Envelope) -> None:
        """Situations that nobody makes happen, and that must happen all the same."""
        coordinators = [node.coordinator for node in self.nodes if node.coordinator]
        in_term = [c.state for c in coordinators if c.state.term]
        if isinstance(said.event, WriteStatus) and said.event.parts > 1:
            self.struck["status in parts"] += 1
        gain = isinstance(said.event, Presence) and said.event.kind in _GAINS
        if gain and any(state.phase in _UNSETTLED for state in in_term):
            self.struck["gain in mid-transaction"] += 1
        if isinstance(said.event, StartCommit):
            self.struck["quarantine ahead"] += any(t.offsets for t in said.event.tables)
        if isinstance(said.event, StartCommit) and len(in_term) > 1:
            self.struck["two coordinators"] += 1

    def say(self, envelope: Envelope) -> None:
        self.note("somebody says {}", envelope)
        FakeLog(self.log, self.forger.wire).append([envelope])
        if isinstance(envelope.event, Pause) or envelope.event == Resume():
            paused = isinstance(envelope.event, Pause)
            self.paused_ms = self.clock.now_ms if paused else None

    def some_of(self, count: int, role: str) -> int:
        if self.rates.event == 0 or self.calm.on:
            return count
        if role == "coordinator" and self.chance(self.climate.deaf):
            self.struck["coordinator behind the log"] += count > 0
            return 0
        return self.random.randint(0, count)

    def work_ms(self, node: Node) -> int:
        if node.number in self.climate.sluggish:
            return SLUGGISH_MS
        return self.random.choice(self.climate.works_ms)

    def batch_fails(self) -> bool:
        failing = self.chance(self.rates.batch)
        self.struck["batch fails"] += failing
        return failing

    def group_offsets_copied(self) -> None:
        """The copy in the group never runs ahead of the table."""
        if not self._copies_checked:
            return
        self.oracle.look()
        stored = self.oracle.stored()
        for at, (offset, _) in self.source.committed.items():
            if offset > stored.get(at, 0):
                raise Violation(
                    Kind.UNTRUTH, f"the group says {offset} of {at}, the table {stored.get(at)}"
                )

    def checks_age(self, attempt: CommitAttempt) -> None:
        """TOKEN-1: what others' orphan clean-up may have removed is committed no more."""
        since_ms = self.clock.now_ms - self.climate.coordinators.claim_age_max_ms
        drafted = self.quarantine.drafted if self.quarantine else {}
        own = [
            d for d in attempt.record.pending_commits if d.transaction == attempt.record.transaction
        ]
        for file in (*attempt.files, *(f for d in own for f in drafted.get(d.manifest, ()))):
            written_ms = self.written_ms.get(file.path, since_ms)
            if written_ms < since_ms:
                age_ms = self.clock.now_ms - written_ms
                raise Violation(Kind.LOSS, f"commits a file that is {age_ms} ms old: {file.path}")

    def checks_prefix(self, batch: Batch) -> None:
        """EPOCH-3: what is written is written for the epoch and the transaction that are open."""
        if self.forger.unsigned:
            return  # it may have said where
        open_, tables = batch.transaction, [batch.table]
        if self.stamps:
            self.stamps.checks_batch(batch)
            tables.clear()
        for table in (*tables, *([batch.quarantine] if batch.quarantine else ())):
            folder, number = table.file_prefix.rsplit("/", 2)[1:]
            if (int(folder.partition("-")[0]), int(number)) != (open_.epoch, open_.number):
                prefix = table.file_prefix
                raise Violation(Kind.WASTE, f"a batch of transaction {open_} goes under {prefix}")

    def checks_pause(self, node: Node) -> None:
        """Once the table says so (an operator repeats it until then), nobody reads any more.

        The START that tells it may have to wait for the time-out of the transaction before it.
        """
        newest = self.oracle.newest
        if not (self.calm.on and newest and newest.paused) or self.paused_ms is None:
            return
        settings = self.climate.coordinators
        heard_ms = (
            self.paused_ms + 2 * settings.commit_interval_ms + settings.commit_timeout_ms + 500
        )
        if self.clock.now_ms > heard_ms:
            raise Violation(Kind.UNTRUTH, f"{node.name} reads though the sink is paused")

    # ---------------------------------------------------------------------------------- the turns

    def turn(self) -> None:
        self.clock.advance(self.random.randint(1, self._step_ms_max()))
        self.expire_sessions()
        if self._restarts:
            self.restart_the_dead()
        self.events.end_outages()
        self.events.drift()
        self.events.producers_learn()
        if self.chance(self.rates.event):
            self.random.choice(self.events.any)()
        breaks_ms = self.climate.upheaval_ms or self.climate.faults_until_ms // 3
        if not self.broken and self.clock.now_ms > breaks_ms:
            self.broken = upheaval.break_something(self)
        self.trouble.look()
        self.wedge.look()
        actor = self._next_actor()
        if actor is not None:
            node, role, run = actor
            self.idle = 0 if node.turn(role, run) else self.idle + 1
        else:
            self.idle += 1
        if self.keeper:
            self.keeper.look()
        self.unheard.look()
        self.forger.look()
        for whole in self.wholes:
            whole.look()
        self.oracle.look()
        self.turns += 1
        if self.turns % TURNS_BETWEEN_MEMORY_CHECKS == 0:
            self.calm.memory()
            self.calm.stands_still()

    def _step_ms_max(self) -> int:
        """Where nobody does anything, time is worth little."""
        if self.idle > 2 * len(self.nodes) + 2:
            return STEP_IDLE_MS_MAX if not self.calm.on else 4 * STEP_CALM_MS_MAX
        return STEP_CALM_MS_MAX if self.calm.on else STEP_MS_MAX

    def _next_actor(self) -> Actor | None:
        """Anybody; in calm weather everybody once per round."""
        actors = [actor for node in self.nodes for actor in node.actors()]
        if not actors or not self.calm.on:
            return self.random.choice(actors) if actors else None
        known = {(node, role) for node, role, _ in actors}
        self._round = [actor for actor in self._round if actor[:2] in known]
        if not self._round:
            self._round = actors
            self.random.shuffle(self._round)
        return self._round.pop()

    def expire_sessions(self) -> None:
        """Who is silent for a session is expelled; who wakes joins again."""
        changed, now_ms = False, self.clock.now_ms
        for node in self.nodes:
            if not (node.gone or node.stalled_until_ms > now_ms):
                node.heard_ms = now_ms
            expelled = now_ms - node.heard_ms > SESSION_MS
            if expelled and not node.expelled:
                self.struck["session expired"] += 1
                self.expel(node.member)
            changed |= expelled != node.expelled
            node.expelled = expelled
        if changed:
            self.events.rebalance()

    def expel(self, member: str) -> None:
        self.group_changes += 1
        self.group.expel(member)

    def restart_the_dead(self) -> None:
        due = [entry for entry in self._restarts if entry[0] <= self.clock.now_ms]
        for entry in due:
            self._restarts.remove(entry)
            self.expel(entry[1].member)
            entry[1].start()
            self.events.rebalance()

    def mends(self, node: Node, error: HeadgateError) -> bool:
        """Whether a person mends the record that stopped the node, and starts it again
        (BATCH-2)."""
        if not isinstance(error, PoisonRecord) or self.poison is None:
            return False
        at, offset = self.poison
        self.oracle.look()  # the commit that it waited for may have landed in this very turn
        stored = self.oracle.stored().get(at, offset)
        if stored != offset and not self.mended:
            raise Violation(
                Kind.UNTRUTH, f"{node.name} stops before {at} offset {offset}, at {stored}"
            )
        self.struck["stopped before a record"] += 1
        if not self._mends_records:
            return False
        self.mended = True
        self._restarts.append((self.clock.now_ms, node))
        return True

    def stopped(self) -> bool:
        """Whether a node stopped for a reason that the climate gives; any other is a violation."""
        stops = [node.stopped_by for node in self.nodes if node.stopped_by is not None]
        expected = self.climate.expected if self.broken else frozenset()
        if self.quarantine and self.quarantine.limited:
            expected |= {"HG-211"}
        if self.keys and self.keys.grows:
            expected |= {"HG-242"}
        if self.forger.unsigned:  # it may stop the sink by name (docs/guides/security.md)
            expected |= {StatusRefused.code}
        for error in stops:
            if error.code not in expected:
                raise Violation(Kind.STOP, f"stopped without a reason to: {error}")
        return bool(stops)
