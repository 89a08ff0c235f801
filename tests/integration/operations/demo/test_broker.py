"""The embedded Kafka: it starts, keeps its data through a kill, and never outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.control_protocol.errors import Unreachable
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars

pytestmark = pytest.mark.integration

OWNER = """
import sys, time
from pathlib import Path
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars

kafka = EmbeddedKafka(Path(sys.argv[1]), ensure_broker_jars())
kafka.start()
print(kafka.pid, flush=True)
time.sleep(600)
"""


def topics(kafka: EmbeddedKafka) -> set[str]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    return set(admin.list_topics(timeout=30).topics)


@pytest.mark.wide
def test_data_and_address_survive_a_kill(own_kafka: EmbeddedKafka) -> None:
    address = own_kafka.bootstrap
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result()
    own_kafka.kill()
    assert own_kafka.pid is None
    own_kafka.start()
    assert own_kafka.bootstrap == address
    assert "kept" in topics(own_kafka)
    own_kafka.restart()
    assert "kept" in topics(own_kafka)


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.wide),
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=pytest.mark.wide),
    ],
)
def test_the_broker_dies_with_its_owner(tmp_path: Path, ending: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "kafka")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with owner:
        assert owner.stdout
        broker = psutil.Process(int(owner.stdout.readline()))
        assert broker.is_running()
        os.kill(owner.pid, ending)
    broker.wait(timeout=60)


@pytest.mark.wide
def test_a_broker_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    kafka = EmbeddedKafka(tmp_path / "kafka", ensure_broker_jars())
    kafka.start()
    kafka.stop()
    meta = tmp_path / "kafka" / "data" / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=7"))
    with pytest.raises(Unreachable, match=r"(?s)its log ends:.*previous node id"):
        kafka.start()
    assert kafka.pid is None
