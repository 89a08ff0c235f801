"""Reads the certificate that a server shows, for the server and for who checks its settings."""

from __future__ import annotations

import ssl

from headgate.config.telemetry_and_http_settings import HttpSettings
from headgate.control_protocol.errors import ConfigurationError


def load_tls_context_if_configured(http: HttpSettings) -> ssl.SSLContext | None:
    """Return how the server speaks TLS, if it does. Raises ``ConfigurationError``."""
    if not http.certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(http.certificate, http.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"http.certificate {http.certificate} with http.key {http.key} cannot be used: {error}",
            "name a PEM file with the chain, and one with its key, without a password",
        ) from error
    return context
