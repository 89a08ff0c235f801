"""Adapts one set of Kafka client settings for all clients; says which keys a sink file may set.

librdkafka warns on the terminal if another client gets a consumer's key, so those keys are left out
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate.control_protocol.errors import ConfigurationError

TOPICS_OF_KAFKA = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""No source, though a pattern matches them: every commit of an offset would be a record to read."""

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


SESSION_TIMEOUT_MS = 10_000
"""A member that dies without a word is missed after so long, in Kafka's classic protocol.

Kafka's own default of 45 s avoids rebalances when the network is away for a moment, because they
cost its users much. Here one costs what was read since the last commit, while nobody reads the
partitions of a dead member for all of that time.
"""
SESSION_KEYS = frozenset({"session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms"})
"""Who sets one of these has thought of the others."""


def with_default_session_timeout(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Set how long a group waits for a dead member, unless a person has set its times."""
    own = {} if SESSION_KEYS & settings.keys() else {"session.timeout.ms": SESSION_TIMEOUT_MS}
    return {**settings, **own}


def with_quiet_log(settings: Mapping[str, str]) -> dict[str, str]:
    """Lower librdkafka's own log level unless a person has set it.

    Each attempt to connect would be a line, twenty per second and client while a broker is down;
    what matters of it arrives as an error.
    """
    return {"log_level": "2", **settings}


def without_consumer_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Remove the settings that only a consumer understands."""
    return {key: value for key, value in settings.items() if key not in _CONSUMERS_ONLY}


def settings_for_offset_queries(settings: Mapping[str, str]) -> dict[str, str]:
    """Adapt the settings for an admin client that keeps asking where partitions begin and end.

    It asks with the leader epoch that it remembers, for ``metadata.max.age.ms``: by default, after
    a broker's restart every question would be refused for a quarter of an hour.
    """
    return {**without_consumer_settings(with_quiet_log(settings)), "metadata.max.age.ms": "5000"}


def settings_error(error: Exception, settings: Mapping[str, object]) -> ConfigurationError:
    """Build the error for settings that the client rejects.

    The client's own words about a file that is not there are those of its TLS library.
    """
    for key, value in settings.items():
        if (
            key.endswith(".location")
            and isinstance(value, str)
            and not _is_probe_or_existing_file(value)
        ):
            return ConfigurationError(
                f'kafka."{key}" names {value}, which does not exist', "correct the path"
            )
    kafkas_own = getattr(error.args[0] if error.args else None, "str", None)
    return ConfigurationError(
        f"Kafka's client does not accept its settings: {kafkas_own() if kafkas_own else error}",
        "correct [kafka]",
    )


def _is_probe_or_existing_file(path: str) -> bool:
    """Return whether librdkafka finds this: "probe" is its word for the system's certificates."""
    return path == "probe" or Path(path).exists()


# ------------------------------------------------------------------- what a sink file may set

# An allow-list, because some keys run commands or load code, and others belong to headgate: setting
# them would change what the protocol rests on.
ALLOWED = frozenset(
    {
        "bootstrap.servers",
        "broker.address.family",
        "broker.address.ttl",
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "compression.type",
        "connections.max.idle.ms",
        "debug",
        "enable.ssl.certificate.verification",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "heartbeat.interval.ms",
        "log.connection.close",
        "log_level",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "message.max.bytes",
        "metadata.max.age.ms",
        "metadata.recovery.strategy",
        "queued.max.messages.kbytes",
        "queued.min.messages",
        "receive.message.max.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "session.timeout.ms",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.max.fails",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
        "ssl.ca.certificate.stores",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.crl.location",
        "ssl.curves.list",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.sigalgs.list",
        "statistics.interval.ms",
        "topic.metadata.refresh.interval.ms",
    }
)

_RUNS_CODE = "it makes the client run a command or load code"
REFUSED_FAMILIES = {
    "sasl.kerberos.": "it becomes part of a shell command that the client runs; write [kafka.auth]",
    "sasl.oauthbearer.": "each client would fetch tokens by itself; write [kafka.auth]",
}
_FROM_TABLE = "the position comes from the table, never from the group"

REFUSED = {
    "plugin.library.paths": _RUNS_CODE,
    "ssl.engine.location": _RUNS_CODE,
    "ssl.engine.id": _RUNS_CODE,
    "ssl.providers": _RUNS_CODE,
    "enable.sasl.oauthbearer.unsecure.jwt": "it accepts tokens that nobody has signed",
    "auto.offset.reset": f"{_FROM_TABLE}; for the first start set source.start_at",
    "auto.commit.interval.ms": _FROM_TABLE,
    "auto.commit.enable": _FROM_TABLE,
    "enable.auto.commit": _FROM_TABLE,
    "enable.auto.offset.store": _FROM_TABLE,
    "offset.store.method": _FROM_TABLE,
    "enable.partition.eof": "batches end by end-of-partition events, so it is always on",
    "isolation.level": "records of aborted transactions must not be read: it is read_committed",
    "group.id": "set source.group_id",
    "group.protocol": "set source.group_protocol",
    "group.protocol.type": "set source.group_protocol",
    "group.remote.assignor": "how partitions are shared out is headgate's choice",
    "partition.assignment.strategy": "how partitions are shared out is headgate's choice",
    "group.instance.id": "all participants share this file, and each needs an id of its own",
    "transactional.id": "the control topic needs no transactions",
    "acks": "control events count only when all replicas have them",
    "request.required.acks": "control events count only when all replicas have them",
    "enable.idempotence": "control events keep their order only with it, so it is always on",
    "max.in.flight": "control events keep their order only with headgate's own value",
    "max.in.flight.requests.per.connection": "control events keep their order only with "
    "headgate's own value",
    "allow.auto.create.topics": "a misspelt topic must be an error, not a new topic",
    "metadata.broker.list": 'write "bootstrap.servers"',
    "test.mock.num.brokers": "a simulated broker holds nothing",
}


def why_key_refused(key: str) -> str | None:
    """Return why a key may not be set: ``""`` for an unknown one, which needs no reason.

    Returns ``None`` if it may be set.
    """
    if key in ALLOWED:
        return None
    for prefix, reason in REFUSED_FAMILIES.items():
        if key.startswith(prefix):
            return reason
    return REFUSED.get(key, "")
