"""Avro through a whole sink: written by Confluent's serializer, read by others, exactly once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Self

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.registry.server import RegistryServer, framed
from integration.tables.test_created import _table, rows_of
from unit.data_plane.formats.avro_worlds import record

from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import Verdict

pytestmark = pytest.mark.integration

MOMENT = {"type": "long", "logicalType": "timestamp-micros"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
OLD = record(id="long", at=MOMENT, price=PRICE)
NEW = record(
    price=["null", PRICE],
    note="string",
    id="int",
    at=MOMENT,
    tags={"type": "map", "values": "long"},
)
KEY = {**record(customer="string", shop="int"), "name": "Key"}
BEGIN = datetime(2026, 8, 1, tzinfo=UTC)


def sections(url: str) -> dict[str, Any]:
    registry = {
        "registry.url": url,
        "registry.timeout": 1,
        "registry.max.retries": 1,
        "registry.retries.wait.ms": 50,
    }
    return {
        "format": {"type": "avro-registry", "key_type": "avro-registry"},
        "format.options": registry,
        "format.key_options": registry,
        "table.columns": {
            "columns": {
                "id": "long",
                "at": "timestamptz",
                "price": "decimal(11, 3)",
                "note": "string",
                "tags": "map<string, int>",
                "k": "struct<shop: long, customer: string>",
                "h": "map<string, binary>",
            }
        },
        "table.record_columns": {"key": "k", "headers": "h"},
    }


def row(number: int, *, new: bool) -> dict[str, Any]:
    at = BEGIN + timedelta(microseconds=number)
    price = None if number % 5 == 0 and new else Decimal(number).scaleb(-2)
    old = {"id": number, "at": at, "price": price}
    return {**old, "note": f"n{number}", "tags": {"n": number}} if new else old


class Writer:
    """A producer as its users have it: the serializers register what they write."""

    def __init__(self, sink: Deployment, url: str) -> None:
        self._client = client = SchemaRegistryClient({"url": url})
        self._values = {
            new: AvroSerializer(client, json.dumps(NEW if new else OLD)) for new in (0, 1)
        }
        self._keys = AvroSerializer(client, json.dumps(KEY))
        self._topic = sink.topics[0]
        self._producer = Producer({"bootstrap.servers": sink.bootstrap})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.__exit__(None, None, None)

    def write(self, numbers: range, *, new: bool) -> None:
        for number in numbers:
            value = SerializationContext(self._topic, MessageField.VALUE)
            key = SerializationContext(self._topic, MessageField.KEY)
            self._producer.produce(
                self._topic,
                self._values[new](row(number, new=new), value),
                self._keys({"customer": f"c{number % 7}", "shop": number % 3}, key),
                partition=number % 2,
                headers={"origin": str(number).encode()},
            )
        assert self._producer.flush(30) == 0


def rows_by_id(sink: Deployment) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for found in sink.rows().to_pylist():
        yield found["id"], found


def test_avro_of_two_writers_keys_and_headers_arrive_as_they_were(
    deploy: Deploy, registry_url: str
) -> None:
    sink = deploy(sections(registry_url))
    sink.start(2)
    with Writer(sink, registry_url) as writer:
        writer.write(range(500), new=False)
        sink.wait_until_lag_zero()
        for begin in range(500, 1000, 100):
            writer.write(range(begin, begin + 50), new=True)
            writer.write(range(begin + 50, begin + 100), new=False)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()
    found = dict(rows_by_id(sink))
    assert sorted(found) == list(range(1000))
    for number, got in found.items():
        new = number >= 500 and number % 100 < 50
        wanted = {"note": None, "tags": None, **row(number, new=new)}
        assert got["at"].astimezone(UTC) == wanted["at"]
        assert (got["id"], got["price"], got["note"]) == (number, wanted["price"], wanted["note"])
        assert dict(got["tags"] or {}) == (wanted["tags"] or {})
        assert got["k"] == {"shop": number % 3, "customer": f"c{number % 7}"}
        assert dict(got["h"]) == {"origin": str(number).encode()}


@pytest.mark.wide
def test_a_registry_that_fails_for_a_while_holds_the_sink_up_and_loses_nothing(
    deploy: Deploy, troubled: RegistryServer
) -> None:
    sink = deploy(sections(troubled.url))
    with Writer(sink, troubled.url) as writer:
        writer.write(range(100), new=False)
    for status, wait_s in ((500, 0.0), (0, 3.0)):
        troubled.trouble.status, troubled.trouble.wait_s = status, wait_s
        (participant,) = sink.start()
        asked = len(troubled.asked)
        sink.wait_until(lambda a=asked: len(troubled.asked) > a + 4, "repeated questions")
        assert participant.said("HG-401 the schema registry does not give the schema")
        assert sink.committed() == 0
        sink.kill(participant)
    troubled.trouble.wait_s = 0
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert sink.judge().live_rows == 100


def test_an_id_that_the_registry_does_not_know_stops_the_sink_before_its_record(
    deploy: Deploy, troubled: RegistryServer
) -> None:
    sink = deploy(sections(troubled.url))
    with Writer(sink, troubled.url) as writer:
        writer.write(range(10), new=False)
    producer = Producer({"bootstrap.servers": sink.bootstrap})
    producer.produce(sink.topics[0], b"\x00\x00\x00\x03\xe7\x00", partition=1)
    assert producer.flush(30) == 0
    sink.start()
    line = sink.stopped_by_itself("HG-207")
    assert "partition 1 offset 5: the registry does not know the schema 999" in line


def test_json_with_its_id_in_a_header_goes_whole_to_table_and_quarantine(
    deploy: Deploy, troubled: RegistryServer
) -> None:
    """What is kept of a bad record is as it came: without the frame that its header held."""
    columns = {"columns": {"id": "long", "name": "string"}}
    options = {"registry.url": troubled.url, "framing": "confluent-header"}
    sink = deploy(
        {
            "format": {"type": "json-registry"},
            "format.options": options,
            "table.columns": columns,
            "quarantine": {"policy": "quarantine", "per_thousand_max": 1_000},
        }
    )
    schema = {"title": "Row", "type": "object", "properties": {"id": {"type": "integer"}}}
    producer = Producer({"bootstrap.servers": sink.bootstrap})
    with SchemaRegistryClient({"url": troubled.url}) as client:
        told = {"schema.id.serializer": header_schema_id_serializer, "validate": False}
        write = JSONSerializer(json.dumps(schema), client, conf=told)
        for number in range(100):
            at = SerializationContext(sink.topics[0], MessageField.VALUE, [])
            row = {"id": "none" if number == 7 else number, "name": f"n{number}"}
            value = write(row, at)
            producer.produce(sink.topics[0], value, partition=number % 2, headers=at.headers)
    assert producer.flush(30) == 0
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    report = audit(sink.settings)
    assert report.findings == ()
    assert report.sum_over_partitions("in_quarantine") == 1
    assert sorted(row["id"] for row in sink.rows().to_pylist()) == [
        number for number in range(100) if number != 7
    ]
    with sink.catalog() as catalog:
        (kept,) = catalog.load_table(sink.settings.quarantine.table).scan().to_arrow().to_pylist()
    assert json.loads(kept["value"]) == {"id": "none", "name": "n7"}


SHAPES: Mapping[str, Mapping[str, Any]] = {
    "users": {"id": {"type": "integer"}, "name": {"type": "string"}},
    "prices": {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}


def write_framed(sink: Deployment, server: RegistryServer, topic: str, **row: Any) -> bytes:
    """Return the value, with the id of the schema that has the name of one of ``SHAPES``."""
    name = next(name for name in SHAPES if set(row) == set(SHAPES[name]))
    schema = {"title": name, "type": "object", "properties": SHAPES[name]}
    body = {"schema": json.dumps(schema), "schemaType": "JSON"}
    return framed(server.subjects.register(f"{topic}-value", body), row)


def test_json_of_a_registry_replaces_and_deletes_rows_by_key(
    deploy: Deploy, troubled: RegistryServer
) -> None:
    columns = {"id": {"type": "long", "required": True}, "name": "string"}
    sink = deploy(
        {
            "table": {"key": ["id"], "properties": {"format-version": "3"}},
            "table.columns": {"columns": columns},
            "format": {"type": "json-registry", "key_type": "json"},
            "format.options": {"registry.url": troubled.url},
            "changes": {"envelope": "plain"},
        }
    )
    # Idempotent: without, what is sent again after a first failure may change places.
    own = {"bootstrap.servers": sink.bootstrap, "enable.idempotence": True}
    producer, (topic,) = Producer(own), sink.topics
    fold: dict[int, str] = {}
    for number in range(1_000):
        key = number * 7919 % 200
        deletes = number % 5 == 0
        if deletes:
            fold.pop(key, None)
        else:
            fold[key] = f"n{number}"
        value = None if deletes else write_framed(sink, troubled, topic, id=key, name=f"n{number}")
        producer.produce(topic, value, json.dumps({"id": key}), partition=key % sink.partitions)
    assert producer.flush(30) == 0
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert {row["id"]: row["name"] for row in sink.rows().to_pylist()} == fold
    assert audit(sink.settings).verdict is Verdict.WELL


def test_json_of_a_registry_makes_the_tables_that_its_schemas_describe(
    deploy: Deploy, troubled: RegistryServer
) -> None:
    sink = deploy({}, topics=2, partitions=1)
    sink.change(
        {
            "table": None,
            "table.columns": None,
            "table.record_columns": None,
            "format": {"type": "json-registry"},
            "format.options": {"registry.url": troubled.url},
            "tables": {"ledger": "db.ledger"},
            "tables.create": {"schema": "registry"},
            "tables.route": [{"topic": "^.*$", "to": "lake.{topic}"}],
            "quarantine": {"table": "db.rejected"},
        }
    )
    producer, (users, prices) = Producer({"bootstrap.servers": sink.bootstrap}), sink.topics
    for number in range(300):
        row = {"id": number, "price": number / 4, "tags": [f"t{number % 3}"]}
        producer.produce(prices, write_framed(sink, troubled, prices, **row))
        row = {"id": number, "name": f"n{number}"}
        producer.produce(users, write_framed(sink, troubled, users, **row))
    assert producer.flush(30) == 0
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    found = {topic: rows_of(sink, f"lake.{_table(topic)}").to_pylist() for topic in sink.topics}
    assert sorted(row["name"] for row in found[users]) == sorted(f"n{n}" for n in range(300))
    assert all(row == {**row, "price": row["id"] / 4} for row in found[prices])
    assert all(row["tags"] == [f"t{row['id'] % 3}"] for row in found[prices])
    assert audit(sink.settings).findings == ()
