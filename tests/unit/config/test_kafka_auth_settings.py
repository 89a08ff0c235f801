"""What ``[kafka.auth]`` takes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import (
    AuthenticationUnfit,
    ConfigurationError,
    KerberosMissing,
)
from headgate.kafka.authentication import AUTH

FILE = """
name = "t"
[source]
topics = ["t"]
[kafka]
"bootstrap.servers" = "{servers}"
{kafka}
[kafka.auth]
{auth}
[catalog.properties]
type = "sql"
uri = "sqlite:////nowhere/x.db"
[table]
identifier = "a.b"
[spark]
writer = "{writer}"
"""
OIDC = 'type = "oidc"\ntoken_url = "https://idp.example/token"\nclient_id = "me"\n'
SECRET = "a-needle-that-nobody-may-see"


@pytest.fixture(autouse=True)
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "secret").write_text(SECRET)
    monkeypatch.setenv("AUTH_SECRET", SECRET)
    return f"${{file:{tmp_path / 'secret'}}}"


def sink(
    auth: str, *, kafka: str = "", servers: str = "broker.example:9092", writer: str = "in-process"
) -> SinkSettings:
    return parse(FILE.format(auth=auth, kafka=kafka, servers=servers, writer=writer))


def test_clients_get_a_description_with_the_reference_and_not_the_secret(secret: str) -> None:
    settings = sink(f'{OIDC}client_secret = "{secret}"\nextensions = {{ pool = "p" }}')
    assert secret in settings.kafka[AUTH]
    assert SECRET not in repr(settings) + settings.kafka[AUTH]
    assert settings.redact(f"it said {SECRET}") == "it said ***"
    assert SECRET not in settings.redaction_for_tasks.secrets, "it travels to executors"


def test_without_the_section_nothing_changes() -> None:
    assert AUTH not in sink('type = "none"').kafka


@pytest.mark.parametrize(
    ("auth", "why"),
    [
        ('type = "oidc"', "token_url is missing"),
        (OIDC, "client_secret is missing"),
        (OIDC + 'path = "/x"', 'path is set, and kafka.auth.type is "oidc"'),
        ('client_id = "me"', 'client_id is set, and kafka.auth.type is "none"'),
        ('type = "token-file"', "path is missing"),
        ('type = "aws-msk-iam"', "region is missing"),
        ('type = "azure"\nclient_secret = "${env:AUTH_SECRET}"', "needs tenant and client_id"),
        (OIDC + 'client_secret = "${env:AUTH_SECRET}"\nassertion_file = "/x"', "both set"),
        (
            OIDC.replace("https", "http") + 'client_secret = "${env:AUTH_SECRET}"',
            "token_url is not https",
        ),
        (
            OIDC.replace("idp", "[TENANT].idp") + 'client_secret = "${env:AUTH_SECRET}"',
            "token_url is no URL",
        ),
        (
            OIDC.replace("idp", "me:pw@idp") + 'client_secret = "${env:AUTH_SECRET}"',
            "more than an address",
        ),
        (
            'type = "token-file"\npath = "/x"\nextensions = { auth = "x" }',
            "extensions cannot have 'auth'",
        ),
        (
            'type = "token-file"\npath = "/x"\nextensions = { id = "${env:AUTH_SECRET}" }',
            "refers to a secret",
        ),
    ],
)
def test_what_does_not_fit_is_named(auth: str, why: str) -> None:
    with pytest.raises(AuthenticationUnfit) as caught:
        sink(auth)
    assert why in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_secret_in_the_file_itself_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka.auth.client_secret must be a reference"):
        sink(f'{OIDC}client_secret = "{SECRET}"')


def test_executors_of_spark_have_no_variable_of_this_process(secret: str) -> None:
    with pytest.raises(AuthenticationUnfit, match="executors"):
        sink(f'{OIDC}client_secret = "${{env:AUTH_SECRET}}"', writer="spark")
    sink(f'{OIDC}client_secret = "{secret}"', writer="spark")


@pytest.mark.parametrize(
    ("kafka", "servers", "why"),
    [
        ('"sasl.mechanism" = "PLAIN"', "b:1", "are both set"),
        ('"security.protocol" = "SASL_PLAINTEXT"', "b:1", "is SASL_PLAINTEXT"),
        ('"security.protocol" = "SASL_PLAINTEXT"', "127.0.0.1:1,b:1", "is SASL_PLAINTEXT"),
        ('"security.protocol" = "SSL"', "127.0.0.1:1", "is SSL"),
        ('"security.protocol" = "SASL_PLAINTEXT"', "127.0.0.1:1,[::1]:2", ""),
    ],
)
def test_a_token_travels_on_no_open_line(kafka: str, servers: str, why: str) -> None:
    auth = 'type = "token-file"\npath = "/x"'
    if not why:
        assert AUTH in sink(auth, kafka=kafka, servers=servers).kafka
        return
    with pytest.raises(AuthenticationUnfit, match=why):
        sink(auth, kafka=kafka, servers=servers)


def test_kerberos_is_refused_by_its_true_reason() -> None:
    with pytest.raises(KerberosMissing, match="has no GSSAPI"):
        sink('type = "kerberos"')


def test_the_regions_name_is_taken_from_the_brokers() -> None:
    servers = "boot.c1.kafka-serverless.us-east-1.amazonaws.com:9098"
    assert AUTH in sink('type = "aws-msk-iam"', servers=servers).kafka


def test_librdkafkas_own_keys_point_to_the_section() -> None:
    with pytest.raises(ConfigurationError, match=r"write \[kafka.auth\]"):
        sink('type = "none"', kafka='"sasl.oauthbearer.method" = "oidc"')
    with pytest.raises(ConfigurationError, match="not a known key"):
        sink('type = "none"', kafka='"headgate.auth" = "x"')


def test_a_secret_inside_of_another_setting_stays_masked_beside_the_description(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAME", "another-needle")
    settings = sink(f'{OIDC}client_secret = "{secret}"', kafka='"client.id" = "a-${env:NAME}"')
    assert settings.redact("it said another-needle") == "it said ***"
