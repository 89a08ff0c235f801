"""Generates a world's external events: producers, writers, operators, the group, outages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulation.climate import Handover, Weather

from headgate.control_protocol.events import Envelope, Pause, Resume
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.message_encoding import Wire
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.testing import FakeCatalog, FakeLogServer, FakeSource

if TYPE_CHECKING:
    from simulation.world import World

PARTITIONS_MAX = 4
JUST_SENT = 3
HEARD_WITHIN_MS = 500
HEARS_OF_NEW_PARTITIONS = 0.3
"""How likely the group knows them in a rebalance."""


class Events:
    def __init__(self, world: World) -> None:
        self._world = world
        self._outages: list[tuple[int, FakeCatalog | FakeSource | FakeLogServer]] = []
        self._operator = 0
        self._housed_ms = -HEARD_WITHIN_MS
        self.any = self._for_the_weather()

    def _for_the_weather(self) -> list[Callable[[], None]]:
        climate = self._world.climate
        events: list[Callable[[], None]] = [self.produce] * 8 + [self.rebalance] * 2
        if climate.pauses:
            events += [self.pause_or_resume]
        if self._world.keys and self._world.keys.growth_ms is not None:
            events += [self.add_partition]
        if climate.weather is Weather.SLOW:
            return [*events, self.compact_and_expire]
        if climate.weather is Weather.CALM:
            events += [
                self.foreign_append,
                self.compact,
                self.expire,
                self.add_partition,
                self.join,
            ]
            events += [self.lose_control_topic] if climate.elections else []
            return [*events, self.deliver_late, self.land_late]
        events += [
            self.spurious_expulsion,
            self.foreign_append,
            self.compact,
            self.expire,
            self.deliver_late,
            self.land_late,
            self.outage,
            self.clock_jumps,
        ]
        if climate.weather is Weather.WILD:
            events += [
                self.add_partition,
                self.lose_control_topic,
                self.truncate_control_topic,
                self.expire_control_topic,
            ]
        theme = self._world.random.choice(events)  # of one thing there is a lot
        return [*events, *[theme] * self._world.random.choice((0, 6))]

    # ------------------------------------------------------------------------------- the source

    def produce(self) -> None:
        dice, source = self._world.random, self._world.source
        at = dice.choice(list(source.partitions))
        if dice.random() < 0.3:
            source.add_offset_gap(at, dice.randint(1, 3))
            self._world.struck["source gap"] += 1
        self.produced(at, dice.randint(1, 12))

    def produced(self, at: TopicPartition, count: int) -> None:
        world = self._world
        begin = world.source.partitions[at].end
        world.source.produce(at, count, world.clock.now_ms)
        world.oracle.produced(at, range(begin, begin + count), world.clock.now_ms)
        if world.keys:
            made = world.source.records(at, OffsetRange(begin, begin + count))
            world.keys.produced(made)

    def add_partition(self) -> None:
        """Whoever has others keeps them while the weather is calm; the group may learn later."""
        world = self._world
        if world.keys and not world.keys.grows and not self._grows_while_keys_may_move():
            return
        if len(world.source.partitions) < PARTITIONS_MAX:
            world.struck["partition added"] += 1
            if world.keys:
                world.keys.added(len(world.source.partitions), world.clock.now_ms)
            world.source.add_partitions("source", 1)
            if world.random.random() < 0.5:
                self.rebalance()

    def _grows_while_keys_may_move(self) -> bool:
        """One by one: of what the sink first sees together, or fills a table from, no partition is
        younger."""
        world, newest = self._world, self._world.oracle.newest
        waits = world.keys is not None and world.keys.growth_ms is not None
        return (
            waits and newest is not None and newest.offsets.keys() >= world.source.partitions.keys()
        )

    def producers_learn(self) -> None:
        """One that has just sent keys where they were sends them to a new partition from now on."""
        keys = self._world.keys
        for before, after in keys.moves_due(self._world.clock.now_ms) if keys else ():
            assert keys is not None
            self.produced(TopicPartition("source", before), JUST_SENT)
            keys.move(before, after)
            self.produced(TopicPartition("source", after), JUST_SENT)

    # -------------------------------------------------------------------------------- the group

    def rebalance(self) -> None:
        """In calm weather one partition moves, and not the one that elects."""
        world, dice = self._world, self._world.random
        world.struck["rebalance"] += 1
        live = [node for node in world.nodes if not (node.gone or node.expelled or node.cut_off)]
        wanted: dict[str, set[TopicPartition]] = {node.member: set() for node in live}
        if world.calm.on:
            self._move_one(wanted)
            return
        for at in world.source.partitions:
            if live:
                wanted[dice.choice(live).member].add(at)
        self._assign(wanted)

    def _move_one(self, wanted: dict[str, set[TopicPartition]]) -> None:
        world, dice = self._world, self._world.random
        elects = TopicPartition(world.topics[0], 0)
        others = [at for at in world.source.partitions if at != elects]
        homeless = self.homeless() if dice.random() < HEARS_OF_NEW_PARTITIONS else []
        if not homeless and world.rates.event and world.climate.elections and dice.random() < 0.3:
            others = [elects]
            world.calm.elections += 1
        if not others or (world.rates.append and not homeless):
            return  # an announcement that gets lost while its partition moves is work done twice
        moved = dice.choice(homeless or others)
        for member, partitions in world.group.wanted.items():
            wanted[member] = set(partitions) - {moved}
        wanted[dice.choice(list(wanted))].add(moved)
        self._assign(wanted)

    def homeless_of_late(self) -> bool:
        """An epoch that begins meanwhile waits for what is nobody's: once, for a time-out."""
        return bool(self.homeless()) or self._world.clock.now_ms < self._housed_ms + HEARD_WITHIN_MS

    def join(self) -> None:
        """A fresh process takes a seat, and a partition at once."""
        world, group = self._world, self._world.group
        idle = [n for n in world.nodes if not group.wanted.get(n.member) and not n.busy]
        idle = [
            n for n in idle if not group.partitions_owned_by(n.member) and n.coordinator is None
        ]
        if not idle or world.rates.append:
            return
        node = world.random.choice(idle)
        group.wanted.pop(node.member, None)
        node.start()
        world.struck["fresh process joins"] += 1
        wanted = {member: set(partitions) for member, partitions in group.wanted.items()}
        others = [at for at in world.source.partitions if at.partition]
        if others:
            moved = world.random.choice(others)
            for partitions in wanted.values():
                partitions.discard(moved)
            self._assign({**wanted, node.member: {moved}})

    def homeless(self) -> list[TopicPartition]:
        """What the group has not given to anybody yet."""
        wanted = self._world.group.wanted.values()
        return [at for at in self._world.source.partitions if not any(at in w for w in wanted)]

    def _assign(self, wanted: dict[str, set[TopicPartition]]) -> None:
        world = self._world
        if self.homeless():
            self._housed_ms = world.clock.now_ms
        world.assignments += 1
        world.group_changes += 1
        self._target = wanted if world.climate.handover is Handover.GRADUAL else None
        if self._target is not None:
            return
        world.group.set_target_assignment(wanted)
        if world.climate.handover is Handover.LATE:
            for member, partitions in wanted.items():
                world.group.holders.update(dict.fromkeys(partitions, member))

    _target: dict[str, set[TopicPartition]] | None = None

    def drift(self) -> None:
        """One partition at a time goes where it shall be in the end."""
        target, group = self._target, self._world.group
        if target is None or self._world.random.random() < 0.5:
            return
        now = {member: set(group.wanted.get(member, ())) for member in target}
        for member, partitions in sorted(target.items()):
            for at in sorted(partitions - now[member]):
                for other in now.values():
                    other.discard(at)
                now[member].add(at)
                group.set_target_assignment(now)
                self._world.group_changes += 1
                return
        group.set_target_assignment(target)
        self._target = None

    def spurious_expulsion(self) -> None:
        """A live member loses its seat without a callback, and comes back."""
        node = self._world.random.choice(self._world.nodes)
        self._world.note("{} is expelled while alive", node.name)
        self._world.struck["expelled while alive"] += 1
        self._world.expel(node.member)
        self.rebalance()

    # -------------------------------------------------------------------------------- the table

    def foreign_append(self) -> None:
        self._world.note("a foreign writer appends")
        self._world.struck["foreign append"] += 1
        self._world.one_catalog().append_foreign()

    def compact(self) -> None:
        self._world.struck["table compacted"] += 1
        self._world.one_catalog().compact()

    def compact_and_expire(self) -> None:
        self.compact()
        self.expire()

    def expire(self) -> None:
        """Never more than what the way from the head to the tag needs (TABLE-4: else
        undecidable)."""
        catalog = self._world.one_catalog()
        tag = catalog.tags.get(f"headgate-{self._world.sink}")
        way = [snapshot.snapshot_id for snapshot in catalog.ancestry(catalog.branches.get("main"))]
        if tag in way:
            self._world.struck["snapshots expired"] += 1
            catalog.expire_snapshots(keep=way.index(tag) + 1)

    def land_late(self) -> None:
        catalog = self._world.one_catalog()
        if catalog.in_the_air:
            refusal = catalog.land_or_return_refusal(
                self._world.random.randrange(len(catalog.in_the_air))
            )
            self._world.note("a late commit arrives: {}", refusal or "landed")
            self._world.struck[f"late commit {'refused' if refusal else 'landed'}"] += 1

    # -------------------------------------------------------------------------- the control topic

    def deliver_late(self) -> None:
        world, waiting = self._world, self._world.log.in_the_air
        if not waiting:
            return
        said = self.envelope(waiting[0])
        living = {(node.name, str(node.life)) for node in world.nodes if not node.gone}
        sender = (said.sender.member, said.sender.incarnation.partition("c")[0])
        world.struck["event of a dead process arrives"] += sender not in living
        world.struck["event overtaken by others"] += 1
        world.log.land_oldest_in_flight()

    @staticmethod
    def envelope(message: object) -> Envelope:
        decoded = (
            Wire().verify_and_decode(message, TopicId(""))
            if isinstance(message, bytes)
            else message
        )
        assert isinstance(decoded, Envelope)
        return decoded

    def lose_control_topic(self) -> None:
        if self._world.random.random() < 0.3:
            self._world.note("the control topic is re-created")
            self._world.struck["control topic re-created"] += 1
            self._world.calm.log_is_lost()
            self._world.log.recreate()
            self._world.log.in_the_air.clear()

    def truncate_control_topic(self) -> None:
        """An unclean election of its leader takes confirmed events back."""
        log, dice = self._world.log, self._world.random
        if dice.random() < 0.3:
            self._world.note("the control topic is truncated")
            self._world.log_truncated = True
            self._world.struck["control topic truncated"] += 1
            log.truncate(max(0, log.end - dice.randint(1, 5)))

    def expire_control_topic(self) -> None:
        """Retention takes what some have not heard yet, or all."""
        log, dice = self._world.log, self._world.random
        if dice.random() < 0.3:
            self._world.note("the control topic loses its beginning")
            self._world.struck["control topic expired"] += 1
            self._world.log_truncated = True
            log.expire(max(log.begin, log.end - dice.randint(0, 5)))

    def pause_or_resume(self) -> None:
        self.operate(Resume() if self._world.random.random() < 0.5 else Pause())

    def operate(self, event: Pause | Resume) -> None:
        """An operator's word; the operator repeats it until it is in the log."""
        world = self._world
        if not world.log.reachable:
            return
        self._operator += 1
        sender = Sender("operator", str(self._operator))
        newest = world.oracle.newest
        seen = newest.transaction if newest else TransactionId(Epoch(0), TransactionNumber(0))
        now_ms = world.clock.wall_ms()
        world.say(Envelope(world.sink, seen.epoch, seen.number, sender, 1, now_ms, event))

    # ---------------------------------------------------------------------------------- outages

    def outage(self) -> None:
        """Catalog, source or control topic is away for a while."""
        world = self._world
        what: Any = world.random.choice((*world.catalogs, world.source, world.log))
        what.reachable = False
        world.struck[f"{type(what).__name__} away"] += 1
        self._outages.append((world.clock.now_ms + world.random.randint(10, 1_500), what))

    def end_outages(self) -> None:
        for outage in [o for o in self._outages if o[0] <= self._world.clock.now_ms]:
            self._outages.remove(outage)
            outage[1].reachable = True

    def clock_jumps(self) -> None:
        self._world.struck["wall clock jumps"] += 1
        self._world.clock.wall_ahead_ms += self._world.random.choice((-86_400_000, 3_600_000))
