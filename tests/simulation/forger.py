"""An outsider writes to the control topic: forged events of every kind, and genuine ones again.

Only some seeds have one, with dice of its own, so that the others are what they would be without.

Where the sink has no key, the outsider stops with the other faults, and then all must come as if
nothing had been. It tells no lie that nobody can tell from the truth (docs/guides/security.md):
of its claims each has exactly one thing wrong with it that an admission must see (``FLAWS``).

Where the sink has a key, the outsider is there from the first to the last moment, in calm weather
as well, and nothing may come of it. Its messages are unsigned, signed with another key, signed for
another topic, another message under a genuine signature, or genuine ones again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from simulation.climate import Climate, Weather

from headgate.control_protocol import message_encoding
from headgate.control_protocol.columns import Struct
from headgate.control_protocol.event_codec import NUMBER_MAX
from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    Answer,
    EndCommit,
    Envelope,
    Event,
    Notice,
    NoticeKind,
    PartitionPresence,
    Pause,
    Presence,
    PresenceKind,
    Proposal,
    Resume,
    StartCommit,
    Tables,
    TableStart,
    TableStatus,
    WriteStatus,
    WrittenFile,
    WrittenRange,
)
from headgate.control_protocol.identifiers import (
    LEAP_MAX,
    ControlOffset,
    Epoch,
    Sender,
    TopicId,
    TopicPartition,
    TransactionNumber,
)
from headgate.control_protocol.message_encoding import Wire
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.signatures import SEAL_BYTES, Keys
from headgate.control_protocol.testing import FakeLog
from headgate.tables.iceberg.data_file import FileDetail

if TYPE_CHECKING:
    from simulation.world import World

ONE_SEED_IN, WITHOUT_KEY, WITH_KEY = 25, 20, 13
ONE_MESSAGE_BYTES = 10**6
REMEMBERED = 60
FAR = 10**9
STRANGER = Sender("mallory", "m")
KEY, OTHER_KEY = "k" * 32, "o" * 32


def part_bytes(seed: int, drawn: int | None) -> int | None:
    """A signed message is bytes: it must travel through the real codec."""
    return drawn or (ONE_MESSAGE_BYTES if seed % ONE_SEED_IN == WITH_KEY else None)


class Forger:
    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = random.Random(f"forger {world.seed}")
        self.unsigned = world.seed % ONE_SEED_IN == WITHOUT_KEY
        self.signed = world.seed % ONE_SEED_IN == WITH_KEY
        self._keyed = Wire(world.sink, Keys((KEY,)))
        self.wire = self._keyed if self.signed else None
        self._heard: list[Envelope] = []
        self._genuine: dict[tuple[bytes, TopicId], bool] = {}
        self._start: Envelope | None = None
        self._rate = self.dice.choice((0.05, 0.2, 0.5))
        self._claims_only = (
            self.dice.random() < 0.5
        )  # other words cost epochs, and few commits land
        climate = world.climate
        climate.part_bytes = part_bytes(world.seed, climate.part_bytes)
        if self.unsigned:
            _expect_trouble(climate)

    def hears(self, said: Envelope) -> None:
        """Whoever may write to the topic may mostly read it, too."""
        if self.unsigned or self.signed:
            self._heard = [*self._heard[1 - REMEMBERED :], said]
            self._start = said if isinstance(said.event, StartCommit) else self._start

    def look(self) -> None:
        world = self.world
        healed = world.clock.now_ms >= world.climate.faults_until_ms
        if not self._heard or not (self.signed or (self.unsigned and not healed)):
            return
        if self.dice.random() < self._rate:
            self._speak()

    def _speak(self) -> None:
        replays = not self._claims_only and self.dice.random() < 0.3
        kind, said = self._replayed() if replays else self._forged()
        if said is None:
            return
        world, keyed = self.world, self.signed
        world.struck[f"{'not believed' if keyed else 'forged'}: {kind}"] += 1
        world.note("an outsider says {}", said)
        if keyed:
            world.log.append(self._unbelievable(said))
        elif world.log.reachable:
            FakeLog(world.log).append([said])

    def _unbelievable(self, said: Envelope) -> bytes:
        """Without the key; or, now and then, the newest genuine message once more."""
        world, topic_id = self.world, self.world.log.topic_id
        plain = message_encoding.encode_envelope(said)
        genuine = [m for m in world.log.messages if self._is_genuine(m, topic_id)]
        ways: list[Callable[[], bytes]] = [
            lambda: plain,
            lambda: Wire(world.sink, Keys((OTHER_KEY,))).encode_and_sign_if_keyed(said, topic_id),
            lambda: self._keyed.encode_and_sign_if_keyed(said, TopicId("another")),
        ]
        if genuine:
            ways.append(lambda: self.dice.choice(genuine)[:SEAL_BYTES] + plain)
        if genuine and not world.calm.on:  # an old END is answered once more: no work is lost
            ways.append(lambda: self._again(genuine))
        return self.dice.choice(ways)()

    def _again(self, genuine: list[bytes]) -> bytes:
        message = self.dice.choice(genuine)
        self.world.on_echo(message)
        return message

    def _is_genuine(self, message: bytes, topic_id: TopicId) -> bool:
        """Read once: reading a long log whenever it speaks took minutes of a seed."""
        at = (message, topic_id)
        if at not in self._genuine:
            self._genuine[at] = isinstance(
                self._keyed.verify_and_decode(message, topic_id), Envelope
            )
        return self._genuine[at]

    # ------------------------------------------------------------------------------- what it says

    def _replayed(self) -> tuple[str, Envelope | None]:
        """Word for word; or, where that tells nothing of offsets, in another's name."""
        said = self.dice.choice(self._heard)
        if not isinstance(said.event, WriteStatus) and self.dice.random() < 0.5:
            said = self._signed_off(said.event)
        return "replayed", said

    def _forged(self) -> tuple[str, Envelope | None]:
        start = self._start
        if start is None:
            return "", None
        makers = (self._a_start, self._an_end, self._a_settlement, self._a_status, self._a_flaw)
        makers = (*makers, self._a_presence, self._a_request, self._a_report)
        if self.world.seed % 3 == 1:  # the others are what they would be without
            makers = (*makers, self._a_proposal, self._an_answer)
        event = self._a_flaw(start) if self._claims_only else self.dice.choice(makers)(start)
        if event is None:
            return "", None
        if isinstance(event, WriteStatus) and event.written:
            return "a flawed claim", self._to_the_point(start, event)
        return type(event).__name__, self._signed_off(event)

    def _to_the_point(self, start: Envelope, event: Event) -> Envelope:
        """In the epoch and transaction of now: it is refused for its flaw, or not at all."""
        number = TransactionNumber(self.dice.choice((start.transaction, start.transaction + 1)))
        return replace(self._signed_off(event), epoch=start.epoch, transaction=number)

    def _signed_off(self, event: Event) -> Envelope:
        """With an epoch, a transaction and a sender: plausible ones, and absurd ones."""
        start, dice = self._start or self._heard[-1], self.dice
        epoch, number = start.epoch, start.transaction
        sender = dice.choice((start.sender, dice.choice(self._heard).sender, STRANGER))
        known = max((s.sequence for s in self._heard if s.sender == sender), default=0)
        leaps = (epoch + LEAP_MAX, epoch + LEAP_MAX + 1, epoch + LEAP_MAX + 5, NUMBER_MAX)
        epochs = (epoch, epoch, epoch, epoch, max(0, epoch - 1), epoch + 1, dice.choice(leaps))
        numbers = (number, number, number, max(0, number - 1), number + 1, number + 99, NUMBER_MAX)
        return Envelope(
            sink=self.world.sink,
            epoch=Epoch(dice.choice(epochs)),
            transaction=TransactionNumber(dice.choice(numbers)),
            sender=sender,
            sequence=dice.choice(
                (known, known + 1, known + 2_000, known + LEAP_MAX + 9, NUMBER_MAX)
            ),
            time_ms=0,
            event=event,
        )

    def _offsets(self, start: StartCommit) -> Offsets:
        amiss = self.dice.choice((0, 0, -3, 2, FAR))
        return Offsets({at: max(0, offset + amiss) for at, offset in start.offsets.items()})

    def _place(self) -> ControlOffset:
        end = self.world.log.end
        return ControlOffset(self.dice.choice((0, max(0, end - 5), end, end + 5, NUMBER_MAX)))

    def _partitions(self) -> frozenset[TopicPartition]:
        partitions = sorted(self.world.source.partitions)
        return frozenset(self.dice.sample(partitions, self.dice.randint(0, len(partitions))))

    def _a_start(self, base: Envelope) -> Event:
        dice, start = self.dice, base.event
        assert isinstance(start, StartCommit)
        tables = tuple(self._elsewhere(table) for table in start.tables)
        return replace(
            start,
            settled_to=dice.choice((None, self._place(), start.settled_to)),
            offsets=self._offsets(start),
            paused=dice.random() < 0.2,
            tables=dice.choice((start.tables, tables)),
        )

    @staticmethod
    def _elsewhere(table: TableStart) -> TableStart:
        folder = table.file_prefix.rsplit("/", 2)[0]
        return replace(table, uuid="forged", file_prefix=f"{folder}/99999-mallory/1")

    def _an_end(self, _: Envelope) -> Event:
        return EndCommit()

    def _a_settlement(self, base: Envelope) -> Event:
        assert isinstance(base.event, StartCommit)
        kind = self.dice.choice((AckCommit, AbortCommit))
        return kind(self._place(), self._offsets(base.event), reason="forged")

    def _a_status(self, base: Envelope) -> Event:
        """It knows nothing, in anybody's name."""
        number = self.dice.choice((*range(1, 9), LEAP_MAX, NUMBER_MAX))
        return WriteStatus(number, unknown=self._partitions(), failure="forged")

    def _a_presence(self, base: Envelope) -> Event:
        assert isinstance(base.event, StartCommit)
        places = self._offsets(base.event)
        owned = {
            at: PartitionPresence(offset, offset + FAR)
            for at, offset in places.items()
            if at in self._partitions()
        }
        return Presence(self.dice.choice(list(PresenceKind)), self._partitions(), owned)

    def _a_proposal(self, base: Envelope) -> Event:
        """In anybody's name, of columns that are there or of none."""
        assert isinstance(base.event, StartCommit)
        primary = self.dice.choice((base.event.tables[0], self._elsewhere(base.event.tables[0])))
        return Proposal(
            number=self.dice.choice((*range(1, 9), LEAP_MAX, NUMBER_MAX)),
            table=primary.table,
            uuid=primary.uuid,
            schema_id=self.dice.choice((primary.schema_id, 99)),
            columns=Struct(()),
            first=self._offsets(base.event),
            records=FAR,
        )

    def _an_answer(self, base: Envelope) -> Event:
        """To somebody's proposal, under the schema that was; or of another table."""
        assert isinstance(base.event, StartCommit)
        whose = Answer(self.dice.choice(self._heard).sender, self.dice.randrange(1, 9))
        primary = self.dice.choice((base.event.tables[0], self._elsewhere(base.event.tables[0])))
        return Tables((whose,), (primary,))

    def _a_request(self, _: Envelope) -> Event:
        return self.dice.choice((Pause(), Resume()))

    def _a_report(self, _: Envelope) -> Event:
        kind = self.dice.choice((NoticeKind.STOPPED, NoticeKind.ERROR))
        return Notice(kind, "HG-999", "forged", actor="mallory")

    # ------------------------------------------------------------------------------ flawed claims

    def _a_flaw(self, base: Envelope) -> Event | None:
        """A claim of what comes next, as far as the table tells, in order but for one thing."""
        world, start = self.world, base.event
        assert isinstance(start, StartCommit)
        next_ = {at: o for at, o in world.oracle.stored().items() if at in start.offsets}
        if not next_ or start.tables[0].uuid != world.catalog.uuid:
            return None
        at = self.dice.choice(sorted(next_))
        flaw = self.dice.choice(sorted(FLAWS))
        made = FLAWS[flaw](self, start, at, next_[at])
        if made is None:
            return None
        world.struck[f"flaw: {flaw}"] += 1
        number = self.dice.choice((self.dice.randrange(1_000, LEAP_MAX), NUMBER_MAX))
        return WriteStatus(number, *made)

    def end(self, at: TopicPartition) -> int:
        return self.world.source.partitions[at].end

    def table(
        self, start: StartCommit, claims: Mapping[TopicPartition, WrittenRange], *files: WrittenFile
    ) -> _Made:
        return claims, (TableStatus(start.tables[0].table, files),) if files else ()


_Made = tuple[Mapping[TopicPartition, WrittenRange], tuple[TableStatus, ...]] | None


def _beyond_the_end(by: Forger, start: StartCommit, at: TopicPartition, next_: int) -> _Made:
    """Records that come later would be taken for read."""
    return by.table(start, {at: WrittenRange(OffsetRange(next_, next_ + FAR))})


def _not_the_next(by: Forger, start: StartCommit, at: TopicPartition, next_: int) -> _Made:
    """Of what is in the table already some is said again, and more besides."""
    begin, end = next_ - by.dice.choice((1, 2)), by.end(at)
    return (
        by.table(start, {at: WrittenRange(OffsetRange(begin, end))}) if 0 <= begin < end else None
    )


def _outside_of_the_folders(by: Forger, start: StartCommit, at: TopicPartition, n: int) -> _Made:
    """A file that somebody put anywhere."""
    folder = start.tables[0].file_prefix
    root, _, number = folder.rpartition("/")
    if by.world.stamps:
        path = by.dice.choice(("elsewhere/1_1.parquet", f"{root}/../other/1{number[1:]}"))
        return _with_file(by, start, (at, n), by.dice.choice((path, f"{root}/1_9{number[2:]}")))
    places = (
        "elsewhere",
        f"{folder}/../../other",
        f"{root}/{int(number) + 50}",
        f"{root}/0{number}",
    )
    return _with_file(by, start, (at, n), by.dice.choice(places) + "/x.parquet")


def _committed_before(by: Forger, start: StartCommit, at: TopicPartition, next_: int) -> _Made:
    """Its rows would be there twice."""
    root = start.tables[0].file_prefix.rpartition("/")[0]
    paths = [f.path for f in by.world.catalog.files() if f.path.startswith(root)]
    if not paths:
        return None
    path = by.dice.choice(sorted(paths))
    rows = len(by.world.catalog.storage.files[path])
    return _with_file(by, start, (at, next_), path, rows)


def _more_rows_than_claimed(by: Forger, start: StartCommit, at: TopicPartition, n: int) -> _Made:
    """The file holds more than the range."""
    path = f"{start.tables[0].file_prefix}/x.parquet"
    return _with_file(by, start, (at, n), path, 5, records=1)


def _skipped(by: Forger, start: StartCommit, at: TopicPartition, next_: int) -> _Made:
    """Records that are in no table, though no setting skips any."""
    end = by.end(at)
    span = OffsetRange(next_, end)
    return by.table(start, {at: WrittenRange(span, skipped=len(span))}) if len(span) else None


def _nobodys_quarantine(by: Forger, start: StartCommit, at: TopicPartition, next_: int) -> _Made:
    """Records that are said to be in a quarantine, which holds none."""
    end = by.end(at)
    span = OffsetRange(next_, end)
    ahead = any(table.offsets for table in start.tables)
    return (
        by.table(start, {at: WrittenRange(span, quarantined=1)})
        if len(span) and not ahead
        else None
    )


def _with_file(
    by: Forger,
    start: StartCommit,
    place: tuple[TopicPartition, int],
    path: str,
    rows: int = 1,
    *,
    records: int | None = None,
) -> _Made:
    at, next_ = place
    end = by.end(at)
    records = rows if records is None else records
    if end - next_ < records:
        return None
    file = FileDetail(start.tables[0].spec_id).to_written_file(path, rows, 100 * rows)
    return by.table(start, {at: WrittenRange(OffsetRange(next_, end), records)}, file)


FLAWS: Mapping[str, Callable[[Forger, StartCommit, TopicPartition, int], _Made]] = {
    "beyond the end": _beyond_the_end,
    "not the next": _not_the_next,
    "outside of the folders": _outside_of_the_folders,
    "committed before": _committed_before,
    "more rows than claimed": _more_rows_than_claimed,
    "skipped": _skipped,
    "nobody's quarantine": _nobodys_quarantine,
}


def _expect_trouble(climate: Climate) -> None:
    """Weather in which time and work may be lost, and which breaks nothing by itself."""
    climate.upheaval, climate.poison, climate.expected = None, False, frozenset()
    climate.faults_until_ms = max(climate.faults_until_ms, 6_000)
    if climate.weather is not Weather.SLOW:
        climate.weather = Weather.WILD
