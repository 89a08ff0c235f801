"""A Hudi sink among an eager foreign writer, under random faults; and whether it lost anything.

What has to be in the table is what was produced, which is kept here and read from nobody.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from hudi_tables.foreign import Foreign
from hudi_tables.sinks import HudiSink
from hudi_tables.zookeeper import ZooKeeper

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import decode_record
from headgate.control_protocol.identifiers import SinkName

SESSION_MS = 6_000
"""So long after its owner's last word a lock of Hudi's is free."""
SIGNS = {
    "hoodie.client.heartbeat.interval_in_ms": "2000",
    "hoodie.client.heartbeat.tolerable.misses": "2",
}
"""A writer that says nothing for six seconds is cleaned up after."""

PAUSE_S = (2.0, 18.0)
RECOVERY_S_MAX = 900.0
PARTICIPANTS = 2
_KEYS = 400
_AT_ONCE = 50
_POLL_S = 0.02
_SINK = SinkName("sink")

Rows = Counter[tuple[int, str]]


class Chaos:
    """Faults one after the other; ``chance`` says which, when, and what is produced meanwhile."""

    def __init__(
        self,
        sink: HudiSink,
        server: ZooKeeper,
        foreign: Foreign,
        chance: random.Random,
        *,
        keyed: bool,
    ) -> None:
        self._sink = sink
        self._server = server
        self._foreign = foreign
        self._chance = chance
        self._keyed = keyed
        self._kept = sink.location / ".hoodie" / ".aux" / "headgate" / _SINK
        self._ends: Counter[int] = Counter()
        self._rows: dict[int, str] = {}
        self._running: list[subprocess.Popen[bytes]] = []
        self.struck: list[str] = []
        self._faults: Mapping[str, Callable[[], None]] = {
            "coordinator killed": lambda: self._replace(self._leader()),
            "coordinator killed in its commit": self._kill_in_commit,
            "coordinator's JVM killed": self._kill_java,
            "coordinator frozen": lambda: self._freeze(self._leader().pid),
            "coordinator frozen in its commit": self._freeze_in_commit,
            "participant killed": lambda: self._replace(self._other()),
            "participant frozen": lambda: self._freeze(self._other().pid),
            "foreign writer killed": self._kill_foreign,
            "foreign writer killed in its commit": self._kill_foreign_in_commit,
            "foreign writer frozen": lambda: self._freeze(self._foreign.pid),
            "ZooKeeper restarted": self._restart_server,
        }

    @property
    def rows(self) -> Rows:
        """What the table has to hold of the topic."""
        return Counter(self._rows.items())

    def run(self, seconds: float) -> None:
        """Then everybody is well, and everything that was produced is there."""
        self._produce()
        self._running = [self._sink.start() for _ in range(PARTICIPANTS)]
        self._await_all("the first commits")
        self._foreign.start()
        until = time.monotonic() + seconds
        order = self._shuffled()
        while time.monotonic() < until:
            kind = next(order)
            self.struck.append(kind)
            self._produce()
            self._faults[kind]()
            self._produce()
            if self._chance.random() < 0.5:  # or the next one meets a sink that is not well yet
                self._await_all(kind)
        self._await_all("the end")

    def stop(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            assert process.wait(RECOVERY_S_MAX) == 0, self._sink.said()[-4000:]

    def _shuffled(self) -> Iterator[str]:
        while True:
            kinds = list(self._faults)
            self._chance.shuffle(kinds)
            yield from kinds

    # ---------------------------------------------------------------------------------- the topic

    def _produce(self) -> None:
        if self._keyed:
            for zone in ("a", None, "b", "c"):
                changed = self._chance.sample(range(_KEYS), _AT_ONCE)
                self._sink.change(changed, zone)
                self._ends.update(number % 2 for number in changed)
                for number in changed:
                    self._rows.pop(number, None)
                self._rows |= dict.fromkeys(changed, zone) if zone else {}
        else:
            first = self._sink.produced
            self._sink.produce(_AT_ONCE)
            for number in range(first, first + _AT_ONCE):
                self._ends[number % 2] += 1
                self._rows[number] = "abc"[number % 3]

    def _await_all(self, what: str) -> None:
        def reached() -> bool:
            record = self._record()
            offsets = {at.partition: o for at, o in record.offsets.items()} if record else {}
            return all(offsets.get(partition, 0) >= end for partition, end in self._ends.items())

        self._wait(reached, f"all rows after: {what}", 0.5)

    def _record(self) -> CommitRecord | None:
        """Of the sink's newest commit, as it has noted it down beside the table."""
        with suppress(OSError, ValueError):
            newest = max((self._kept / "landed").iterdir())
            return decode_record(_SINK, json.loads(newest.read_text())["record"])
        return None

    # ------------------------------------------------------------------------------------- faults

    def _leader(self) -> subprocess.Popen[bytes]:
        found: list[subprocess.Popen[bytes]] = []

        def known() -> bool:
            record = self._record()
            pid = int(record.coordinator.member.rpartition("-")[2]) if record else 0
            found[:] = [each for each in self._running if each.pid == pid]
            if record and not found:  # an heir commits once there is something to commit
                self._produce()
            return bool(found)

        self._wait(known, "a running coordinator", 1)
        return found[0]

    def _other(self) -> subprocess.Popen[bytes]:
        leader = self._leader()
        return next(each for each in self._running if each is not leader)

    def _replace(self, victim: subprocess.Popen[bytes]) -> None:
        """With its JVM, or without: that one goes on until it sees that nobody is there."""
        if self._chance.random() < 0.5:
            os.killpg(victim.pid, signal.SIGKILL)
        victim.kill()
        victim.wait()
        self._running.remove(victim)
        self._running.append(self._sink.start())

    def _kill_java(self) -> None:
        for pid in _java_of(self._leader().pid):
            os.kill(pid, signal.SIGKILL)

    def _freeze(self, group: int) -> None:
        """For longer than the lease, or for a moment."""
        os.killpg(group, signal.SIGSTOP)
        try:
            time.sleep(self._chance.uniform(*PAUSE_S))
        finally:
            os.killpg(group, signal.SIGCONT)

    def _kill_in_commit(self) -> None:
        leader = self._leader()
        self._await_commit(ours=True)
        self._replace(leader)

    def _freeze_in_commit(self) -> None:
        leader = self._leader()
        self._await_commit(ours=True)
        self._freeze(leader.pid)

    def _kill_foreign(self) -> None:
        self._foreign.kill()
        self._foreign.start()

    def _kill_foreign_in_commit(self) -> None:
        self._await_commit(ours=False)
        self._kill_foreign()

    def _restart_server(self) -> None:
        self._server.kill()
        time.sleep(self._chance.uniform(*PAUSE_S))
        self._server.start()

    def _await_commit(self, *, ours: bool) -> None:
        """A moment of it, by chance."""
        if ours:
            self._produce()
        self._wait(lambda: any(own is ours for own in self._pending()), "a commit", _POLL_S)
        time.sleep(self._chance.uniform(0, 0.5))

    def _pending(self) -> Sequence[bool]:
        """Of each commit that is begun and not complete, whether it is the sink's."""
        timeline = self._sink.location / ".hoodie" / "timeline"
        names = [path.name for path in timeline.iterdir()]
        complete = {name[:17] for name in names if "_" in name}
        begun = {name[:17] for name in names if name.endswith("commit.requested")} - complete
        return [(self._kept / "reserved" / instant).exists() for instant in begun]

    def _wait(self, happened: Callable[[], bool], what: str, poll_s: float) -> None:
        until = time.monotonic() + RECOVERY_S_MAX
        while not happened():
            ended = [each.args for each in self._running if each.poll() is not None]
            if ended or time.monotonic() > until:
                told = f"{self._record()}\n{self._sink.said()[-6000:]}"
                raise AssertionError(f"never: {what}; {self.struck}; ended: {ended}\n{told}")
            time.sleep(poll_s)


def _java_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid), "java"], capture_output=True, check=False)
    return [int(each) for each in found.stdout.split()]
