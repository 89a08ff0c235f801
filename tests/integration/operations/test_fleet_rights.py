"""The rights that ``headgate rights --fleet`` prints suffice for each role, and each is needed."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from integration.operations.test_least_rights import OPERATIONS, GuardedKafka, Rules, guarded
from unit.config.test_load import MINIMAL

from headgate.config.setting_types import Properties
from headgate.config.worker_settings import FleetSettings, WorkerSettings
from headgate.control_protocol.errors import HeadgateError, MissingRights
from headgate.control_protocol.identifiers import SinkName
from headgate.kafka.compacted_topics import CompactedProducer, KeyedValue
from headgate.kafka.fleet_group_member import SlotMember, SlotsGained
from headgate.operations.check.required_grants import FleetRole, fleet_grant_commands
from headgate.operations.local_kafka.broker import ensure_broker_jars
from headgate.runtime.fleet.fleet_changes import Wanting, plan_apply
from headgate.runtime.fleet.fleet_topics import FleetReader, change_fleet, ensure_fleet_topics

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates by openssl"),
]

KINDS = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--transactional-id": ResourceType.TRANSACTIONAL_ID,
}
USERS: Mapping[FleetRole, str] = {role: f"fleet-{role.value}" for role in FleetRole}
PATIENCE_S = 30.0
Right = tuple[ResourceType, str, AclOperation]


class FleetKafka(GuardedKafka):
    users = tuple(USERS.values())


def settings_of(bootstrap: Mapping[str, str]) -> WorkerSettings:
    return WorkerSettings(
        fleet=FleetSettings(name="city", slots=2), kafka=Properties({**bootstrap})
    )


NAMED = settings_of({"bootstrap.servers": "127.0.0.1:1"})


def rights_of(role: FleetRole) -> list[Right]:
    """As the printed commands give them."""
    found: list[Right] = []
    for line in fleet_grant_commands(NAMED, role, USERS[role]).splitlines():
        if not line.startswith("kafka-acls "):
            continue
        said = list(pairwise(shlex.split(line)))
        kind, name = next(pair for pair in said if pair[0] in KINDS)
        found += [(KINDS[kind], name, OPERATIONS[v.lower()]) for k, v in said if k == "--operation"]
    return found


def counting(role: FleetRole) -> list[Right]:
    """Without each DESCRIBE that a READ or a WRITE implies: taking it away changes nothing."""
    rights = rights_of(role)
    telling = {AclOperation.READ, AclOperation.WRITE}
    implied = {(kind, name) for kind, name, operation in rights if operation in telling}
    return [
        right
        for right in rights
        if right[2] is not AclOperation.DESCRIBE or right[:2] not in implied
    ]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetKafka]:
    with FleetKafka(tmp_path_factory.mktemp("guarded"), ensure_broker_jars()) as kafka:
        rules = Rules(kafka.bootstrap)
        ensure_fleet_topics(settings_of({"bootstrap.servers": kafka.bootstrap}))
        for role in FleetRole:
            rules.allow(USERS[role], *rights_of(role))
        yield kafka


# ------------------------------------------------------------- what each does; raises if it may not


def view(settings: WorkerSettings) -> None:
    with closing(FleetReader(settings)) as reader:
        reader.read_to_end(PATIENCE_S / 3)


def operate(settings: WorkerSettings) -> None:
    ensure_fleet_topics(settings)
    write_spec(settings)
    view(settings)


def write_spec(settings: WorkerSettings) -> None:
    file = f"{MINIMAL}# {time.monotonic_ns()}\n"
    change_fleet(settings, plan_apply({SinkName("trips"): Wanting(file)}, prune=False), "test")


def work(settings: WorkerSettings) -> None:
    take_slots(settings)
    tell(settings)
    write_spec(settings)
    view(settings)


def take_slots(settings: WorkerSettings) -> None:
    name = settings.fleet.name
    with closing(SlotMember(settings.kafka, name, name, session_timeout_ms=6_000)) as member:
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            if any(isinstance(each, SlotsGained) and each.slots for each in member.poll(0.5)):
                return
    raise MissingRights("it got no slot")


def tell(settings: WorkerSettings) -> None:
    producer = CompactedProducer(settings.kafka)
    producer.try_enqueue(KeyedValue(settings.fleet.state_topic, 0, "worker/test", b"x"))
    producer.flush(PATIENCE_S)
    if failures := producer.take_failures():
        raise MissingRights(str(failures))


DOES: Mapping[FleetRole, Callable[[WorkerSettings], None]] = {
    FleetRole.WORKER: work,
    FleetRole.OPERATOR: operate,
    FleetRole.VIEWER: view,
}


def until_allowed(role: FleetRole, settings: WorkerSettings) -> None:
    """The cluster takes a moment to heed its new rules."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return DOES[role](settings)
        except HeadgateError:
            if time.monotonic() > until_s:
                raise


@pytest.mark.wide
@pytest.mark.parametrize("role", list(FleetRole))
def test_the_rights_of_each_role_are_enough(kafka: FleetKafka, role: FleetRole) -> None:
    until_allowed(role, settings_of(guarded(kafka, USERS[role])))


@pytest.mark.wide
def test_who_may_only_look_changes_nothing(kafka: FleetKafka) -> None:
    settings = settings_of(guarded(kafka, USERS[FleetRole.VIEWER]))
    until_allowed(FleetRole.VIEWER, settings)
    with pytest.raises(HeadgateError):
        write_spec(settings)
    with pytest.raises(MissingRights):
        take_slots(settings)
    with pytest.raises(MissingRights, match=r"authorization failed"):
        tell(settings)


@pytest.mark.wide
def test_a_worker_that_gets_its_right_late_tells_then(kafka: FleetKafka) -> None:
    """What is fatal to a client ends no worker, and holds only until the right is there."""
    rules = Rules(kafka.bootstrap)
    user = USERS[FleetRole.VIEWER]
    settings = settings_of(guarded(kafka, user))
    producer = CompactedProducer(settings.kafka)
    record = KeyedValue(settings.fleet.state_topic, 0, "worker/late", b"x")
    right = (ResourceType.TOPIC, settings.fleet.state_topic, AclOperation.WRITE)
    failed: list[str] = []
    until_s = time.monotonic() + PATIENCE_S
    while not failed:
        producer.try_enqueue(record)
        failed += producer.take_failures()
        assert time.monotonic() < until_s
        time.sleep(0.1)
    rules.allow(user, right)
    try:
        while True:
            taken = producer.try_enqueue(record)
            producer.flush(PATIENCE_S)
            if taken and not producer.take_failures():
                break
            assert time.monotonic() < until_s + PATIENCE_S
            time.sleep(0.2)
    finally:
        rules.take(user, right)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("role", "right"), [(role, right) for role in FleetRole for right in counting(role)], ids=str
)
def test_each_right_is_needed(kafka: FleetKafka, role: FleetRole, right: Right) -> None:
    rules, settings = Rules(kafka.bootstrap), settings_of(guarded(kafka, USERS[role]))
    until_allowed(role, settings)
    rules.take(USERS[role], right)
    try:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                DOES[role](settings)
            except HeadgateError:
                return
            assert time.monotonic() < until_s, "it does all of it without"
    finally:
        rules.allow(USERS[role], right)
