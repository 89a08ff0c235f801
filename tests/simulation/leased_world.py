"""Coordinators of one sink over a Hudi table in memory, from one seed.

Each has the real ``HudiSinkTable``. At every step of Hudi's a process may be killed, fail, or stand
still while the others go on, for longer than its lock lasts if it likes.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simulation.leased_hudi import LEASE_MS, Failed, LeasedHudi, LeasedJava
from support.verdicts import Kind, Violation

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import HudiForked, RetryLater
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import Epoch, SinkName, TopicPartition
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Refused,
    TableView,
)
from headgate.control_protocol.testing.contract.world import record
from headgate.tables.hudi.append_table import HudiSinkTable
from headgate.tables.hudi.base_files import instant_of_file
from headgate.tables.hudi.table_properties import HudiLocation
from headgate.testing.node import Killed

TURNS = 60
DEEP_MAX = 4
PROCESSES_MAX = 4
PARTITION = TopicPartition("trips", 0)
NAPS_MS = (20, 500, LEASE_MS + 1, LEASE_MS + 1)
_PROPERTIES = {
    "hoodie.table.name": "trips",
    "hoodie.table.version": "9",
    "hoodie.table.type": "COPY_ON_WRITE",
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.table.create.schema": json.dumps(
        {"type": "record", "name": "trips", "fields": [{"name": "number", "type": "long"}]}
    ),
}


class LeasedWorld:
    def __init__(self, seed: int, folder: Path) -> None:
        self.dice = random.Random(seed)
        self.rate = self.dice.choice((0.01, 0.03, 0.06))
        self.place = HudiLocation("db.trips", f"file://{folder}")
        self.hudi = LeasedHudi(folder)
        self.struck: Counter[str] = Counter()
        self._transcript: list[str] = []
        self.epochs = self.deep = self.files = 0
        self.calm = False
        self.stopped: HudiForked | None = None
        self.processes: list[Process] = []
        (folder / ".hoodie").mkdir(parents=True)
        text = "".join(f"{key}={value}\n" for key, value in _PROPERTIES.items())
        (folder / ".hoodie" / "hoodie.properties").write_text(text)

    def play(self) -> None:
        """Raises ``Violation``."""
        for _ in range(TURNS):
            self.turn()
        self.calm = True
        self._end()
        self._judge()

    def note(self, epoch: int, text: str) -> None:
        """Remember what befell the coordinator of this epoch, and count it."""
        self.struck[text] += 1
        self._transcript.append(f"{self.hudi.now_ms:6} epoch {epoch}: {text}")

    def transcript(self, last: int = 10**9) -> str:
        return "\n".join(self._transcript[-last:])

    def turn(self) -> None:
        self.hudi.now_ms += self.dice.randint(1, 300)
        alive = [each for each in self.processes if not (each.dead or each.over)]
        if not alive or (len(alive) < PROCESSES_MAX and self.dice.random() < 0.08):
            self.processes.append(Process(self))
            return
        idle = [each for each in alive if not each.busy]
        if idle and not self.stopped:
            self.dice.choice(idle).turn()

    def _end(self) -> None:
        """The faults are over: the last coordinator commits until all of that is archived."""
        self.last, newest = Process(self), self.hudi.tick()
        for _ in range(40):
            if self.stopped or (self.last.claimed and newest < self.hudi.first):
                return
            self.hudi.now_ms += LEASE_MS
            self.last.turn()
        raise Violation(Kind.STARVATION, "the faults are over, and nothing is archived")

    def _judge(self) -> None:
        try:
            found = Counter(self.hudi.rows(gone=bool(self.stopped)))
        except FileNotFoundError as error:
            raise Violation(Kind.LOSS, f"readers miss {error.filename}") from error
        if double := [row for row, times in found.items() if times > 1]:
            raise Violation(Kind.DOUBLE, f"rows {double}, stopped: {self.stopped}")
        if self.stopped:
            if not self.hudi.landed_late:
                raise Violation(Kind.STOP, f"nobody has landed without the lock: {self.stopped}")
            return
        view = HudiSinkTable(self.place, SINK, java=self.last.java).read()
        assert view.record is not None
        if found != Counter(range(view.record.offsets[PARTITION])):
            raise Violation(Kind.LOSS, f"{sorted(found)} of {view.record.offsets[PARTITION]}")


SINK = SinkName("sink")


class Process:
    """A coordinator with an epoch of its own; it writes its participants' files, too."""

    def __init__(self, world: LeasedWorld) -> None:
        world.epochs += 1
        self.epoch = Epoch(world.epochs)
        self.dead = self.over = self.busy = self.claimed = False
        self._world, self._hudi = world, world.hudi
        self._still_since_ms: int | None = None
        self._table = HudiSinkTable(world.place, SINK, java=self.java)
        self._view: TableView | None = None
        self._number = 0
        self._stamp = self._next_stamp = ""
        self._files: tuple[WrittenFile, ...] = ()
        self._rows: tuple[int, ...] = ()

    @property
    def stamp(self) -> str:
        """That of its next transaction's files."""
        return self._stamp

    def java(self, place: HudiLocation, schema: str) -> LeasedJava:
        return LeasedJava(self._hudi, self, place, schema)

    def turn(self) -> None:
        self.busy = True
        try:
            self._step()
        except Killed:
            self.dead, self._still_since_ms = True, self._hudi.now_ms
        except (RetryLater, Failed):
            self._view = None
        except HudiForked as stop:
            if not self._world.stopped:
                self._world.note(self.epoch, "stopped")
            self._world.stopped, self.over = stop, True
        finally:
            self.busy = False

    # --------------------------------------------------------------------------------- what it does

    def _step(self) -> None:
        self._view = self._view or self._table.read()
        found = self._view.record
        if found and found.transaction.epoch > self.epoch:
            self.over = True
            return
        if not self._stamp:
            self._stamp = self._table.new_token()
        offset = found.offsets[PARTITION] if found else 0
        if not self.claimed:
            attempt = record(self.epoch, 0, offset)
            self._settle(attempt, self._commit(attempt, ()))
            return
        if not self._files:
            self._rows = tuple(range(offset, offset + self._world.dice.randint(1, 3)))
            self._files = self._written()
        if not self._next_stamp:
            self._next_stamp = self._table.new_token()
        attempt = record(self.epoch, self._number, self._rows[-1] + 1)
        self._settle(attempt, self._commit(attempt, self._files))

    def _commit(self, attempt: CommitRecord, files: tuple[WrittenFile, ...]) -> CommitOutcome:
        assert self._view is not None
        return self._table.commit(CommitAttempt(self._view, attempt, files))

    def _settle(self, attempt: CommitRecord, outcome: CommitOutcome) -> None:
        """Rule OUTCOME-2."""
        self._view = outcome.view if isinstance(outcome, Landed) else None
        if isinstance(outcome, Refused) and outcome.for_good and attempt.transaction.number:
            self._files, self._stamp = (), ""
        if self._view is None:
            self._view = self._table.read()
        if self._view.record == attempt:
            self._world.note(self.epoch, "landed")
            self.claimed, self._number = True, self._number + 1
            if attempt.transaction.number:
                self._stamp, self._next_stamp, self._files = self._next_stamp, "", ()

    def _written(self) -> tuple[WrittenFile, ...]:
        """A marker, and the file; one in five statuses is refused later."""
        instant, found = instant_of_file(self._stamp), []
        for refused in (False, *([True] if self._world.dice.random() < 0.2 else ())):
            self._world.files += 1
            path = self._world.hudi.folder / f"{self._world.files}_{instant}.parquet"
            marker = self._hudi.markers(instant) / f"{path.name}.marker.CREATE"
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
            self.strike("marked")
            path.write_text(json.dumps(self._rows))
            if not refused:
                size = path.stat().st_size
                found.append(WrittenFile(f"file://{path}", len(self._rows), size))
        return tuple(found)

    # ----------------------------------------------------------------------------- what befalls it

    def strike(self, where: str) -> None:
        """Raises ``Killed``, or what Java raises."""
        world = self._world
        if self.dead:
            raise Killed
        if world.calm or world.dice.random() >= world.rate:
            return
        what = world.dice.choice(("kill", "fail", "stall", "stall", "stall"))
        world.note(self.epoch, f"{what} at {where}")
        if what == "kill":
            raise Killed
        if what == "fail":
            raise Failed(f"failed at {where}")
        with self._still():
            until_ms = self._hudi.now_ms + world.dice.choice(NAPS_MS)
            while self._hudi.now_ms < until_ms and world.deep < DEEP_MAX:
                world.turn()
            self._hudi.now_ms = max(self._hudi.now_ms, until_ms)

    @contextmanager
    def _still(self) -> Iterator[None]:
        self._world.deep += 1
        self._still_since_ms = self._hudi.now_ms
        yield
        self._leave_if_expired()
        self._still_since_ms = None
        self._world.deep -= 1

    def acquire(self) -> None:
        """Hudi's lock. Raises ``Failed`` where somebody has it who is alive."""
        holder = self._hudi.holder
        if holder is not None:
            if holder.dead or holder.sleeps:
                self._hudi.now_ms = max(self._hudi.now_ms, holder.expires_ms)
            holder._leave_if_expired()
        if self._hudi.holder is not None:
            raise Failed("the lock is held")
        self._hudi.holder = self

    @property
    def sleeps(self) -> bool:
        return self._still_since_ms is not None

    @property
    def expires_ms(self) -> int:
        return (self._still_since_ms or 0) + LEASE_MS

    def _leave_if_expired(self) -> None:
        if self._hudi.holder is self and self._hudi.now_ms >= self.expires_ms:
            self._hudi.holder = None
            self._world.note(self.epoch, "lease expired")
