"""What chaos does to a loaded sink, one fault after the other, and how long each recovery took."""

from __future__ import annotations

import random
import resource
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress

import psutil
from confluent_kafka.admin import AdminClient
from integration.deployment import Deployment, Participant
from integration.faults.catalogs import (
    OUTAGE_S,
    PAUSED_IN_COMMIT,
    CatalogOfChaos,
    Fault,
    bound_s,
)
from integration.faults.stores import StoreOfChaos

from headgate.control_protocol.errors import RetryLater
from headgate.operations.access.kafka_connection import open_reachable_source_topics
from headgate.operations.local_kafka.broker import EmbeddedKafka

RECOVERY_S_MAX = 300.0
"""After this the run ends; what exceeds its bound only fails it."""

PAUSE_S = (1.0, 5.0)
FULL_DISK_FILE_BYTES = 512

Ends = Mapping[tuple[str, int], int]


class Strikes:
    """Every kind of fault once, in random order, then again, as long as it is asked to."""

    def __init__(
        self,
        sink: Deployment,
        broker: EmbeddedKafka,
        catalog: CatalogOfChaos,
        chance: random.Random,
        *,
        store: StoreOfChaos | None = None,
    ) -> None:
        self._sink = sink
        self._broker = broker
        self._catalog = catalog
        self._chance = chance
        self._store = store
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        self.foreign_rows = 0
        self.recoveries: defaultdict[str, list[float]] = defaultdict(list)
        self.faults: Mapping[str, Fault] = {
            "coordinator killed": lambda: self._replace(sink.leader()),
            "participant killed": lambda: self._replace(self._any()),
            "coordinator killed in its commit": self._kill_in_commit,
            "coordinator paused": lambda: self._pause(sink.leader(), self._short()),
            "coordinator paused past every time-out": lambda: self._pause(sink.leader()),
            PAUSED_IN_COMMIT: self._pause_in_commit,
            "participant paused past every time-out": lambda: self._pause(self._any()),
            "participant restarted": lambda: self._restart(self._any()),
            "rolling restart of all": self._roll,
            "broker restarted": self._restart_broker,
            "broker killed": self._kill_broker,
            "control topic deleted": self._delete_control_topic,
            "foreign append": self._append,
            **(
                store.faults(sink, self._kill_somebody)
                if store is not None
                else {"disk full": self._fill_disk}
            ),
            **catalog.faults(sink),
        }
        self._order = self._shuffled()

    def bound_s(self, kind: str) -> float:
        extra_s = self._store.extra_s(kind) if self._store is not None else 0.0
        return bound_s(self._sink, self._catalog, kind) + extra_s

    def strike(self) -> tuple[str, float]:
        """One fault, until the sink has recovered; its kind, and how long that took in seconds."""
        kind = next(self._order)
        took = self._recovered(kind, self.faults[kind]())
        for rest in self._catalog.later:
            rest.join()
            self._recovered(f"{kind}, at its end", time.monotonic())
        self._catalog.later.clear()
        # The next fault must not meet a sink of which half is still starting.
        self._sink.wait_until(self._sink.all_share, "share for everybody", RECOVERY_S_MAX)
        return kind, took

    def _shuffled(self) -> Iterator[str]:
        while True:
            kinds = list(self.faults)
            self._chance.shuffle(kinds)
            yield from kinds

    # ------------------------------------------------------------------------------------ faults

    def _any(self) -> Participant:
        return self._chance.choice(self._sink.participants)

    def _short(self) -> float:
        return self._chance.uniform(*PAUSE_S)

    def _replace(self, victim: Participant) -> float:
        began = time.monotonic()
        self._sink.kill(victim)
        self._sink.start()
        return began

    def _kill_somebody(self) -> Fault:
        """Choose the coordinator, or anybody, to be killed later."""
        victim = self._sink.leader() if self._chance.random() < 0.5 else self._any()
        return lambda: self._replace(victim)

    def _kill_in_commit(self) -> float:
        leader = self._sink.leader()
        with self._catalog.stuck(self._sink) as catalog:
            catalog.await_commit()
            return self._replace(leader)

    def _pause(self, victim: Participant, seconds: float | None = None) -> float:
        victim.pause()
        waker = threading.Timer(seconds or self.bound_s("") + 1, victim.resume)
        waker.start()
        self._catalog.later.append(waker)
        return time.monotonic()

    def _pause_in_commit(self) -> float:
        leader = self._sink.leader()
        with self._catalog.stuck(self._sink) as catalog:
            catalog.await_commit()
            return self._pause(leader, self.bound_s(PAUSED_IN_COMMIT) + 1)

    def _restart(self, participant: Participant) -> float:
        began = time.monotonic()
        self._sink.stop(participant)
        self._sink.start()
        return began

    def _roll(self) -> float:
        """One after the other: nobody goes before the one before is back with its partitions."""
        for participant in list(self._sink.participants):
            self._sink.wait_until(self._sink.all_share, "share for everybody", RECOVERY_S_MAX)
            last = self._restart(participant)
        return last

    def _restart_broker(self) -> float:
        self._broker.restart()
        return time.monotonic()

    def _kill_broker(self) -> float:
        self._broker.kill()
        self._broker.start()
        return time.monotonic()

    def _delete_control_topic(self) -> float:
        topic = self._sink.settings.control.topic
        self._admin.delete_topics([topic])[topic].result()
        return time.monotonic()

    def _append(self) -> float:
        self.foreign_rows += self._catalog.append(self._sink)
        return time.monotonic()

    def _fill_disk(self) -> float:
        """No Python process of the sink can write a file any longer than a few bytes."""
        before = {
            process.pid: resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            for participant in self._sink.participants
            for process in _pythons(participant)
        }
        for pid, (_, hard) in before.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_DISK_FILE_BYTES, hard))
        time.sleep(OUTAGE_S)
        for pid, limits in before.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        return time.monotonic()

    # ---------------------------------------------------------------------------------- recovery

    def _recovered(self, kind: str, since: float) -> float:
        """Waits until the table holds records of every partition that came after now."""
        ends = self._ends()

        def reached() -> bool:
            record = self._sink.record()
            stored = {(at.topic, at.partition): o for at, o in record.offsets.items()}
            return all(stored.get(at, 0) > end for at, end in ends.items())

        self._sink.wait_until(reached, f"recovery from: {kind}", RECOVERY_S_MAX)
        took = time.monotonic() - since
        self.recoveries[kind].append(took)
        return took

    def _ends(self) -> Ends:
        while True:
            with suppress(RetryLater), open_reachable_source_topics(self._sink.settings) as topics:
                return {
                    (topic, number): log.end
                    for topic, state in topics.describe().items()
                    for number, log in state.partitions.items()
                }


def _pythons(participant: Participant) -> list[psutil.Process]:
    """A participant's own process, and Spark's Python workers below it; not the JVM."""
    root = psutil.Process(participant.pid)
    return [p for p in (root, *root.children(recursive=True)) if p.name().startswith("python")] or [
        root
    ]
