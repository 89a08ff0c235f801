"""Where librdkafka's functions come from, and the error if they are not available."""

from __future__ import annotations

from typing import Any

import pyarrow.lib
import pytest

from headgate.control_protocol.errors import ConfigurationError
from headgate.kafka import librdkafka_binding


def test_a_build_that_hides_the_functions_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any shared object stands for it that links no librdkafka."""
    monkeypatch.setattr(
        librdkafka_binding, "_load_library", librdkafka_binding._load_library.__wrapped__
    )
    monkeypatch.setattr(librdkafka_binding, "cimpl", pyarrow.lib)
    with pytest.raises(ConfigurationError, match="does not show rd_kafka_conf_new") as caught:
        librdkafka_binding.BatchConsumer({})
    assert "confluent-kafka's own wheel" in caught.value.hint


def test_freshness_a_pause_is_taken_back_before_partitions_are_assigned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other way round, the first fetch finds its partition paused, nothing wakes the client
    when it is resumed, and every other batch begins a second late."""
    consumer = librdkafka_binding.BatchConsumer(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "reader"}
    )
    library, called = librdkafka_binding._load_library(), []
    for name in ("assign", "resume_partitions"):
        real = getattr(library, name)

        def noted(*given: object, name: str = name, real: Any = real) -> object:
            called.append(name)
            return real(*given)

        monkeypatch.setattr(library, name, noted)
    consumer.assign({("topic", 0): 5})
    consumer.pause([("topic", 0)])
    consumer.unassign()
    consumer.assign({("topic", 0): 7})
    assert called == ["resume_partitions", "assign", "assign", "resume_partitions", "assign"]
    consumer.close()
