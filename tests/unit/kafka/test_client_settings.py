"""One set of Kafka settings, for clients that differ."""

from __future__ import annotations

from headgate.kafka.client_settings import (
    settings_for_offset_queries,
    with_quiet_log,
    without_consumer_settings,
)


def test_the_library_is_quiet_unless_a_person_says_otherwise() -> None:
    assert with_quiet_log({"client.id": "x"}) == {"client.id": "x", "log_level": "2"}
    assert with_quiet_log({"log_level": "7"}) == {"log_level": "7"}


def test_other_clients_do_not_get_what_only_a_consumer_understands() -> None:
    assert without_consumer_settings({"client.id": "x", "session.timeout.ms": "6000"}) == {
        "client.id": "x"
    }


def test_who_asks_for_offsets_forgets_leaders_soon_whatever_a_person_says() -> None:
    asking = settings_for_offset_queries({"metadata.max.age.ms": "900000", "fetch.min.bytes": "1"})
    assert asking == {"metadata.max.age.ms": "5000", "log_level": "2"}
