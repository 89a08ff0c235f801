"""Names what brokers and client mean by their error codes, and translates failed requests."""

from __future__ import annotations

import confluent_kafka as kafka

from headgate.control_protocol.errors import HeadgateError, MissingRights, Unreachable

NO_RIGHTS = frozenset(
    {
        kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        kafka.KafkaError.GROUP_AUTHORIZATION_FAILED,
        kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        kafka.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""The cluster refuses the principal: waiting changes nothing, a person grants rights."""

SETTINGS_NOT_TOLD = frozenset(
    {
        kafka.KafkaError.UNSUPPORTED_VERSION,
        kafka.KafkaError.INVALID_REQUEST,
        kafka.KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001 - the client's name for the first
    }
)
"""How a cluster answers that has no settings of topics for an admin client."""

_INCONSISTENT_TOPIC_ID = 103
"""Its code in Kafka's protocol; clients before 2.15 have no name for it."""

NO_TOPIC = frozenset(
    {
        kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
        kafka.KafkaError.UNKNOWN_TOPIC_ID,
        _INCONSISTENT_TOPIC_ID,
        kafka.KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - the client's own way to name local errors
        kafka.KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
"""There is no such topic, or no such partition of it, or it was created again."""


def translate_topic_error(
    what: str, error: kafka.KafkaException, error_if_missing: HeadgateError
) -> HeadgateError:
    """Translate a failed request about a topic that headgate writes to.

    ``what`` names it in the error. ``error_if_missing`` is returned if the topic is gone.
    """
    cause = error.args[0]
    if cause.code() in NO_RIGHTS:
        return MissingRights(
            f"{what}: the cluster refuses this client: {cause.str()}",
            "allow the principal to describe, read and write it",
        )
    if cause.code() in NO_TOPIC:
        return error_if_missing
    return Unreachable(
        f"{what}: the Kafka cluster did not answer: {cause.str()}",
        "check bootstrap.servers and that the brokers run",
    )
