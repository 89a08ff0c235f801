"""Defines the settings for observing a sink: telemetry and the HTTP interface."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.config.setting_types import Properties, Secret, Text, holds_stand_in
from headgate.control_protocol.errors import ConfigurationError
from headgate.kafka.token_providers import is_loopback_host


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """Metrics are collected when something takes them: over OTLP, or from [http] /metrics."""

    otlp_endpoint: Text = ""
    """Where metrics are sent over OTLP/HTTP, such as http://127.0.0.1:4318/v1/metrics; empty:
    nowhere."""
    otlp_headers: Properties = Properties()
    """Headers of those requests, such as a token."""
    interval_ms: int = 10_000
    """How often lag is measured, and metrics are sent over OTLP."""
    per_partition: bool = False
    """Whether offsets are also reported per partition, not only per topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The HTTP interface: probes, metrics, page, operations; docs/guides/http.md describes it."""

    listen: Text = ""
    """HOST:PORT of the participant's own server; empty: no server. Addresses other than loopback
    require certificate, key and viewer_token."""
    certificate: Text = ""
    """File with the server's certificate chain (PEM)."""
    key: Text = ""
    """File with its private key (PEM)."""
    viewer_token: Secret = Secret()
    """Secret for read access, as ${file:PATH} or ${env:NAME}: at least 16 characters."""
    operator_token: Secret = Secret()
    """Secret for access that also allows actions; empty: no actions are allowed."""


_TOKEN_CHARACTERS_MIN = 16
_INTERVAL_MS_MIN = 1_000


def parse_listen_address(listen: str) -> tuple[str, int]:
    """Split HOST:PORT, with an IPv6 address in brackets. Raises ``ConfigurationError``."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not int(port) < 65_536:
        raise ConfigurationError(
            f"http.listen cannot be {listen!r}", 'write HOST:PORT, such as "127.0.0.1:8080"'
        )
    return host, int(port)


def require_valid_observability(telemetry: TelemetrySettings, http: HttpSettings) -> None:
    """Raise ``ConfigurationError`` for settings that contradict or expose the sink to strangers."""
    endpoint = telemetry.otlp_endpoint
    if endpoint and not (endpoint.startswith(("http://", "https://")) or holds_stand_in(endpoint)):
        raise ConfigurationError(
            f"telemetry.otlp_endpoint cannot be {endpoint!r}",
            'write a URL, such as "http://127.0.0.1:4318/v1/metrics"',
        )
    if telemetry.interval_ms < _INTERVAL_MS_MIN:
        raise ConfigurationError(
            f"telemetry.interval_ms is {telemetry.interval_ms}",
            f"use {_INTERVAL_MS_MIN} or more: each look asks the brokers",
        )
    if bool(http.certificate) is not bool(http.key):
        raise ConfigurationError(
            "http.certificate and http.key must be set together", "set both, or none"
        )
    tokens = {"viewer_token": http.viewer_token, "operator_token": http.operator_token}
    for name, token in tokens.items():
        if token and len(token.text) < _TOKEN_CHARACTERS_MIN:
            raise ConfigurationError(
                f"http.{name} has {len(token.text)} characters",
                f"use at least {_TOKEN_CHARACTERS_MIN}, such as openssl rand -hex 32 prints",
            )
    if http.viewer_token and http.viewer_token == http.operator_token:
        raise ConfigurationError(
            "http.viewer_token and http.operator_token are the same",
            "give operators a token of their own",
        )
    if http.listen and not holds_stand_in(http.listen):
        require_safe_listen_address(http.listen, http)


def require_safe_listen_address(listen: str, http: HttpSettings) -> None:
    """Require TLS and a token if others could reach the address. Raises ``ConfigurationError``."""
    host, _ = parse_listen_address(listen)
    if is_loopback_host(host):
        return
    missing = [
        name for name, there in (("certificate", http.certificate), ("key", http.key)) if not there
    ]
    missing += [] if http.viewer_token else ["viewer_token"]
    if missing:
        raise ConfigurationError(
            f"http.listen {listen!r} can be reached from other machines, but "
            f"http.{', http.'.join(missing)} is not set",
            "set them, or listen on 127.0.0.1",
        )
