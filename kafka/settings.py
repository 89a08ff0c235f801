"""Adapts one set of Kafka client settings for consumers, producers and admin clients.

librdkafka warns on the terminal if another client gets a consumer's key, so those keys are left out
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headgate.control_protocol.errors import ConfigurationError

_CONSUMERS_ONLY = frozenset(
    {
        "check.crcs",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "group.id",
        "group.protocol",
        "heartbeat.interval.ms",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "partition.assignment.strategy",
        "queued.max.messages.kbytes",
        "queued.min.messages",
        "session.timeout.ms",
    }
)


def quiet(settings: Mapping[str, str]) -> dict[str, str]:
    """Lower librdkafka's own log level unless a person has set it.

    Each attempt to connect would be a line, twenty per second and client while a broker is down;
    what matters of it arrives as an error.
    """
    return {"log_level": "2", **settings}


def for_other_clients(settings: Mapping[str, str]) -> dict[str, str]:
    """Remove the settings that only a consumer understands."""
    return {key: value for key, value in settings.items() if key not in _CONSUMERS_ONLY}


def for_asking_offsets(settings: Mapping[str, str]) -> dict[str, str]:
    """Adapt the settings for an admin client that keeps asking where partitions begin and end.

    It asks with the leader epoch that it remembers, for ``metadata.max.age.ms``: by default, after
    a broker's restart every question would be refused for a quarter of an hour.
    """
    return {**for_other_clients(quiet(settings)), "metadata.max.age.ms": "5000"}


def unaccepted(error: Exception, settings: Mapping[str, object]) -> ConfigurationError:
    """Build the error for settings that the client rejects.

    The client's own words about a file that is not there are those of its TLS library.
    """
    for key, value in settings.items():
        if key.endswith(".location") and isinstance(value, str) and not _exists(value):
            return ConfigurationError(
                f'kafka."{key}" names {value}, which does not exist', "correct the path"
            )
    kafkas_own = getattr(error.args[0] if error.args else None, "str", None)
    return ConfigurationError(
        f"Kafka's client does not accept its settings: {kafkas_own() if kafkas_own else error}",
        "correct [kafka]",
    )


def _exists(path: str) -> bool:
    return path == "probe" or Path(path).exists()
