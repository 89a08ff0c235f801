"""Tokens for a signature: RFC 7523, Google's key files, and AWS's roles."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from moto.server import ThreadedMotoServer
from support.token_kit import TokenServer

from headgate.control_protocol.errors import (
    AuthenticationUnfit,
    HeadgateError,
    TokenAway,
    TokenServerRefused,
    TokenUnfit,
)
from headgate.kafka.token_providers import Token, build_msk_token, provider_of, unverified_claims_of

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()
ROLE = "arn:aws:iam::123456789012:role/sink"


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer() as server:
        yield server


def pem(key: Any) -> str:
    form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    text: str = key.private_bytes(*form).decode()
    return text


def fetched(settings: Mapping[str, Any]) -> Token:
    return provider_of(settings, "127.0.0.1:9")[0]()


def header_of(text: str) -> dict[str, Any]:
    part = text.split(".", maxsplit=1)[0]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def verify(key: Any, text: str) -> None:
    """Raises if the key did not sign it."""
    signed, _, signature = text.rpartition(".")
    octets = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
    public = key.public_key()
    if key is RSA:
        public.verify(octets, signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    elif key is EC:
        pair = (int.from_bytes(octets[:32], "big"), int.from_bytes(octets[32:], "big"))
        public.verify(encode_dss_signature(*pair), signed.encode(), ec.ECDSA(hashes.SHA256()))
    else:
        public.verify(octets, signed.encode())


@pytest.mark.parametrize(("key", "name"), [(RSA, "RS256"), (EC, "ES256"), (EDWARDS, "EdDSA")])
def test_a_private_key_signs_an_assertion_for_each_token(
    server: TokenServer, tmp_path: Path, key: Any, name: str
) -> None:
    (tmp_path / "key").write_text(pem(key))
    settings = {
        "type": "oidc",
        "token_url": server.url,
        "client_id": "me",
        "key_id": "k7",
        "private_key": f"${{file:{tmp_path / 'key'}}}",
    }
    for _ in range(2):
        fetched(settings)
    first, second = (form["client_assertion"] for _, form, _ in server.asked)
    form = server.asked[0][1]
    assert form["client_assertion_type"].endswith(":client-assertion-type:jwt-bearer")
    assert form["client_id"] == "me"
    verify(key, first)
    assert header_of(first) == {"alg": name, "typ": "JWT", "kid": "k7"}
    claims = unverified_claims_of(first)
    assert (claims["iss"], claims["sub"], claims["aud"]) == ("me", "me", server.url)
    assert claims["exp"] - claims["iat"] == 60
    assert claims["jti"] != unverified_claims_of(second)["jti"]


def test_what_is_no_key_is_named_and_not_shown(server: TokenServer, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("-----BEGIN PRIVATE KEY-----\nneedle\n-----END PRIVATE KEY-----")
    settings = {
        "type": "oidc",
        "token_url": server.url,
        "client_id": "me",
        "private_key": f"${{file:{tmp_path / 'key'}}}",
        "section": "format.auth",
    }
    with pytest.raises(AuthenticationUnfit, match=r"format\.auth\.private_key holds no") as caught:
        fetched(settings)
    assert "needle" not in str(caught.value)
    assert server.asked == []


def key_file(folder: Path, url: str, **more: str) -> Path:
    path = folder / "key.json"
    held = {
        "type": "service_account",
        "client_email": "sink@project.iam.example",
        "private_key": pem(RSA),
        "private_key_id": "g1",
        "token_uri": url,
    }
    path.write_text(json.dumps({**held, **more}))
    return path


@pytest.mark.parametrize("way", ["setting", "environment"])
def test_googles_key_file_gives_a_token_of_its_account(
    server: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    path = str(key_file(tmp_path, server.url))
    settings = {"type": "google", "key_file": path}
    if way == "environment":
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", path)
        settings = {"type": "google"}
    token = fetched(settings)
    ((_, form, _),) = server.asked
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    verify(RSA, form["assertion"])
    claims = unverified_claims_of(form["assertion"])
    assert (claims["iss"], claims["aud"]) == ("sink@project.iam.example", server.url)
    assert "cloud-platform" in claims["scope"]
    assert header_of(form["assertion"])["kid"] == "g1"
    assert token.principal == "sink@project.iam.example"
    assert header_of(token.text)["alg"] == "GOOG_OAUTH2_TOKEN"


@pytest.mark.parametrize(
    ("more", "kind", "words"),
    [
        ({"type": "authorized_user"}, TokenUnfit, "no key of a service account"),
        ({"token_uri": "http://elsewhere.example/token"}, TokenUnfit, "not https"),
        ({"private_key": "needle"}, AuthenticationUnfit, "no private key"),
    ],
)
def test_a_key_file_that_does_not_fit_is_named(
    server: TokenServer, tmp_path: Path, more: dict[str, str], kind: type[HeadgateError], words: str
) -> None:
    path = key_file(tmp_path, server.url, **more)
    with pytest.raises(kind, match=words) as caught:
        fetched({"type": "google", "key_file": str(path)})
    assert "needle" not in str(caught.value)
    path.write_text("[")
    with pytest.raises(TokenUnfit, match="no key of a service account"):
        fetched({"type": "google", "key_file": str(path)})


def test_a_role_is_assumed_before_the_token_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "own-key")
    service = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    service.start()
    try:
        host, port = service.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://{host}:{port}")
        token = build_msk_token("eu-central-1", ROLE)
    finally:
        service.stop()
    url = base64.urlsafe_b64decode(token.text + "=" * (-len(token.text) % 4)).decode()
    assert "X-Amz-Security-Token=" in url
    assert "own-key" not in url


class _Denies(BaseHTTPRequestHandler):
    code = "AccessDenied"

    def do_POST(self) -> None:
        text = f"<ErrorResponse><Error><Code>{self.code}</Code><Message>no</Message></Error>"
        body = f"{text}</ErrorResponse>".encode()
        self.send_response(403 if self.code == "AccessDenied" else 503)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("code", "kind"), [("AccessDenied", TokenServerRefused), ("ServiceUnavailable", TokenAway)]
)
def test_a_role_that_may_not_be_assumed_is_told_from_a_service_that_is_away(
    monkeypatch: pytest.MonkeyPatch, code: str, kind: type[HeadgateError]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "own-key")
    monkeypatch.setattr(_Denies, "code", code)
    with HTTPServer(("127.0.0.1", 0), _Denies) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{service.server_port}")
        with pytest.raises(kind, match=code):
            build_msk_token("eu-central-1", ROLE)
        service.shutdown()
