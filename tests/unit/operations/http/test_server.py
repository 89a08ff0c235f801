"""Probes, pages and rights, asked by a real HTTP client."""

from __future__ import annotations

import base64
import json
import logging
import re
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.operations.http.conftest import (
    ERROR,
    GUARDED,
    NOW,
    OPERATOR,
    VIEWER,
    Client,
    Serve,
    report,
)

from headgate.config.setting_types import Secret
from headgate.config.telemetry_and_http_settings import HttpSettings
from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.operations.http import operator_actions
from headgate.operations.http.routes import Site
from headgate.operations.http.server import BODY_BYTES_MAX, serving_http

NASTY = "<script>alert(1)</script>\"'><img src=x onerror=y>\u202e\x1b[2J"


def test_probes_need_no_token_and_say_why(serve: Serve) -> None:
    with serve(report(), not_ready=lambda: "failing: HG-403 no space") as client:
        assert (client.get("/livez").status, client.get("/livez").body) == (200, "ok\n")
        ready = client.get("/readyz")
        assert (ready.status, ready.body) == (503, "failing: HG-403 no space\n")


@pytest.mark.parametrize("path", ["/", "/sinks/trips", "/metrics", "/api/v1/sinks", "/nothing"])
def test_without_a_token_nothing_is_told(serve: Serve, path: str) -> None:
    with serve(report(), metrics=lambda: (b"x 1\n", "text/plain")) as client:
        for token in ("", "wrong", VIEWER[:-1], VIEWER + "x"):
            got = client.get(path, token)
            assert (got.status, "trips" in got.body) == (401, False)
        assert client.get(path, VIEWER).status == (404 if path == "/nothing" else 200)


def test_a_browser_logs_in_with_the_token_as_its_password(serve: Serve) -> None:
    with serve(report()) as client:
        assert client.get("/").headers["WWW-Authenticate"].startswith("Basic ")
        login = base64.b64encode(f"me:{OPERATOR}".encode()).decode()
        assert client.get("/", Authorization=f"Basic {login}").status == 200
        # but acts with no such login, which a browser would add to what another site makes it send
        path = "/api/v1/sinks/trips/pause?dry_run=true"
        assert client.ask("PUT", path, Authorization=f"Basic {login}").status == 403
        for broken in (
            "Basic %%%",
            "Basic",
            "Negotiate abc",
            "Basic " + base64.b64encode(b"\xff").decode(),
            "Basic \u00e9",
        ):
            assert client.get("/", Authorization=broken).status == 401


@pytest.mark.parametrize("was_paused", [True, False])
@pytest.mark.parametrize("move", ["pause", "resume"])
def test_a_pause_or_its_end_says_whether_it_changes_anything(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, move: str, *, was_paused: bool
) -> None:
    now: Any = SimpleNamespace(paused=move == "pause", offsets={})
    monkeypatch.setattr(operator_actions, "is_paused", lambda _: was_paused)
    monkeypatch.setattr(operator_actions, f"{move}_sink", lambda _: now)
    with serve(report()) as client:
        got = client.ask("PUT", f"/api/v1/sinks/trips/{move}", OPERATOR)
    changes = was_paused is not now.paused
    assert (got.status, json.loads(got.body)["changes"]) == (200, changes), got.body


def test_only_an_operator_acts(serve: Serve) -> None:
    with serve(report()) as client:
        got = client.ask("PUT", "/api/v1/sinks/trips/pause", VIEWER)
        assert (got.status, json.loads(got.body)["error"]) == (403, "only an operator may do that")
    nobody = HttpSettings(viewer_token=Secret(VIEWER))
    with serve(report(), http_settings=nobody) as client:
        got = client.ask("PUT", "/api/v1/sinks/trips/pause", VIEWER)
        assert (got.status, json.loads(got.body)["hint"]) == (
            403,
            "set http.operator_token in the sink file",
        )


def test_without_tokens_a_foreign_name_is_not_answered(serve: Serve) -> None:
    with serve(report(), http_settings=HttpSettings()) as client:
        assert client.get("/").status == 200
        assert client.get("/", Host="evil.example:80").status == 421
        assert client.get("/", Host="localhost:80").status == 200
        assert client.get("/", Host="[::1]:80").status == 200


def test_the_status_as_json_is_that_of_the_command(serve: Serve) -> None:
    with serve(report()) as client:
        assert json.loads(client.get("/api/v1/sinks", VIEWER).body) == ["trips"]
        got = json.loads(client.get("/api/v1/sinks/trips", VIEWER).body)
        assert got == json.loads(json.dumps(report().as_json()))
        offsets = json.loads(client.get("/api/v1/sinks/trips/offsets", VIEWER).body)
        assert [p["lag"] for p in offsets] == [0, 7, 14, 21, 28, 35]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 405),
        ("DELETE", "/api/v1/sinks", 405),
        ("POST", "/api/v1/sinks/trips/pause", 405),
        ("PUT", "/api/v1/sinks/trips", 405),
        ("PUT", "/api/v1/sinks/other/pause", 404),
        ("PUT", "/api/v1/sinks/trips/explode", 404),
        ("GET", "/sinks/other", 404),
        ("GET", "/sinks/../../etc/passwd", 404),
        ("PUT", "/metrics", 405),
    ],
)
def test_what_cannot_be_asked_is_refused(serve: Serve, method: str, path: str, status: int) -> None:
    with serve(report()) as client:
        assert client.ask(method, path, OPERATOR).status == status


@pytest.mark.parametrize(
    "body", ["{", "[1]", '"x"', '{"unknown": 1}', '{"offsets": {}}', '{"offsets":' + "[" * 60_000]
)
def test_a_body_that_cannot_be_meant_is_refused(serve: Serve, body: str) -> None:
    with serve(report()) as client:
        got = client.ask("PATCH", "/api/v1/sinks/trips/offsets?dry_run=true", OPERATOR, body)
        assert got.status == 400
        assert json.loads(got.body)["error"]


def test_an_error_of_an_action_holds_no_secret(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> dict[str, Any]:
        raise Unreachable(f"no session for {VIEWER}", f"renew {VIEWER}")

    monkeypatch.setitem(operator_actions.MOVES, ("PUT", "pause"), refuse)
    with serve(report()) as client:
        got = client.ask("PUT", "/api/v1/sinks/trips/pause?dry_run=true", OPERATOR)
        told = json.loads(got.body)
        assert (got.status, told["error"], told["hint"]) == (503, "no session for ***", "renew ***")


@pytest.mark.parametrize("query", ["dry_run=yes", "dry_run=tru", "dry_run=False%20"])
def test_who_may_have_meant_a_rehearsal_gets_nothing_else(serve: Serve, query: str) -> None:
    with serve(report()) as client:
        got = client.ask("PUT", f"/api/v1/sinks/trips/stop?{query}", OPERATOR)
        assert got.status == 400
        assert "dry_run cannot be" in json.loads(got.body)["error"]


def test_hostile_texts_are_shown_as_text(serve: Serve) -> None:
    hostile = report(
        last_error=ERROR.__class__("HG-403", NASTY, NASTY, NOW),
        notes=(NASTY,),
        table=NASTY,
        coordinator=NASTY,
        participants=tuple(
            p.__class__(NASTY, "i", NASTY, ("trips/1",), 1, 1) for p in report().participants
        ),
        partitions=tuple(p.__class__(NASTY, p.partition, 1, 0, 9, 8) for p in report().partitions),
    )
    with serve(hostile) as client:
        page = client.get("/", VIEWER)
    assert page.status == 200
    assert not re.search(r"<(script|img|iframe|form|object|embed)", page.body, re.IGNORECASE)
    assert not re.search(r"<[^>]*\son\w+=", page.body)
    assert "&lt;script&gt;" in page.body
    assert "\u202e" not in page.body
    assert "\x1b" not in page.body


def test_the_policy_lets_nothing_in_but_the_one_style_sheet(serve: Serve) -> None:
    with serve(report()) as client:
        page = client.get("/", VIEWER)
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "script-src" not in policy
    assert " style=" not in page.body
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "no-store"
    assert "Server" not in page.headers or "Python" not in page.headers["Server"]


def test_several_sinks_and_one_that_cannot_be_asked(serve: Serve) -> None:
    away = Unreachable("no broker answers <b>")
    with serve(report("zones", condition="failing", last_error=ERROR), away) as client:
        page = client.get("/", VIEWER).body
        assert "No space left on device" in page
        assert "no broker answers &lt;b&gt;" in page
        assert client.get("/sinks/trips", VIEWER).status == 503
        got = client.get("/api/v1/sinks/trips", VIEWER)
        assert (got.status, json.loads(got.body)["code"]) == (503, "HG-401")


def test_a_page_of_a_sink_that_never_started(serve: Serve) -> None:
    new = report(
        condition="never started",
        epoch=0,
        transaction=None,
        coordinator=None,
        open_transaction=None,
        last_commit_ms=None,
        valid_through_ms=None,
        partitions=(),
        transactions=(),
        participants=(),
        lag_seconds={},
    )
    with serve(new) as client:
        page = client.get("/", VIEWER)
    assert page.status == 200
    assert page.body.count("nothing yet") == 6


def test_too_much_is_refused_before_it_is_read(serve: Serve) -> None:
    with serve(report()) as client:
        path = "/api/v1/sinks/trips/offsets"
        huge = {"Content-Length": str(BODY_BYTES_MAX + 1)}
        assert client.ask("PATCH", path, OPERATOR, **huge).status == 413
        assert client.ask("PATCH", path, OPERATOR, **{"Content-Length": "-1"}).status == 400
        assert client.ask("PATCH", path, OPERATOR, **{"Transfer-Encoding": "chunked"}).status == 411
        assert client.get("/" + "x" * 9_000, VIEWER).status == 414
        assert client.get("/" + "x" * 70_000, VIEWER).status in (400, 414)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"\r\n",
        b"GET //[x HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    ],
)
def test_what_is_no_http_harms_nobody(
    serve: Serve, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(report()) as client:
        host, port = client.url.rpartition("//")[2].split(":")
        with socket.create_connection((host, int(port)), 30) as raw:
            raw.sendall(sent)
            raw.shutdown(socket.SHUT_WR)
            said = b"".join(iter(lambda: raw.recv(65536), b""))
        assert sent.strip() not in said or not sent.strip()
        assert client.get("/livez").status == 200
    assert [line for line in caplog.records if line.levelno > logging.DEBUG] == []


def test_head_has_no_body(serve: Serve) -> None:
    with serve(report()) as client:
        got = client.ask("HEAD", "/", VIEWER)
        assert (got.status, got.body) == (200, "")
        assert int(got.headers["Content-Length"]) > 1_000


# ------------------------------------------------------------------------------------- listening


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.1.2.3:8080", "example.org:80"])
def test_nothing_listens_beyond_loopback_without_tls_and_tokens(listen: str) -> None:
    for http in (HttpSettings(), GUARDED, HttpSettings(certificate="c", key="k")):
        with pytest.raises(ConfigurationError, match="can be reached from other machines"):
            serving_http(listen, http, Site({}, http)).__enter__()


@pytest.mark.parametrize(
    "listen", ["8080", ":8080", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x"]
)
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.listen cannot be"):
        serving_http(listen, HttpSettings(), Site({}, HttpSettings())).__enter__()


def test_a_port_that_is_taken_is_named(serve: Serve) -> None:
    with serve(report()) as client:
        taken = client.url.rpartition("//")[2]
        with pytest.raises(ConfigurationError, match=f"nothing can listen on {taken}"):
            serving_http(taken, HttpSettings(), Site({}, HttpSettings())).__enter__()


def test_over_tls(serve: Serve, tmp_path: Path) -> None:
    certificate, key = certified(tmp_path)
    http = HttpSettings(
        certificate=str(certificate),
        key=str(key),
        viewer_token=Secret(VIEWER),
        operator_token=Secret(OPERATOR),
    )
    with serve(report(), http_settings=http) as plain:
        assert plain.url.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=str(certificate))
        assert Client(plain.url, trust).get("/", VIEWER).status == 200
        with pytest.raises(OSError):
            plain.get("/", VIEWER)
        assert Client(plain.url, trust).get("/livez").status == 200
    with pytest.raises(ConfigurationError, match="cannot be used"):
        broken = HttpSettings(certificate=str(key), key=str(key))
        serving_http("127.0.0.1:0", broken, Site({}, broken)).__enter__()


def certified(home: Path) -> tuple[Path, Path]:
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "headgate")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = home / "certificate.pem", home / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return paths
