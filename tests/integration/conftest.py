"""What integration tests share: Java's Iceberg, a lying REST catalog, deployments of a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from integration.deployment import Deployment
from integration.iceberg.rest_server import LyingProxy
from integration.readers import IcebergSpark
from integration.sink_file import Sections
from support.counting_proxy import CountingProxy
from support.object_store import ObjectStore
from support.topics import delete_topics

Deploy = Callable[..., Deployment]


@pytest.fixture(scope="session")
def iceberg_spark() -> Iterator[IcebergSpark]:
    """Started once for all tests that ask for it."""
    with IcebergSpark() as spark:
        yield spark


@pytest.fixture
def lying_proxy(rest_port: int) -> Iterator[LyingProxy]:
    with LyingProxy(rest_port) as proxy:
        yield proxy


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[CountingProxy]:
    """The object store, behind a proxy that counts what it is asked."""
    with CountingProxy(object_store.port) as proxy:
        yield proxy


@pytest.fixture
def deploy(
    tmp_path: Path,
    bootstrap: str,
    admin: AdminClient,
    unique_name: str,
    topic_factory: Callable[..., str],
) -> Iterator[Deploy]:
    """Makes sinks on new topics: ``deploy({"section": {"key": value}}, partitions=2, topics=1)``.

    Several in one test share catalog and table, and need a name each.
    """
    made: list[Deployment] = []
    with ExitStack() as stack:

        def make(
            change: Sections | None = None, *, partitions: int = 2, topics: int = 1
        ) -> Deployment:
            names = [topic_factory(partitions) for _ in range(topics)]
            group = f"{unique_name}-{len(made)}"
            own = {"group": group, "partitions": partitions, "change": change}
            sink = Deployment(tmp_path, bootstrap, names, **own)
            made.append(stack.enter_context(sink))
            return sink

        yield make
    delete_topics(admin, *(sink.settings.control.topic for sink in made))
