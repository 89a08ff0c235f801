"""Reads a fleet's two topics, and changes the specs on it: all that is asked for, or nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping
from contextlib import closing

from headgate.config.worker_settings import WorkerSettings
from headgate.control_protocol.errors import (
    FleetChangedMeanwhile,
    FleetTopicUnfit,
    MemberRefused,
    Unreachable,
)
from headgate.kafka.compacted_topics import (
    WAIT_MS,
    CompactedReader,
    CompactedRecord,
    KeyedValue,
    TopicAdmin,
    TransactionalWriter,
)
from headgate.kafka.control_topic import read_topic_settings
from headgate.runtime.fleet.fleet_changes import FleetPlanner, Occasion, Plan
from headgate.runtime.fleet.fleet_records import CommandWire, ObservedSink, decode_observed
from headgate.runtime.fleet.fleet_view import (
    CommandRecord,
    FleetRecords,
    FleetView,
    ObservedRecord,
    build_fleet_view,
    find_shared_worker_names,
    is_worker_drained,
)
from headgate.runtime.wall_clock import wall_ms

PATIENCE_S = 30.0
TRIES = 3
LOOK_S = 5.0
"""How often the topics are asked for: records alone do not tell that nobody answers."""


class FleetReader:
    """Follows both topics of a fleet from their beginning. Use from one thread.

    Raises ``FleetTopicUnfit`` if the fleet's topic does not exist; without a state topic nothing is
    observed.
    """

    def __init__(self, settings: WorkerSettings, *, wait_ms: int = WAIT_MS) -> None:
        self._settings = settings
        admin = TopicAdmin(settings.kafka)
        desired = admin.describe_topic(settings.fleet.name)
        if desired is None:
            raise missing_topic_error(settings.fleet.name)
        states = admin.describe_topic(settings.fleet.state_topic)
        self.slots = desired.partitions
        self.records = FleetRecords()
        self.wire = CommandWire(settings.fleet.signing_keys, desired.topic_id)
        partitions = {settings.fleet.name: desired.partitions}
        partitions |= {settings.fleet.state_topic: states.partitions} if states else {}
        self._reader = CompactedReader(
            settings.kafka, settings.fleet.name, partitions, wait_ms=wait_ms
        )

    @property
    def has_reached_end(self) -> bool:
        """Return whether both topics have been read to where they ended once."""
        return self._reader.has_reached_end

    def poll_and_took_records(self, timeout_s: float) -> bool:
        """Take the records that come within this time into ``records``; return whether any came.

        Raises ``FleetTopicUnfit`` if a topic is gone: then make a new reader.
        """
        found = self._reader.read_next(timeout_s)
        self._take_records(found)
        return bool(found)

    def read_to_end(self, patience_s: float = PATIENCE_S) -> FleetRecords:
        """Return the records up to the topics' ends now. Raises ``Unreachable`` after this time."""
        self._take_records(self._reader.read_to_end(patience_s))
        return self.records

    def current_view(self) -> FleetView:
        """Return what the records taken so far say now."""
        return build_fleet_view(self.records, wall_ms())

    def require_topics_unchanged(self, admin: TopicAdmin) -> None:
        """Ask for both topics: only an answer makes what was read that of now.

        Raises ``FleetTopicUnfit`` if one is gone, or another one; ``Unreachable``.
        """
        fleet = self._settings.fleet
        found = {name: admin.describe_topic(name) for name in (fleet.name, fleet.state_topic)}
        for topic, facts in found.items():
            if facts is None:
                raise missing_topic_error(topic)
            if topic == fleet.name and facts.topic_id != self.wire.topic_id:
                raise FleetTopicUnfit(f"topic {topic} was created anew", "read it again")

    def close(self) -> None:
        self._reader.close()

    def _take_records(self, some: Iterable[CompactedRecord]) -> None:
        for record in some:
            if record.topic == self._settings.fleet.name:
                self.records.take_record(parse_command_record(record, self.wire))
            else:
                self.records.take_record(parse_observed_record(record))


class WatchedFleet:
    """Follows a fleet for a command that goes on looking at it. Use from one thread.

    While no broker answers, what was known stays, as of then: a sink is not lost because this
    reader is. Raises as ``FleetReader`` and its ``read_to_end``.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._admin: TopicAdmin | None = None
        self._answered_ms, self._asked_s = wall_ms(), time.monotonic()
        self._reader = _open_and_read_to_end(settings)
        self.problem = ""
        """Why nothing newer is known; empty: it is that of now."""

    def current_view(self) -> FleetView:
        """Return what is known, as of the last answer."""
        as_of_ms = self._answered_ms if self.problem else wall_ms()
        return build_fleet_view(self._reader.records, as_of_ms)

    def is_drained(self, worker: str) -> bool:
        """Return as ``is_worker_drained``. Raises ``MemberRefused`` if two workers have the name:
        one of them was drained."""
        records, fleet = self._reader.records, self.current_view()
        if worker in find_shared_worker_names(records, wall_ms()):
            raise MemberRefused(
                f"two workers are called {worker}: one of them was asked to give its sinks away, "
                "the other one goes on",
                "give each worker a worker.name of its own, or end the one that is left over",
            )
        return is_worker_drained(records, fleet, worker)

    def follow(self, seconds: float) -> None:
        """Take what comes within this time, and ask now and then whether brokers answer."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self._reader.poll_and_took_records(left_s)
        if time.monotonic() - self._asked_s < LOOK_S:
            return
        asked_ms = wall_ms()
        try:
            if self.problem:  # what was told meanwhile comes first, or all would be lost briefly
                again = _open_and_read_to_end(self._settings)
                self._reader.close()
                self._reader = again
            else:
                self._admin = self._admin or TopicAdmin(self._settings.kafka)
                self._reader.require_topics_unchanged(self._admin)
        except Unreachable as error:
            why = self._settings.redact(str(error))
            age_s = (asked_ms - self._answered_ms) // 1_000
            self.problem = f"the brokers have not answered for {age_s} s: {why}"
        else:
            self._answered_ms, self.problem = asked_ms, ""
        self._asked_s = time.monotonic()

    def close(self) -> None:
        self._reader.close()


def _open_and_read_to_end(settings: WorkerSettings) -> FleetReader:
    reader = FleetReader(settings)
    try:
        reader.read_to_end()
    except BaseException:
        reader.close()
        raise
    return reader


def read_reported_lags(settings: WorkerSettings, patience_s: float) -> Mapping[str, int]:
    """Return how many records each sink had still to read, as a worker told last, by its key.

    Raises ``Unreachable`` after this time, also without a state topic; ``MissingRights``.
    """
    topic = settings.fleet.state_topic
    with closing(CompactedReader(settings.kafka, settings.fleet.name, {topic: 1})) as reader:
        records = FleetRecords()
        for record in reader.read_to_end(patience_s):
            records.take_record(parse_observed_record(record))
    told = sorted(records.observed.values(), key=lambda record: record.offset)
    sinks = [record.value for record in told if isinstance(record.value, ObservedSink)]
    return {sink.key: sink.lag_records for sink in sinks if sink.lag_records is not None}


def parse_command_record(record: CompactedRecord, wire: CommandWire) -> CommandRecord:
    """Return what a record of the fleet's topic says."""
    value = wire.decode(record.key, record.partition, record.value)
    return CommandRecord(record.key, record.partition, record.offset, record.time_ms, value)


def parse_observed_record(record: CompactedRecord) -> ObservedRecord:
    """Return what a record of the state topic says."""
    value = None if record.value is None else decode_observed(record.key, record.value)
    return ObservedRecord(record.key, record.offset, record.time_ms, value)


def change_fleet(
    settings: WorkerSettings,
    plan_change: FleetPlanner,
    actor: str,
    *,
    dry_run: bool = False,
    creates: bool = False,
    tries: int = TRIES,
) -> Plan:
    """Change the specs as planned, all of them or none, and return the plan (FLEET-5).

    With ``creates`` the fleet's topics are created if they are missing; a dry run does not.

    Raises ``FleetTopicUnfit``, ``FleetChangedMeanwhile``, ``Unreachable``, and what planning
    raises; ``RetryLater`` if nobody knows whether the change was written.
    """
    if creates and not dry_run:
        ensure_fleet_topics(settings)
    if (
        creates
        and dry_run
        and TopicAdmin(settings.kafka).describe_topic(settings.fleet.name) is None
    ):
        return plan_change(FleetRecords(), Occasion(actor, wall_ms(), settings.fleet.slots))
    for left in reversed(range(tries)):
        try:
            return _change_once(settings, plan_change, actor, dry_run=dry_run)
        except FleetChangedMeanwhile:
            if not left:
                raise
            time.sleep(random.uniform(0.2, 1.0))
    raise AssertionError("there is at least one try")


def _change_once(
    settings: WorkerSettings, plan_change: FleetPlanner, actor: str, *, dry_run: bool
) -> Plan:
    writer = None
    if not dry_run:
        # Before it is read: whoever else begins from here on makes the write fail.
        writer = TransactionalWriter(settings.kafka, settings.fleet.name)
        writer.fence_earlier_writers()
    with closing(FleetReader(settings)) as reader:
        records = reader.read_to_end()
        plan = plan_change(records, Occasion(actor, wall_ms(), reader.slots))
        if writer is not None and plan.changes:
            writer.write(
                KeyedValue(settings.fleet.name, each.slot, each.key, reader.wire.encode(each))
                for each in plan.changes
            )
    return plan


def ensure_fleet_topics(settings: WorkerSettings) -> None:
    """Create both topics, where they are missing; else check that they are compacted.

    Raises ``FleetTopicUnfit``, ``MissingRights``, ``Unreachable``.
    """
    admin = TopicAdmin(settings.kafka)
    fleet = settings.fleet
    for topic, partitions in ((fleet.name, fleet.slots), (fleet.state_topic, 1)):
        admin.ensure_topic(topic, partitions)
        found = read_topic_settings(settings.kafka, topic) or {}
        policy = found.get("cleanup.policy", "compact")
        if policy != "compact":
            raise FleetTopicUnfit(
                f"topic {topic} has cleanup.policy={policy}: specs would be gone after a while",
                "set cleanup.policy=compact on it, or name another fleet",
            )


def missing_topic_error(topic: str) -> FleetTopicUnfit:
    return FleetTopicUnfit(
        f"topic {topic} does not exist", "headgate fleet apply creates it; or correct fleet.name"
    )
