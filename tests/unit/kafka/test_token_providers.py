"""Where tokens come from, and who keeps them: against a token server of this process."""

from __future__ import annotations

import base64
import datetime as dt
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import botocore.auth
import pytest
from support.token_kit import SECRET, TokenServer

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    TokenAway,
    TokenServerRefused,
    TokenUnfit,
)
from headgate.control_protocol.secret_references import WITHHELD
from headgate.kafka.authentication import AUTH, to_librdkafka_settings
from headgate.kafka.librdkafka_binding import BatchConsumer, builtin_features
from headgate.kafka.token_keeper import TokenKeeper, keeper_of
from headgate.kafka.token_providers import (
    Token,
    aws_region_of,
    build_msk_token,
    is_loopback_host,
    provider_of,
    unverified_claims_of,
)

HUBS = "ns.servicebus.windows.net:9093"


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer() as server:
        yield server


@pytest.fixture
def secret(tmp_path: Path) -> str:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    return f"${{file:{tmp_path / 'secret'}}}"


def fetched(settings: Mapping[str, Any], servers: str = "127.0.0.1:9") -> Token:
    return provider_of(settings, servers)[0]()


def oidc(server: TokenServer, secret: str, **more: Any) -> dict[str, Any]:
    settings = {"type": "oidc", "token_url": server.url, "client_id": "a b", **more}
    return settings if "assertion_file" in more else {**settings, "client_secret": secret}


def test_client_and_secret_are_encoded_as_in_a_form_before_they_are_joined(
    server: TokenServer, secret: str
) -> None:
    token = fetched(oidc(server, secret, scope="kafka", audience="k", extensions={"id": "x"}))
    ((path, form, headers),) = server.asked
    assert path == "/token"
    assert form == {"grant_type": "client_credentials", "scope": "kafka", "audience": "k"}
    sent = base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode()
    assert sent == "a+b:s3cret-needle-of-the-token-server%2F%2B%3D"
    assert (token.principal, token.extensions) == ("headgate", {"id": "x"})
    assert unverified_claims_of(token.text)["aud"] == "kafka"
    assert token.text not in repr(token)


def test_an_assertion_is_read_again_for_each_token(server: TokenServer, tmp_path: Path) -> None:
    fetch, _ = provider_of(oidc(server, "", assertion_file=str(tmp_path / "jwt")), "")
    for text in ("first", "second"):
        (tmp_path / "jwt").write_text(text)
        fetch()
    assert [form["client_assertion"] for _, form, _ in server.asked] == ["first", "second"]


def test_a_netrc_file_does_not_replace_the_secret(
    server: TokenServer, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login other password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    fetched(oidc(server, secret))
    sent = base64.b64decode(server.asked[0][2]["Authorization"].removeprefix("Basic "))
    assert b"other" not in sent


def test_a_token_lives_as_long_as_its_claims_and_the_answer_say(
    server: TokenServer, secret: str
) -> None:
    now = time.time()
    server.more = {"expires_in": 20}
    assert now + 15 < fetched(oidc(server, secret)).expires_at_s < now + 40
    server.more = {"expires_in": 7200}
    assert fetched(oidc(server, secret)).expires_at_s < now + 120
    server.more = {"access_token": "opaque", "expires_in": "soon"}
    with pytest.raises(TokenUnfit, match="how long"):
        fetched(oidc(server, secret))


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("refuse", TokenServerRefused, "invalid_client"),
        ("fail", TokenAway, "HTTP 500"),
        ("noise", TokenUnfit, "too long"),
    ],
)
def test_what_a_server_answers_instead_is_named_without_the_secret(
    server: TokenServer, secret: str, mode: str, kind: type[HeadgateError], words: str
) -> None:
    server.mode = mode
    with pytest.raises(kind, match=words) as caught:
        fetched(oidc(server, secret))
    encoded = base64.b64encode(b"a+b:s3cret").decode()[:10]
    assert not [n for n in (SECRET, "s3cret", encoded) if n in str(caught.value)]


def test_nobody_there_is_away(server: TokenServer, secret: str) -> None:
    settings = {**oidc(server, secret), "token_url": "http://127.0.0.1:9/token"}
    with pytest.raises(TokenAway, match="no connection"):
        fetched(settings)
    with pytest.raises(TokenAway, match="No such file"):
        fetched(oidc(server, "${file:/nowhere/secret}"))
    with pytest.raises(TokenAway, match="NOT_SET_HERE is not set"):
        fetched(oidc(server, "${env:NOT_SET_HERE}"))


def test_the_secret_is_whatever_a_reference_of_the_sink_file_stands_for(
    server: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "secret"
    binary.write_bytes(b"\xff\x00")
    fetched(oidc(server, f"${{base64:{binary}}}"))
    sent = base64.b64decode(server.asked[-1][2]["Authorization"].removeprefix("Basic "))
    assert sent.decode().endswith(":%2FwA%3D")
    # Missing for a moment, while a JVM starts that must not inherit it.
    monkeypatch.setitem(WITHHELD, "A_SECRET_OF_OURS", "s3cret")
    fetched(oidc(server, "${env:A_SECRET_OF_OURS}"))
    sent = base64.b64decode(server.asked[-1][2]["Authorization"].removeprefix("Basic "))
    assert sent.endswith(b":s3cret")


def test_a_file_with_a_token_is_read_again(server: TokenServer, tmp_path: Path) -> None:
    path = tmp_path / "token"
    fetch, where = provider_of({"type": "token-file", "path": str(path)}, "")
    assert str(path) in where
    with pytest.raises(TokenAway):
        fetch()
    path.write_text("opaque\n")
    with pytest.raises(TokenUnfit, match="exp"):
        fetch()
    path.write_text(server.token(sub="pod") + "\n")
    assert fetch().principal == "pod"


def test_msk_takes_what_awss_own_signer_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By aws-msk-iam-sasl-signer-python 1.0.2, with these keys at this time."""
    noon = dt.datetime(2026, 11, 28, 12)  # noqa: DTZ001 - as botocore has it
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda **_: noon)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "tok/en+with=signs")
    token = build_msk_token("eu-central-1")
    url = base64.urlsafe_b64decode(token.text + "=" * (-len(token.text) % 4)).decode()
    assert url == (
        "https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect"
        "&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20261128%2F"
        "eu-central-1%2Fkafka-cluster%2Faws4_request&X-Amz-Date=20261128T120000Z"
        "&X-Amz-Expires=900&X-Amz-SignedHeaders=host&X-Amz-Security-Token=tok%2Fen%2Bwith%3Dsigns"
        "&X-Amz-Signature=730ac33d00add36d3814c998a27ba00ef8a024e16ee779b15d24fc671884fa4d"
        "&User-Agent=headgate"
    )
    assert token.expires_at_s == 1795868100


def test_without_keys_of_aws_the_chain_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(TokenServerRefused, match="finds no credentials"):
        build_msk_token("eu-central-1")


def test_a_library_that_is_not_installed_stops_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.auth", None)
    keeper = TokenKeeper(*provider_of({"type": "aws-msk-iam", "region": "eu-central-1"}, ""))
    with pytest.raises(ConfigurationError, match=r"aws-msk-iam needs .* botocore") as refused:
        keeper.require_token()
    assert refused.value.exit_code == 2
    assert "headgate[s3]" in refused.value.hint


def test_the_region_is_in_the_brokers_name() -> None:
    assert aws_region_of("b-1.x.abc.c2.kafka.eu-west-1.amazonaws.com:9098,b-2") == "eu-west-1"
    assert aws_region_of("boot-x.c1.kafka-serverless.us-east-1.amazonaws.com:9098") == "us-east-1"
    assert aws_region_of("kafka.example:9098") == ""


@pytest.mark.parametrize(
    ("host", "stays"),
    [
        ("localhost", True),
        ("LocalHost", True),
        ("127.0.0.2", True),
        ("[::1]", True),
        ("", False),
        (None, False),
        ("0.0.0.0", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
    ],
)
def test_only_what_stays_on_this_machine_is_loopback(host: str | None, stays: bool) -> None:
    assert is_loopback_host(host) == stays


def test_azure_asks_the_machine_for_a_token_of_the_namespace(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", server.base)
    server.more = {"expires_on": str(int(time.time()) + 30)}
    token = fetched({"type": "azure", "client_id": "id"}, HUBS)
    ((_, form, headers),) = server.asked
    assert form["resource"] == "https://ns.servicebus.windows.net"
    assert (form["client_id"], headers["Metadata"]) == ("id", "true")
    assert token.expires_at_s < time.time() + 31


@pytest.mark.parametrize("way", ["secret", "federated"])
def test_azure_asks_entra_with_a_secret_or_the_pods_token(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, secret: str, way: str
) -> None:
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", server.base)
    (tmp_path / "federated").write_text("of-the-pod")
    settings = {"type": "azure", "tenant": "t", "client_id": "id"}
    if way == "secret":
        settings["client_secret"] = secret
    else:
        monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "federated"))
    fetched(settings, HUBS)
    ((path, form, headers),) = server.asked
    assert path == "/t/oauth2/v2.0/token"
    assert form["scope"] == "https://ns.servicebus.windows.net/.default"
    sent = form.get("client_secret") or form.get("client_assertion")
    assert sent == (SECRET if way == "secret" else "of-the-pod")
    assert "Authorization" not in headers


def test_googles_token_is_wrapped(server: TokenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", server.base.removeprefix("http://"))
    token = fetched({"type": "google"})
    head, claims, inner = (
        base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.text.split(".")
    )
    assert json.loads(head) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    held = json.loads(claims)
    assert (held["iss"], held["scope"]) == ("Google", "kafka")
    assert held["sub"] == token.principal == "sink@project.iam.example"
    assert inner.decode() == server.given[0]
    assert server.asked[0][2]["Metadata-Flavor"] == "Google"


# ----------------------------------------------------------------------------------------- keeping


class Source:
    """Gives what it is told to, and lets a test wait until it was asked."""

    def __init__(self, life_s: float) -> None:
        self.life_s = life_s
        self.error: HeadgateError | Exception | None = None
        self.asked = threading.Semaphore(0)
        self.asked_s: list[float] = []
        self.number = 0

    def __call__(self) -> Token:
        self.asked_s.append(time.monotonic())
        self.asked.release()
        if self.error is not None:
            raise self.error
        self.number += 1
        return Token(f"token-{self.number}", time.time() + self.life_s)


def eventually(check: Callable[[], object]) -> None:
    end_s = time.monotonic() + 30
    while not check():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def wait_until_asked(source: Source, times: int) -> None:
    for _ in range(times):
        assert source.asked.acquire(timeout=30)


def test_it_is_renewed_before_its_end_and_told_with_half_of_its_life() -> None:
    source = Source(1.0)
    keeper = TokenKeeper(source, "the server")
    first = keeper.require_token()
    told = keeper.current_token_expiring_early()
    assert told.text == first.text
    assert told.expires_at_s <= time.time() + 0.5
    wait_until_asked(source, 4)
    assert int(keeper.current_token().text.removeprefix("token-")) >= 3
    assert keeper.renewal_trouble == ""


def test_one_that_is_valid_is_given_while_the_server_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source(0.4)
    keeper = TokenKeeper(source, "the server")
    keeper.require_token()
    source.error = TokenAway("HTTP 500")
    eventually(lambda: keeper.renewal_trouble and keeper.expires_at_s < time.time())
    with pytest.raises(TokenAway, match=r"the server gives no token since .* UTC: HTTP 500"):
        keeper.current_token()
    warned = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == 1, "the first failure only"
    assert "the current one is valid for" in warned[0].getMessage()
    source.error, source.life_s = None, 60
    eventually(lambda: not keeper.renewal_trouble)
    keeper.require_token()


class SetClock:
    """The time of day, as somebody sets it; a machine that was suspended finds it set forward."""

    def __init__(self) -> None:
        self.forward_s = 0.0

    def time(self) -> float:
        return time.time() + self.forward_s

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.mark.parametrize("life_s", [3_600.0, 2e11], ids=["an hour", "for ever"])
def test_one_that_ends_while_the_machine_is_suspended_is_renewed_without_haste(
    monkeypatch: pytest.MonkeyPatch, life_s: float
) -> None:
    clock, source = SetClock(), Source(life_s)
    monkeypatch.setattr("headgate.kafka.token_keeper.time", clock)
    keeper = TokenKeeper(source, "the server")
    keeper.require_token()
    wait_until_asked(source, 1)
    source.error = TokenAway("HTTP 500")
    clock.forward_s = life_s
    wait_until_asked(source, 2)
    assert source.asked_s[2] - source.asked_s[1] > 0.5, "asked once per second"
    source.error, source.life_s = None, 2 * life_s
    eventually(lambda: keeper.expires_at_s > clock.time())
    assert keeper.require_token().text == "token-2"


def test_who_never_had_a_token_learns_why_at_once() -> None:
    source = Source(1.0)
    source.error = TokenServerRefused("HTTP 401", "check it")
    keeper = TokenKeeper(source, "the server")
    with pytest.raises(TokenServerRefused):
        keeper.require_token()
    source.error = None
    eventually(lambda: not keeper.renewal_trouble)
    source.error = TokenServerRefused("HTTP 401", "check it")
    eventually(lambda: keeper.expires_at_s < time.time())
    with pytest.raises(TokenAway, match="HTTP 401"):  # an outage: it had one, and may get one again
        keeper.require_token()


def test_one_that_has_expired_on_arrival_names_both_clocks() -> None:
    keeper = TokenKeeper(Source(-5), "the server")
    with pytest.raises(TokenUnfit, match=r"had expired at .* this machine's clock says"):
        keeper.require_token()


def test_an_unknown_failure_is_told_without_its_text() -> None:
    source = Source(1)
    source.error = RuntimeError(SECRET)
    keeper = TokenKeeper(source, "the server")
    with pytest.raises(TokenAway, match="RuntimeError") as caught:
        keeper.require_token()
    assert SECRET not in str(caught.value)


def test_a_process_has_one_keeper_per_provider_and_a_child_its_own() -> None:
    description = json.dumps({"type": "token-file", "path": "/nowhere"})
    keeper = keeper_of(description, "a:1")
    assert keeper_of(description, "b:1") is keeper, "these tokens are of no one cluster"
    hubs = json.dumps({"type": "azure"})
    assert keeper_of(hubs, "a:1") is not keeper_of(hubs, "b:1")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if keeper_of(description, "a:1") is not keeper else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_librdkafka_never_sees_the_description_nor_lets_a_shell_run() -> None:
    given = {"bootstrap.servers": "a:1", AUTH: json.dumps({"type": "kerberos"})}
    found = to_librdkafka_settings(given)
    assert AUTH not in found
    assert found["security.protocol"] == "SASL_SSL"
    assert found["sasl.kerberos.kinit.cmd"] == ":"
    assert found["sasl.kerberos.min.time.before.relogin"] == "0"
    assert to_librdkafka_settings({"a": "b"}) == {"a": "b"}


def test_this_client_can_use_tokens() -> None:
    assert {"ssl", "sasl_oauthbearer"} <= {*builtin_features()}


@pytest.mark.parametrize("fails", [False, True])
def test_the_batch_consumer_asks_in_a_thread_of_its_own(*, fails: bool) -> None:
    asked = threading.Event()

    def token() -> Token:
        asked.set()
        if fails:
            raise TokenAway("away")
        return Token("a.b.c", time.time() + 60, "me", {"pool": "p"})

    settings = {
        "bootstrap.servers": "127.0.0.1:9",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        "group.id": "g",
        "log_level": "0",
    }
    consumer = BatchConsumer(settings, token)
    assert asked.wait(30), "nobody polls it"
    consumer.close()
