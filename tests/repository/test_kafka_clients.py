"""Every client of Kafka is made in one module, so that none of them comes without its token."""

from __future__ import annotations

import re

from repository.tree import modules

MADE = re.compile(r"(?<![\w\"`])(?:kafka\.|confluent_kafka\.)?(?:AdminClient|Consumer|Producer)\(")
ELSEWHERE = {"headgate.kafka.clients", "headgate.operations.demo.producer"}
"""The demo's own broker asks for nothing."""


def test_no_other_module_makes_a_client() -> None:
    found = {name for name, path in modules().items() if MADE.search(path.read_text())}
    assert found == ELSEWHERE
