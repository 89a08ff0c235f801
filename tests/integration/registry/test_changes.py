"""Debezium's changes in Avro, through a registry: the table is proven to be their fold."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from integration.conftest import Deploy
from unit.data_plane.formats.avro_worlds import record

from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import Verdict
from headgate.operations.check.check import check

pytestmark = [pytest.mark.integration, pytest.mark.soak]

KEY = {**record(id="long"), "name": "Key"}
ROW = {**record(id="long", name=["null", "string"]), "name": "Value"}
ENVELOPE = {
    **record(before=["null", ROW], after=["null", "Value"], op="string"),
    "name": "Envelope",
}


def test_debezium_in_avro_of_a_registry_is_its_fold(deploy: Deploy, registry_url: str) -> None:
    sink = deploy(
        {
            "table": {"key": ["id"], "properties": {"format-version": "3"}},
            "table.columns": {
                "columns": {"id": {"type": "long", "required": True}, "name": "string"}
            },
            "format": {"type": "avro-registry"},
            "format.options": {"registry.url": registry_url},
            "changes": {"envelope": "debezium"},
        }
    )
    fold: dict[int, dict[str, Any]] = {}
    with SchemaRegistryClient({"url": registry_url}) as client:
        keys = AvroSerializer(client, json.dumps(KEY))
        values = AvroSerializer(client, json.dumps(ENVELOPE))
        producer = Producer({"bootstrap.servers": sink.bootstrap, "enable.idempotence": True})
        topic, dice = sink.topics[0], random.Random(4)
        for number in range(1_000):
            key = dice.randrange(200)
            before, row = fold.pop(key, None), {"id": key, "name": f"n{number}"}
            deletes = dice.random() < 0.2
            if not deletes:
                fold[key] = row
            said = {"before": before, "after": None if deletes else row}
            said["op"] = "d" if deletes else "u" if before else "c"
            for value in (said, None) if deletes else (said,):
                producer.produce(
                    topic,
                    value and values(value, SerializationContext(topic, MessageField.VALUE)),
                    keys({"id": key}, SerializationContext(topic, MessageField.KEY)),
                    partition=key % sink.partitions,
                )
        assert producer.flush(60) == 0
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    found = sorted(sink.rows().select(["id", "name"]).to_pylist(), key=lambda row: row["id"])
    assert found == [fold[key] for key in sorted(fold)]
    assert audit(sink.settings).verdict is Verdict.WELL
    (looked,) = (answer for answer in check(sink.settings) if answer.what == "records")
    assert "debezium" in looked.detail
