"""The rights in docs/guides/security.md suffice for each role, and each is needed."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from integration.deployment import Deployment
from support.security_page import rights_by_resource

from headgate.kafka.control_topic import ensure_control_topic
from headgate.operations.cli.main import main
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars, find_free_port

pytestmark = [
    pytest.mark.integration,
    pytest.mark.wide,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates by openssl"),
]

OP = AclOperation
KINDS = {"--topic": ResourceType.TOPIC, "--group": ResourceType.GROUP}
OPERATIONS = {
    "read": OP.READ,
    "write": OP.WRITE,
    "describe": OP.DESCRIBE,
    "describeconfigs": OP.DESCRIBE_CONFIGS,
}
SOURCE, CONTROL, MEMBERS = "trips", "trips-control", "headgate-trips"
ROLES = ("trips-sink", "trips-operator", "trips-observer")


def rights_of(user: str) -> list[tuple[ResourceType, str, AclOperation]]:
    """As the page's commands give them."""
    return [
        (KINDS[kind], name, OPERATIONS[operation])
        for (principal, kind, name), operations in rights_by_resource().items()
        if principal == f"User:{user}"
        for operation in sorted(operations)
    ]


def counting(user: str) -> list[tuple[ResourceType, str, AclOperation]]:
    """Without each DESCRIBE that a READ implies: taking it away alone changes nothing."""
    rights = rights_of(user)
    implied = [
        (kind, name, OP.DESCRIBE) for kind, name, operation in rights if operation is OP.READ
    ]
    return [right for right in rights if right not in implied]


ASKED = {SOURCE: "source topics", CONTROL: "control topic", MEMBERS: "consumer group"}


class GuardedKafka(EmbeddedKafka):
    """Clients of the plain listener may do all; on the other one rules and passwords count."""

    users: Sequence[str] = ROLES

    def __init__(self, home: Path, jars: Path) -> None:
        super().__init__(home, jars)
        self.guarded = f"127.0.0.1:{find_free_port()}"
        self.ca = certificates(home)

    def _write_configuration(self, log_dir: Path) -> Path:
        config = super()._write_configuration(log_dir)
        text = config.read_text()
        for key in ("listeners", "advertised.listeners"):
            text = text.replace(f"\n{key}=PLAIN", f"\n{key}=GUARDED://{self.guarded},PLAIN")
        text = text.replace(":PLAINTEXT\n", ":PLAINTEXT,GUARDED:SASL_SSL\n")
        users = " ".join(f'user_{user}="{user}-password"' for user in self.users)
        login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        config.write_text(
            f"{text}sasl.enabled.mechanisms=PLAIN\n"
            f"listener.name.guarded.plain.sasl.jaas.config={login}\n"
            f"ssl.keystore.type=PEM\nssl.keystore.location={self.ca.with_name('broker.pem')}\n"
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            "super.users=User:ANONYMOUS\n"
        )
        return config


def certificates(home: Path) -> Path:
    """An authority, and a broker's key with a certificate of it. Returns the authority's."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "names").write_text("subjectAltName=IP:127.0.0.1")
    new = ["req", "-newkey", "rsa:2048", "-nodes"]
    for arguments in (
        [*new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test-ca"],
        [*new, "-keyout", "broker.key", "-out", "broker.csr", "-subj", "/CN=localhost"],
        [
            *("x509", "-req", "-in", "broker.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-out", "broker.crt", "-extfile", "names"),
        ],
    ):
        subprocess.run(["openssl", *arguments], cwd=home, check=True, capture_output=True)
    keys = (home / "broker.key").read_text() + (home / "broker.crt").read_text()
    (home / "broker.pem").write_text(keys)
    return home / "ca.pem"


class Rules:
    def __init__(self, bootstrap: str) -> None:
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def allow(self, user: str, *rights: tuple[ResourceType, str, AclOperation]) -> None:
        rules = [self._rule(AclBinding, user, right, AclPermissionType.ALLOW) for right in rights]
        for future in self.admin.create_acls(rules).values():
            future.result()

    def take(self, user: str, right: tuple[ResourceType, str, AclOperation]) -> None:
        rule = self._rule(AclBindingFilter, user, right, AclPermissionType.ANY)
        for future in self.admin.delete_acls([rule]).values():
            assert future.result()

    def _rule(self, made: type, user: str, right: object, permission: object) -> object:
        kind, name, operation = right  # type: ignore[misc]
        literal = ResourcePatternType.LITERAL
        return made(kind, name, literal, f"User:{user}", "*", operation, permission)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    with GuardedKafka(tmp_path_factory.mktemp("guarded"), ensure_broker_jars()) as kafka:
        rules = Rules(kafka.bootstrap)
        rules.admin.create_topics([NewTopic(SOURCE, 2, 1)])[SOURCE].result()
        ensure_control_topic({"bootstrap.servers": kafka.bootstrap}, CONTROL)
        for role in ROLES:
            rules.allow(role, *rights_of(role))
        yield kafka


@pytest.fixture
def sink(kafka: GuardedKafka, tmp_path: Path) -> Iterator[Deployment]:
    change = {
        "kafka": guarded(kafka, "trips-sink"),
        "source": {"topics": [SOURCE], "group_id": MEMBERS},
        "control": {"topic": CONTROL},
        "coordinator": {"on_table_recreated": "restart"},  # each test has a table of its own
    }
    with Deployment(
        tmp_path, kafka.bootstrap, [SOURCE], group=MEMBERS, partitions=2, change=change
    ) as sink:
        yield sink


def guarded(kafka: GuardedKafka, user: str) -> dict[str, str]:
    return {
        "bootstrap.servers": kafka.guarded,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(kafka.ca),
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"{user}-password",
    }


def headgate(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def until_check_says(file: Path, question: str, code: str, role: str = "sink") -> str:
    """The cluster takes a moment to heed its new rules."""
    deadline = time.monotonic() + 20
    while True:
        _, text = headgate("check", file, "--role", role)
        line = next((line for line in text.splitlines() if question in line), "")
        if (f"[{code}]" in line) if code else line.startswith("ok"):
            return line
        assert time.monotonic() < deadline, text


def test_the_rights_of_each_role_are_enough(sink: Deployment) -> None:
    for question in ASKED.values():
        until_check_says(sink.sink_file, question, "")
    sink.start()
    sink.produce()
    sink.wait_until(lambda: sink.committed() == 1_000, "1,000 rows")
    operating(of_role(sink, "trips-operator"))
    viewing(of_role(sink, "trips-observer"))
    sink.stop()


def of_role(sink: Deployment, user: str) -> Path:
    """The sink file of somebody else."""
    file = sink.sink_file.with_name(f"{user}.toml")
    file.write_text(sink.sink_file.read_text().replace('"trips-sink', f'"{user}'))
    return file


def operating(file: Path) -> None:
    code, text = headgate("status", file)
    assert code == 0, text
    code, text = headgate("pause", file)
    assert code == 0, text
    assert text.startswith("paused: nothing is fetched until headgate resume\n")
    assert headgate("resume", file)[0] == 0


def viewing(file: Path) -> None:
    """Who may only look may look at everything, and may not make a sink stop fetching."""
    code, text = headgate("status", file)
    assert code == 0, text
    assert headgate("offsets", file)[0] == 0
    code, text = headgate("pause", file)
    assert code == 2, text
    (line,) = text.splitlines()
    assert "HG-103" in line
    assert "Traceback" not in text


@pytest.mark.parametrize("right", counting("trips-sink"), ids=str)
def test_each_right_that_is_taken_away_is_named(
    kafka: GuardedKafka, sink: Deployment, right: tuple[ResourceType, str, AclOperation]
) -> None:
    rules = Rules(kafka.bootstrap)
    question = ASKED[right[1]]
    until_check_says(sink.sink_file, question, "")
    rules.take("trips-sink", right)
    try:
        line = until_check_says(sink.sink_file, question, "HG-103")
        assert right[1] in line
        sink.produce()
        sink.start()
        sink.stopped_by_itself("HG-103")
    finally:
        rules.allow("trips-sink", right)


@pytest.mark.parametrize(
    ("user", "role", "right"),
    [
        (user, role, right)
        for user, role in (("trips-operator", "operator"), ("trips-observer", "viewer"))
        for right in counting(user)
    ],
    ids=str,
)
def test_each_right_of_people_that_is_taken_away_is_named(
    kafka: GuardedKafka,
    sink: Deployment,
    user: str,
    role: str,
    right: tuple[ResourceType, str, AclOperation],
) -> None:
    rules, file, question = Rules(kafka.bootstrap), of_role(sink, user), ASKED[right[1]]
    until_check_says(file, question, "", role)
    rules.take(user, right)
    try:
        assert right[1] in until_check_says(file, question, "HG-103", role)
    finally:
        rules.allow(user, right)
