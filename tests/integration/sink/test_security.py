"""A broker that lets nobody in without a password: each client of a sink has to bring it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from integration.deployment import Deployment

from headgate.operations.cli.main import main
from headgate.operations.demo.producer import ensure_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars, find_free_port

pytestmark = pytest.mark.integration

PASSWORD = "a-word-that-no-log-may-show"


class KafkaWithPasswords(EmbeddedKafka):
    """Has a second door, for users with a password; the first is left to the test itself."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, ensure_broker_jars())
        self.guarded = f"127.0.0.1:{find_free_port()}"

    def _write_configuration(self, log_dir: Path) -> Path:
        config = super()._write_configuration(log_dir)
        text = config.read_text()
        for key in ("listeners", "advertised.listeners"):
            text = text.replace(f"\n{key}=PLAIN", f"\n{key}=GUARDED://{self.guarded},PLAIN")
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        text = text.replace(":PLAINTEXT\n", ":PLAINTEXT,GUARDED:SASL_PLAINTEXT\n")
        text += "sasl.enabled.mechanisms=PLAIN\n"
        text += f'listener.name.guarded.plain.sasl.jaas.config={login} user_sink="{PASSWORD}";\n'
        config.write_text(text)
        return config


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaWithPasswords]:
    with KafkaWithPasswords(tmp_path_factory.mktemp("guarded")) as kafka:
        ensure_topic(kafka.bootstrap, "rows", partitions=2)
        yield kafka


@pytest.fixture
def sink(
    kafka: KafkaWithPasswords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Deployment]:
    monkeypatch.setenv("HEADGATE_TEST_PASSWORD", PASSWORD)
    own = {
        "bootstrap.servers": kafka.guarded,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "sink",
        "sasl.password": "${env:HEADGATE_TEST_PASSWORD}",
    }
    with Deployment(tmp_path, kafka.bootstrap, ["rows"], group="rows", change={"kafka": own}) as d:
        yield d


@pytest.mark.wide
def test_hc44_consumer_producer_and_admin_bring_it(sink: Deployment) -> None:
    participants = sink.start(2)
    sink.produce()
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: sink.shares() == [1, 1], "partitions with both")
    sink.stop()
    sink.judge()
    assert not any(participant.said(PASSWORD) for participant in participants)


@pytest.mark.wide
def test_hc43_a_wrong_password_is_named_and_not_shown(
    sink: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_TEST_PASSWORD", "another-that-no-log-may-show")
    result = CliRunner().invoke(main, ["check", str(sink.sink_file)])
    assert result.exit_code == 2
    assert "HG-103" in result.output
    assert "that-no-log-may-show" not in result.output
