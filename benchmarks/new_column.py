"""Measures how long a record with a new field takes into the table, next to one without.

    python benchmarks/new_column.py [--rounds 10] [--interval-ms 1000]

One participant in process, 1,000 small records/s in two partitions, SQLite catalog on the local
disk, ``unknown_fields = "evolve"``. In turn an ordinary record is sent and one that brings a column
of its own; what is printed is from before it is sent until the table's commit that has it. In the
end each new column is read back: one row has its value.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from confluent_kafka import Message, Producer
from integration.deployment import Deployment

from headgate.control_protocol.identifiers import TopicPartition
from headgate.operations.demo.producer import ensure_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars

TOPIC, PARTITIONS, RATE = "rows", 2, 1_000
WARM_COMMITS = 5
FIRST_ID = 10**12  # above those of the load


def sent(producer: Producer, value: Mapping[str, Any]) -> tuple[TopicPartition, int]:
    """Return its position in the log, once the broker has it."""
    at: list[Message] = []
    body = json.dumps(value).encode()
    producer.produce(TOPIC, body, on_delivery=lambda _, message: at.append(message))
    producer.flush()
    return TopicPartition(TOPIC, at[0].partition() or 0), at[0].offset() or 0


def arrives_ms(sink: Deployment, producer: Producer, value: Mapping[str, Any]) -> int:
    began_ms = time.time_ns() // 1_000_000
    place, offset = sent(producer, value)
    while True:
        history = sink.history()
        for commit in history.commits if history else ():
            if commit.record.offsets.get(place, 0) > offset:
                return commit.committed_ms - began_ms
        time.sleep(0.1)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--rounds", type=int, default=10)
    asked.add_argument("--interval-ms", type=int, default=1_000)
    given = asked.parse_args()
    jars = ensure_broker_jars()
    ordinary, new = [], []
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder), jars) as broker:
        ensure_topic(broker.bootstrap, TOPIC, partitions=PARTITIONS)
        change = {
            "table.schema": {"unknown_fields": "evolve"},
            "coordinator": {"commit_interval_ms": given.interval_ms},
        }
        own = {"group": "new", "partitions": PARTITIONS, "change": change}
        with Deployment(Path(folder), broker.bootstrap, [TOPIC], **own) as sink:
            sink.start()
            producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            with sink.load(RATE):
                sink.wait_for_commits(WARM_COMMITS)
                for number in range(given.rounds):
                    value = {"id": FIRST_ID + number}
                    ordinary.append(arrives_ms(sink, producer, value))
                    new.append(arrives_ms(sink, producer, {**value, f"new_{number}": "first"}))
            sink.stop()
            with sink.table() as table:
                for number in range(given.rounds):
                    rows = table.scan(f"new_{number} = 'first'").to_arrow()
                    assert rows["id"].to_pylist() == [FIRST_ID + number]
    print("record | p50 ms | most ms")
    for name, took in (("ordinary", ordinary), ("new", new)):
        print(f"{name:>8} | {np.percentile(took, 50):>5.0f} | {max(took):>5.0f}")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
