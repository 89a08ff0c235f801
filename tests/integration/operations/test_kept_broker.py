"""``headgate kafka`` runs a broker that still has its topics after a restart."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.operations.local_kafka.broker import find_free_port, run_until_stopped

pytestmark = [pytest.mark.integration, pytest.mark.soak]


def test_a_broker_has_its_topics_still(tmp_path: Path) -> None:
    found: list[bool] = []
    for _ in range(2):
        stop, port = threading.Event(), find_free_port()

        def answered(_: str, stop: threading.Event = stop, port: int = port) -> None:
            if not stop.is_set():
                admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
                found.append("kept" in admin.list_topics(timeout=30).topics)
                if not found[-1]:
                    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(30)
                stop.set()

        run_until_stopped(tmp_path / "kafka", port, answered, stop)
    assert found == [False, True]
