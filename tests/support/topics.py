"""Deletes topics, and waits for new ones: controllers answer before brokers have heard of it."""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

HEARD_MAX_S = 30.0


def delete_topics(admin: AdminClient, *names: str) -> None:
    """Return when the brokers name none of them; what does not exist is gone already."""
    for deleted in admin.delete_topics([*names]).values() if names else ():
        try:
            deleted.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    _wait_until(admin, names, exist=False)


def wait_for_topics(admin: AdminClient, *names: str) -> None:
    """Return when the brokers name all of them, which were created just now."""
    _wait_until(admin, names, exist=True)


def _wait_until(admin: AdminClient, names: tuple[str, ...], *, exist: bool) -> None:
    deadline = time.monotonic() + HEARD_MAX_S
    while names:
        known = admin.list_topics(timeout=10).topics
        odd = [name for name in names if (name in known) != exist]
        if not odd:
            return
        assert time.monotonic() < deadline, f"{odd} exist: {not exist}"
        time.sleep(0.02)
