"""Defines ``[format.auth]``: by which tokens the schema registry is asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from headgate.config.kafka_auth_settings import (
    non_default_values_as_written,
    require_keys_fit_auth_type,
    require_safe_token_url,
    require_valid_client_credential,
)
from headgate.config.setting_types import Properties, SecretReference, Text
from headgate.control_protocol.errors import AuthenticationUnfit

if TYPE_CHECKING:
    from headgate.config.sink_sections import SinkSections

REGISTRY_AUTH = "registry.auth"
"""The option that carries the description to the registry's client."""

_SECTION = "format.auth"


class RegistryAuthType(StrEnum):
    """Where a token for the registry comes from; or that there is none."""

    NONE = "none"
    OIDC = "oidc"
    TOKEN_FILE = "token-file"  # noqa: S105 - the name of a way, not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAuthSettings:
    """How a schema registry is asked that wants tokens; passwords and certificates are options of
    the format."""

    type: RegistryAuthType = RegistryAuthType.NONE
    """Where tokens come from; none: format.options say how the registry is asked, if at all."""
    token_url: Text = ""
    """The token endpoint, for oidc: https, or a loopback address."""
    client_id: Text = ""
    """Who asks for the token."""
    client_secret: SecretReference = SecretReference()
    """Secret of the client, as ${file:PATH} or ${env:NAME}, read again for each token; with Spark
    ${file:PATH}, a file on each executor."""
    private_key: SecretReference = SecretReference()
    """Instead of a secret: a private key in PEM that signs an assertion (RFC 7523) for each token.
    """
    key_id: Text = ""
    """How the token server calls that key (kid), if it asks for it."""
    assertion_file: Text = ""
    """Instead of a secret: a file with a signed assertion that somebody else renews."""
    scope: Text = ""
    """Scope to ask for."""
    audience: Text = ""
    """Audience to ask for, where the server takes one."""
    ca: Text = ""
    """File with the authorities that the token endpoint's certificate is checked against; empty:
    those of Python's requests."""
    path: Text = ""
    """The file with the token, for token-file."""

    def __bool__(self) -> bool:
        return self.type is not RegistryAuthType.NONE

    def options_with_auth_json(self, options: Properties, format_name: str) -> Properties:
        """Return a format's options with the description, if it is one that asks a registry."""
        if not self or not _takes_registry_tokens(format_name):
            return options.without(REGISTRY_AUTH) if REGISTRY_AUTH in options else options
        found = {**non_default_values_as_written(self), "section": _SECTION}
        return options.with_value(REGISTRY_AUTH, json.dumps(found, sort_keys=True))


def _takes_registry_tokens(format_name: str) -> bool:
    return format_name.endswith("-registry") and format_name != "glue-registry"


_OF_OIDC = frozenset(
    {
        *("token_url", "client_id", "client_secret", "private_key", "key_id", "assertion_file"),
        *("scope", "audience", "ca"),
    }
)
_TAKES = {
    RegistryAuthType.NONE: frozenset[str](),
    RegistryAuthType.OIDC: _OF_OIDC,
    RegistryAuthType.TOKEN_FILE: frozenset({"path"}),
}
_NEEDS = {RegistryAuthType.OIDC: ("token_url", "client_id"), RegistryAuthType.TOKEN_FILE: ("path",)}


def require_valid_registry_auth(settings: SinkSections) -> None:
    """Raise ``AuthenticationUnfit`` for what no registry could be asked with. It asks nobody."""
    auth = settings.format.auth
    require_keys_fit_auth_type(auth, _SECTION, _TAKES[auth.type], _NEEDS.get(auth.type, ()))
    names = (settings.format.type, settings.format.key_type)
    if auth and not any(map(_takes_registry_tokens, names)):
        raise AuthenticationUnfit(
            f"[{_SECTION}] is set, and no format asks a registry that takes tokens",
            "remove it, or set format.type to avro-registry, json-registry or protobuf-registry; "
            "glue-registry has the credentials of AWS",
        )
    if auth.type is RegistryAuthType.OIDC:
        require_safe_token_url(auth.token_url, _SECTION)
        require_valid_client_credential(
            auth, _SECTION, is_required=True, used_on_executors=settings.spark.is_writer
        )
