"""Makes a client authenticate by tokens: from a provider's description to the client's settings.

The description travels among Kafka's settings under a key of our own, to every client and into
plans of Spark. It names where a secret is (``${file:PATH}``), never the secret, so that it may be
seen, and two clients with the same description are the same for every cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headgate.control_protocol.errors import KerberosMissing
from headgate.kafka.token_keeper import TokenKeeper, keeper_of

if TYPE_CHECKING:  # settings are read without any client
    from confluent_kafka import KafkaError

AUTH = "headgate.auth"
"""The key of the description; librdkafka never sees it."""

_PROTOCOL = "security.protocol"


def require_kerberos_support() -> None:
    """Raise ``KerberosMissing`` unless the Kafka client of this installation can use tickets."""
    found = _builtin_features()
    if "sasl_gssapi" not in found:
        raise KerberosMissing(
            "the Kafka client of this installation has no GSSAPI: its features are "
            f"{', '.join(found)}",
            "build confluent-kafka against a librdkafka with libsasl2 "
            "(pip install --no-binary confluent-kafka confluent-kafka), or use tokens",
        )


def _builtin_features() -> list[str]:
    """Return what the loaded librdkafka was built with."""
    from headgate.kafka.librdkafka_binding import builtin_features

    return builtin_features()


def token_keeper_for(settings: Mapping[str, Any]) -> TokenKeeper | None:
    """Return this process's keeper of tokens for these settings; ``None`` if they need none."""
    text = settings.get(AUTH)
    if text is None or json.loads(text)["type"] == "kerberos":
        return None
    return keeper_of(text, settings["bootstrap.servers"])


def to_librdkafka_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return librdkafka's own settings for these, without the callback that gives tokens."""
    text = settings.get(AUTH)
    found = {key: value for key, value in settings.items() if key != AUTH}
    if text is None:
        return found
    found.setdefault(_PROTOCOL, "SASL_SSL")
    description = json.loads(text)
    if description["type"] != "kerberos":
        return {**found, "sasl.mechanisms": "OAUTHBEARER"}
    return {
        **found,
        "sasl.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": description.get("service_name", "kafka"),
        # Renewing the ticket is the host's work; what a file says never reaches a shell.
        "sasl.kerberos.kinit.cmd": ":",
        "sasl.kerberos.min.time.before.relogin": "0",
    }


def with_authentication_awaiting_token(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for a client of confluent's: with its callback, if it needs tokens.

    Waits for a process's first token. Raises ``TokenServerRefused``, ``TokenUnfit``, ``TokenAway``.
    """
    found = to_librdkafka_settings(settings)
    keeper = token_keeper_for(settings)
    if keeper is None:
        return found
    keeper.require_token()

    def give_token(_: str) -> tuple[str, float, str, dict[str, str]]:
        token = (
            keeper.current_token_expiring_early()
        )  # from memory: it runs in a thread that serves the client
        return token.text, token.expires_at_s, token.principal, dict(token.extensions)

    found["oauth_cb"] = give_token
    if "error_cb" in found:
        found["error_cb"] = _with_expired_token_explained(found["error_cb"], keeper)
    return found


def token_trouble_suffix(settings: Mapping[str, Any]) -> str:
    """Return why these settings' clients get no new token, to be put behind another reason."""
    keeper = token_keeper_for(settings)
    return f"; {keeper.renewal_trouble}" if keeper and keeper.renewal_trouble else ""


def _with_expired_token_explained(
    error_cb: Callable[[KafkaError], Any], keeper: TokenKeeper
) -> Callable[[KafkaError], None]:
    """Replace what the client says of an expired token, which names anything but that.

    It says so with every attempt to connect; the reason is told once.
    """
    from confluent_kafka import KafkaError

    expired = KafkaError._AUTHENTICATION  # noqa: SLF001 - its name for a local error
    last: list[str] = []

    def explain_error(error: KafkaError) -> None:
        reason = keeper.renewal_trouble
        if error.code() != expired or not reason:
            last.clear()
            error_cb(error)
        elif last != [reason]:
            last[:] = [reason]
            error_cb(KafkaError(expired, reason))

    return explain_error
