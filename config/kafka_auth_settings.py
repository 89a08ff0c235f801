"""Defines ``[kafka.auth]``: by which tokens, or tickets, Kafka's clients prove who they are."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import urlsplit

from headgate.config.setting_types import Properties, SecretReference, Text, holds_stand_in
from headgate.control_protocol.errors import AuthenticationUnfit
from headgate.control_protocol.secret_references import REFERENCE
from headgate.kafka.authentication import AUTH, require_kerberos_support
from headgate.kafka.token_providers import aws_region_of, is_loopback_host

_EXTENSION = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_SERVICE = re.compile(r"[a-z0-9-]+")
_OWN_MECHANISM = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"})


class AuthType(StrEnum):
    """How clients prove who they are: by tokens of a source, by a Kerberos ticket, or not here."""

    NONE = "none"
    OIDC = "oidc"
    TOKEN_FILE = "token-file"  # noqa: S105 - the name of a way, not a secret
    AWS_MSK_IAM = "aws-msk-iam"
    AZURE = "azure"
    GOOGLE = "google"
    KERBEROS = "kerberos"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAuthSettings:
    """How all clients of Kafka authenticate, other than by ``[kafka]``'s own keys."""

    type: AuthType = AuthType.NONE
    """Where tokens come from; none: [kafka] says how clients authenticate, if at all."""
    token_url: Text = ""
    """The token endpoint, for oidc: https, or a loopback address."""
    client_id: Text = ""
    """Who asks for the token, for oidc and azure."""
    client_secret: SecretReference = SecretReference()
    """Secret of the client, as ${file:PATH} or ${env:NAME}, read again for each token; with Spark
    ${file:PATH}, a file on each executor."""
    private_key: SecretReference = SecretReference()
    """Instead of a secret, for oidc: a private key in PEM, as ${file:PATH}, that signs an
    assertion (RFC 7523) for each token."""
    key_id: Text = ""
    """How the token server calls that key (kid), if it asks for it."""
    assertion_file: Text = ""
    """Instead of a secret: a file with a signed assertion (RFC 7523) that somebody else renews."""
    scope: Text = ""
    """Scope to ask for, for oidc."""
    audience: Text = ""
    """Audience to ask for, for oidc, where the server takes one."""
    ca: Text = ""
    """File with the authorities that the token endpoint's certificate is checked against; empty:
    those of Python's requests."""
    extensions: Properties = Properties()
    """SASL extensions, such as logicalCluster and identityPoolId of Confluent Cloud."""
    path: Text = ""
    """The file with the token, for token-file."""
    region: Text = ""
    """AWS region of the brokers; empty: taken from their name."""
    role_arn: Text = ""
    """AWS role to assume before signing."""
    tenant: Text = ""
    """Tenant of Entra ID, for azure with a secret or an assertion."""
    principal: Text = ""
    """For google: the service account's address; empty: the metadata server or the key says it."""
    key_file: Text = ""
    """For google: the JSON file of a service account's key; empty: what
    GOOGLE_APPLICATION_CREDENTIALS names, else the metadata server."""
    service_name: Text = "kafka"
    """First part of the brokers' Kerberos name."""

    def __bool__(self) -> bool:
        return self.type is not AuthType.NONE

    @property
    def auth_json_with_references(self) -> str:
        """Return what clients need to know, as JSON: it holds references, never a secret."""
        return json.dumps(non_default_values_as_written(self), sort_keys=True)

    def kafka_settings_with_auth_json(self, kafka: Properties) -> Properties:
        """Return Kafka's settings with the description, by which every client is made."""
        if not self:
            return kafka.without(AUTH) if AUTH in kafka else kafka
        return kafka.with_value(AUTH, self.auth_json_with_references)


def non_default_values_as_written(settings: Any) -> dict[str, Any]:
    """Return what is set, with references to secrets as they are written."""
    found: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        text = value.reference if isinstance(value, SecretReference) else value
        if text and text != field.default:
            found[field.name] = dict(text) if isinstance(text, Properties) else str(text)
    return found


_TAKES: dict[AuthType, frozenset[str]] = {
    AuthType.NONE: frozenset(),
    AuthType.OIDC: frozenset(
        {
            *("token_url", "client_id", "client_secret", "private_key", "key_id"),
            *("assertion_file", "scope", "audience", "ca", "extensions"),
        }
    ),
    AuthType.TOKEN_FILE: frozenset({"path", "extensions"}),
    AuthType.AWS_MSK_IAM: frozenset({"region", "role_arn"}),
    AuthType.AZURE: frozenset({"tenant", "client_id", "client_secret", "assertion_file"}),
    AuthType.GOOGLE: frozenset({"principal", "key_file"}),
    AuthType.KERBEROS: frozenset({"service_name"}),
}
_NEEDS: dict[AuthType, tuple[str, ...]] = {
    AuthType.OIDC: ("token_url", "client_id"),
    AuthType.TOKEN_FILE: ("path",),
}


def require_valid_auth(
    kafka: Mapping[str, str], auth: KafkaAuthSettings, *, on_executors: bool
) -> None:
    """Raises ``AuthenticationUnfit``, ``KerberosMissing``. It asks nobody."""
    require_keys_fit_auth_type(auth, "kafka.auth", _TAKES[auth.type], _NEEDS.get(auth.type, ()))
    if not auth:
        return
    _require_kafka_settings_fit_auth(kafka)
    if auth.type is AuthType.OIDC:
        require_safe_token_url(auth.token_url)
    if auth.type in (AuthType.OIDC, AuthType.AZURE):
        _require_valid_kafka_credential(auth, on_executors=on_executors)
    region = auth.region or aws_region_of(kafka.get("bootstrap.servers", ""))
    if auth.type is AuthType.AWS_MSK_IAM and not region:
        _raise_auth_unfit(
            "kafka.auth.region is missing, and the brokers' name does not say it",
            'write region = "eu-central-1", or the region of your cluster',
        )
    if auth.type is AuthType.KERBEROS:
        require_kerberos_support()
        if not _SERVICE.fullmatch(auth.service_name):
            _raise_auth_unfit(
                f"kafka.auth.service_name cannot be {auth.service_name!r}",
                "use small letters, digits and '-'",
            )
    if auth.extensions.secret_names:
        _raise_auth_unfit(
            f'kafka.auth.extensions."{min(auth.extensions.secret_names)}" refers to a secret',
            "write it as it is: brokers need it as an identifier, and it travels to executors",
        )
    for name, value in auth.extensions.items():
        if (
            not _EXTENSION.fullmatch(name)
            or name == "auth"
            or not _EXTENSION_VALUE.fullmatch(value)
        ):
            _raise_auth_unfit(
                f"kafka.auth.extensions cannot have {name!r} with this value",
                "a name has letters only and is not auth; a value has printable ASCII",
            )


def require_keys_fit_auth_type(
    auth: Any, section: str, takes: Collection[str], needs: Collection[str]
) -> None:
    """Raise ``AuthenticationUnfit`` for a key that the type does not take, or that it lacks."""
    for field in fields(auth):
        known = field.name == "type" or field.name in takes
        if not known and getattr(auth, field.name) != field.default:
            _raise_auth_unfit(
                f'{section}.{field.name} is set, and {section}.type is "{auth.type}"',
                "remove it, or correct the type",
            )
    for name in needs:
        if not getattr(auth, name):
            _raise_auth_unfit(f"{section}.{name} is missing", f'type "{auth.type}" needs it')


def _require_kafka_settings_fit_auth(kafka: Mapping[str, str]) -> None:
    both = sorted(_OWN_MECHANISM & kafka.keys())
    if both:
        _raise_auth_unfit(f'kafka."{both[0]}" and [kafka.auth] are both set', "keep one of them")
    protocol = kafka.get("security.protocol", "SASL_SSL").upper()
    servers = kafka.get("bootstrap.servers", "").split(",")
    inside = all(
        is_loopback_host(at.strip().rpartition(":")[0].rpartition("//")[2]) for at in servers
    )
    if protocol != "SASL_SSL" and not (protocol == "SASL_PLAINTEXT" and inside):
        _raise_auth_unfit(
            f'kafka."security.protocol" is {protocol}, and [kafka.auth] is set',
            "leave it out for SASL_SSL: a token on an open line is a password",
        )


def require_safe_token_url(url: str, section: str = "kafka.auth") -> None:
    """Raise ``AuthenticationUnfit`` for an address on an open line, or with more than that."""
    if holds_stand_in(url):
        return
    try:
        parts = urlsplit(url)
    except ValueError:  # of brackets that hold no address
        raise AuthenticationUnfit(
            f"{section}.token_url is no URL", "write https://HOST/PATH"
        ) from None
    if parts.username or parts.password or parts.query or parts.fragment:
        _raise_auth_unfit(
            f"{section}.token_url holds more than an address", "write https://HOST/PATH"
        )
    if parts.scheme != "https" and not (
        parts.scheme == "http" and is_loopback_host(parts.hostname)
    ):
        _raise_auth_unfit(
            f"{section}.token_url is not https",
            "write https://...: the secret would travel on an open line",
        )


def _require_valid_kafka_credential(auth: KafkaAuthSettings, *, on_executors: bool) -> None:
    needed = auth.type is AuthType.OIDC
    require_valid_client_credential(
        auth, "kafka.auth", is_required=needed, used_on_executors=on_executors
    )
    if auth.client_secret and auth.type is AuthType.AZURE and not (auth.tenant and auth.client_id):
        _raise_auth_unfit("kafka.auth.client_secret needs tenant and client_id", "write both")


class OAuthClientSettings(Protocol):
    """What proves to a token server who asks."""

    @property
    def client_secret(self) -> SecretReference: ...
    @property
    def private_key(self) -> SecretReference: ...
    @property
    def assertion_file(self) -> str: ...


def require_valid_client_credential(
    auth: OAuthClientSettings, section: str, *, is_required: bool, used_on_executors: bool
) -> None:
    """Raise ``AuthenticationUnfit`` for two proofs, for none although one ``is_required``, and
    for one that executors do not have."""
    names = ("client_secret", "private_key", "assertion_file")
    given = [name for name in names if getattr(auth, name)]
    if len(given) > 1:
        _raise_auth_unfit(f"{section}.{given[0]} and .{given[1]} are both set", "keep one of them")
    if is_required and not given:
        _raise_auth_unfit(
            f"{section}.client_secret is missing", "write it, or private_key, or assertion_file"
        )
    for name in ("client_secret", "private_key"):
        found = REFERENCE.fullmatch(getattr(auth, name).reference)
        if used_on_executors and found and found[1] == "env":
            _raise_auth_unfit(
                f"{section}.{name} refers to a variable, which executors of Spark do not have",
                "write ${file:PATH}, a file that is on each executor: no secret travels in a plan",
            )


def _raise_auth_unfit(message: str, hint: str) -> None:
    raise AuthenticationUnfit(message, hint)
