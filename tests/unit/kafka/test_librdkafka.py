"""Where librdkafka's functions come from, and what is said where they cannot be had."""

from __future__ import annotations

import pyarrow.lib
import pytest

from headgate.control_protocol.errors import ConfigurationError
from headgate.kafka import librdkafka


def test_a_build_that_hides_the_functions_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any shared object stands for it that links no librdkafka."""
    monkeypatch.setattr(librdkafka, "_library", librdkafka._library.__wrapped__)
    monkeypatch.setattr(librdkafka, "cimpl", pyarrow.lib)
    with pytest.raises(ConfigurationError, match="does not show rd_kafka_conf_new") as caught:
        librdkafka.BatchConsumer({})
    assert "confluent-kafka's own wheel" in caught.value.hint
