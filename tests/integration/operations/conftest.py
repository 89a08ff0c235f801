"""A table, and a real topic that it is judged against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from pyiceberg.catalog import Catalog, load_catalog
from unit.operations.filled_table import FilledTable, catalog_properties, sink_file_text

from headgate.config.load import load
from headgate.config.sink_settings import SinkSettings


@pytest.fixture
def topic(topic_factory: object) -> str:
    return str(topic_factory(2))  # type: ignore[operator]


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Producer]:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    yield producer
    producer.flush(10)


@pytest.fixture
def sink_file(tmp_path: Path, topic: str, bootstrap: str, unique_name: str) -> Path:
    path = tmp_path / "sink.toml"
    control = f"{unique_name}-control"
    path.write_text(sink_file_text(tmp_path, topic, bootstrap, control))
    return path


@pytest.fixture
def settings(sink_file: Path) -> SinkSettings:
    return load(sink_file)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = load_catalog("default", **catalog_properties(tmp_path))
    yield catalog
    catalog.close()


@pytest.fixture
def filled(catalog: Catalog, topic: str, admin: AdminClient) -> FilledTable:
    described = admin.describe_topics(TopicCollection([topic]))[topic].result()
    return FilledTable(catalog, topic, str(described.topic_id))
