"""``headgate run`` as people start and stop it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from support.topics import delete_topics

HEADGATE = (sys.executable, "-c", "from headgate.operations.cli.main import main; main()")
RECORDS = 3_000
PATIENCE_S = 90


def headgate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HEADGATE, *arguments], capture_output=True, text=True, timeout=120)


def wait_for(sink: Path, condition: str, expected: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    seen: Any = None
    while time.monotonic() < deadline:
        result = headgate("status", str(sink), "--json")
        seen = json.loads(result.stdout)[condition] if result.returncode == 0 else result.stderr
        if seen == expected:
            return
    raise AssertionError(f"{condition} is {seen}, not {expected}")


@pytest.mark.wide
@pytest.mark.integration
def test_a_sink_from_init_to_a_clean_audit(
    tmp_path: Path, bootstrap: str, topic: str, unique_name: str, admin: AdminClient
) -> None:
    subprocess.run([*HEADGATE, "init", "shop"], cwd=tmp_path, check=True)
    sink = tmp_path / "shop.toml"
    text = sink.read_text()
    for old, new in {
        'topics = ["shop"]': f'topics = ["{topic}"]\ngroup_id = "{unique_name}"',
        "127.0.0.1:9092": bootstrap,
        "headgate-control": f"{unique_name}-control",
        "interval_ms = 2_000": "interval_ms = 500",
    }.items():
        assert old in text
        text = text.replace(old, new, 1)
    sink.write_text(text)
    produce(bootstrap, topic)
    assert headgate("check", str(sink)).returncode == 0
    with subprocess.Popen([*HEADGATE, "run", str(sink)], stderr=subprocess.PIPE) as running:
        try:
            wait_for(sink, "lag", 0)
            assert headgate("pause", str(sink)).returncode == 0
            assert json.loads(headgate("status", str(sink), "--json").stdout)["paused"] is True
            running.send_signal(signal.SIGTERM)
            _, log = running.communicate(timeout=PATIENCE_S)
        finally:
            running.kill()
    assert running.returncode == 0, log
    judged = headgate("audit", str(sink), "--json")
    report = json.loads(judged.stdout)
    assert judged.returncode == 0, report
    assert report["unproven"] == []
    assert [(p["produced"], p["in_table"]) for p in report["partitions"]] == [
        (RECORDS // 2, RECORDS // 2)
    ] * 2
    delete_topics(admin, f"{unique_name}-control")


def produce(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        row = {"id": number, "happened_at": "2026-01-31T06:00:00Z", "text": f"row {number}"}
        producer.produce(topic, json.dumps(row), partition=number % 2)
    assert producer.flush(30) == 0
