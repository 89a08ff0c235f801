"""A topic whose leaders answer, and a cluster that does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from support.topics import delete_topics

from headgate.kafka.client_settings import settings_for_offset_queries


@pytest.fixture(scope="session")
def create_topic(bootstrap: str) -> Callable[[str, int], None]:
    """Returns when every partition's leader answers; until then it may say that it is not one."""
    admin = AdminClient(settings_for_offset_queries({"bootstrap.servers": bootstrap}))

    def created(name: str, partitions: int) -> None:
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result()
        asked = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}
        deadline = time.monotonic() + 20
        while any(future.exception() for future in admin.list_offsets(asked).values()):
            assert time.monotonic() < deadline, f"{name} has no leaders"

    return created


@pytest.fixture
def topic(
    admin: AdminClient, create_topic: Callable[[str, int], None], unique_name: str
) -> Iterator[str]:
    """A new topic of four partitions; a test's group may carry its name too."""
    create_topic(unique_name, 4)
    yield unique_name
    delete_topics(admin, unique_name)


@pytest.fixture
def nobody() -> dict[str, str]:
    """Kafka settings of a cluster that is not there."""
    return {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}
