"""What is said of a topic whose newest records cannot be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import confluent_kafka as kafka
import pytest

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    MissingRights,
    Unreachable,
)
from headgate.kafka import record_samples
from headgate.kafka.record_samples import read_newest_records

CODES = kafka.KafkaError


class Consumer:
    """Finds an error where it asks for the topic, or where it reads."""

    def __init__(self, of_metadata: int | None, of_fetch: int | None) -> None:
        self._of_metadata, self._of_fetch = map(_error, (of_metadata, of_fetch))

    def list_topics(self, topic: str, **_: object) -> Any:
        return SimpleNamespace(
            topics={topic: SimpleNamespace(error=self._of_metadata, partitions={0: None})}
        )

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        return 0, 1

    def assign(self, _: object) -> None: ...

    def consume(self, *_: object, **__: object) -> list[Any]:
        return [SimpleNamespace(error=lambda: self._of_fetch)]

    def close(self) -> None: ...


def _error(code: int | None) -> kafka.KafkaError | None:
    return None if code is None else kafka.KafkaError(code, "so said the broker")


@pytest.mark.parametrize(
    ("of_metadata", "of_fetch", "kind"),
    [
        (CODES.TOPIC_AUTHORIZATION_FAILED, None, MissingRights),
        (None, CODES.TOPIC_AUTHORIZATION_FAILED, MissingRights),
        (None, CODES.GROUP_AUTHORIZATION_FAILED, MissingRights),
        (CODES.LEADER_NOT_AVAILABLE, None, Unreachable),
        (None, CODES._TRANSPORT, Unreachable),
        (CODES.UNKNOWN_TOPIC_OR_PART, None, ConfigurationError),
        (CODES.TOPIC_EXCEPTION, None, ConfigurationError),
    ],
)
def test_a_topic_that_may_not_be_read_is_not_called_by_a_wrong_name(
    monkeypatch: pytest.MonkeyPatch,
    of_metadata: int | None,
    of_fetch: int | None,
    kind: type[HeadgateError],
) -> None:
    made = Consumer(of_metadata, of_fetch)
    monkeypatch.setattr(record_samples, "new_consumer", lambda _: made)
    with pytest.raises(HeadgateError, match="so said the broker") as found:
        read_newest_records({"bootstrap.servers": "127.0.0.1:1"}, "orders", 1)
    assert type(found.value) is kind
