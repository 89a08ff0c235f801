"""What ``[format.auth]`` takes, and what it refuses."""

from __future__ import annotations

import pytest

from headgate.config.load import parse
from headgate.config.registry_auth_settings import REGISTRY_AUTH
from headgate.control_protocol.errors import AuthenticationUnfit

FILE = """
name = "t"
[source]
topics = ["t"]
[kafka]
"bootstrap.servers" = "broker:9092"
[format]
type = "{format}"

[format.options]
{options}
[format.auth]
type = "token-file"
path = "/run/secrets/token"
[catalog.properties]
type = "sql"
uri = "sqlite:////nowhere/x.db"
[table]
identifier = "a.b"
[spark]
writer = "in-process"
"""
REGISTRY = '"registry.url" = "https://registry.example"'


def test_tokens_go_to_registries_that_take_them() -> None:
    settings = parse(FILE.format(format="json-registry", options=REGISTRY))
    assert "token-file" in settings.format.options[REGISTRY_AUTH]


@pytest.mark.parametrize(
    ("format_name", "options"), [("json", ""), ("glue-registry", '"glue.region" = "us-east-1"')]
)
def test_tokens_that_nobody_would_be_asked_with_are_refused(format_name: str, options: str) -> None:
    with pytest.raises(AuthenticationUnfit, match=r"no format asks a registry.*credentials of AWS"):
        parse(FILE.format(format=format_name, options=options))
