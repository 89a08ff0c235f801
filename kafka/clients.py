"""Makes every client of confluent's that headgate has; nobody else calls their constructors.

So all of them authenticate the same way, by ``[kafka.auth]`` if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient

from headgate.kafka.authentication import with_authentication_awaiting_token


def new_consumer(settings: Mapping[str, Any]) -> kafka.Consumer:
    """Raises what confluent's class raises, and ``HeadgateError`` if there is no token."""
    return kafka.Consumer(with_authentication_awaiting_token(settings))


def new_producer(settings: Mapping[str, Any]) -> kafka.Producer:
    """Raises as ``new_consumer``."""
    return kafka.Producer(with_authentication_awaiting_token(settings))


def new_admin(settings: Mapping[str, Any]) -> AdminClient:
    """Raises as ``new_consumer``."""
    return AdminClient(with_authentication_awaiting_token(settings))


def is_fatal_error(error: kafka.KafkaError) -> bool:
    """Return whether the client works no more: a polled message says so by its code alone."""
    return bool(error.fatal()) or error.code() == kafka.KafkaError._FATAL  # noqa: SLF001
