"""What a registry, or who answers in its place, can do: nothing is lost, stuck or shown."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from integration.registry.server import RegistryServer, Subjects, Trouble
from integration.registry.test_asking import (
    COLUMNS,
    FIRST,
    QUICK,
    bad_of,
    framed,
    reader,
    registered,
)
from support.token_kit import SECRET, TokenServer

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    MissingRights,
    SchemaIdReused,
    TokenServerRefused,
    Unreachable,
)
from headgate.data_plane.formats.format_registry import create_record_format
from headgate.data_plane.formats.registry import client as registry_client
from headgate.data_plane.formats.registry import schema_cache
from headgate.data_plane.formats.registry.schemas import SchemaRegistry

VALUE = framed(1, FIRST, {"id": 1, "name": "x"})
GOOD = json.dumps({"schema": json.dumps(FIRST)}).encode()
Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: Answer, context: ssl.SSLContext | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
        server.shutdown()


def answering(status: int, body: bytes, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, b"<html>no page here</html>", "404: no registry answers so"),
        (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}', "is registry.url right"),
        (301, b"", "301: no registry answers so"),
        (200, b"<html>log in</html>", "its answer is not JSON"),
        (200, b"[" * 100_000, "its answer is not JSON"),
        (400, b'{"message": "bad"}', "400 bad: no registry answers so"),
        (502, b"<html>", "502"),
        (503, b'{"name": {"of": "a proxy"}, "message": "no upstream"}', "503 no upstream"),
    ],
)
def test_an_answer_that_no_registry_gives_makes_no_record_bad(
    status: int, body: bytes, words: str
) -> None:
    headers = {"Location": "http://127.0.0.1:9/"} if status == 301 else {}
    with (
        serving(answering(status, body, **headers)) as url,
        pytest.raises(Unreachable, match=words),
    ):
        reader(url).decode([VALUE], COLUMNS)


@pytest.mark.parametrize(
    "body",
    [
        b"x" * (registry_client.SCHEMA_BYTES_MAX + 1),
        json.dumps({"schema": "[" * 100_000}).encode(),
        json.dumps({"schema": 7}).encode(),
        json.dumps({"schema": "{}", "references": [{"name": "x"}]}).encode(),
        b"[]",
        b"null",
    ],
    ids=["huge", "deep", "number", "half a reference", "list", "null"],
)
def test_a_schema_that_nobody_can_use_makes_its_records_bad_and_no_others(body: bytes) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        answering(200, body if handler.path.endswith("/7") else GOOD)(handler)

    values = [VALUE, framed(7, FIRST, {"id": 1, "name": "x"}), VALUE]
    with serving(answer) as url:
        assert list(bad_of(reader(url), values)) == [1]


def test_an_answer_without_an_end_is_cut_off() -> None:
    """A byte now and then, so that no single read takes long."""
    ended = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" ")
                time.sleep(0.02)
        except OSError:
            ended.set()

    with serving(answer) as url, pytest.raises(Unreachable, match="took longer than"):
        reader(url).decode([VALUE], COLUMNS)
    assert ended.wait(10)


def test_a_registry_that_fails_after_a_while_stops_only_what_it_did_not_give(
    troubled: RegistryServer,
) -> None:
    known = registered(troubled.url, "s", FIRST)
    later = registered(troubled.url, "t", {**FIRST, "name": "Later"})
    first, second = (framed(n, FIRST, {"id": 1, "name": "x"}) for n in (known, later))
    assert reader(troubled.url).decode([first], COLUMNS).num_rows == 1
    troubled.trouble.status = 500
    assert reader(troubled.url).decode([first], COLUMNS).num_rows == 1
    with pytest.raises(Unreachable, match=f"schema {later}: 500"):
        reader(troubled.url).decode([first, second], COLUMNS)
    troubled.trouble.status = 0
    assert reader(troubled.url).decode([first, second], COLUMNS).num_rows == 2


@pytest.mark.parametrize(
    ("status", "kind"), [(500, Unreachable), (401, MissingRights), (422, Unreachable)]
)
def test_who_repeats_what_was_sent_gives_nothing_away(
    status: int, kind: type[HeadgateError]
) -> None:
    def echo(handler: BaseHTTPRequestHandler) -> None:
        said = {"error_code": 50001, "message": f"{handler.headers} and again {handler.path}"}
        answering(status, json.dumps(said).encode())(handler)

    needle = "needle-of-the-registry"
    encoded = base64.b64encode(f"me:{needle}".encode()).decode()
    with serving(echo) as url:
        for options in (
            {"registry.basic.auth.user.info": f"me:{needle}"},
            {"registry.bearer.auth.token": needle},
            {"registry.url": url.replace("//", f"//me:{needle}@")},
        ):
            with pytest.raises(kind) as caught:
                reader(url, **options).decode([VALUE], COLUMNS)
            shown = f"{caught.value!r} {caught.value}"
            assert "Host" in shown, "it was quoted"
            assert not [n for n in (needle, encoded, encoded[:-1]) if n in shown]


def test_a_token_of_the_token_server_is_sent_and_renewed(
    troubled: RegistryServer, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    sent: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        sent.append(handler.headers["Authorization"])
        assert handler.headers["target-sr-cluster"] == "lsrc-1"
        answering(200, GOOD)(handler)

    with TokenServer() as tokens, serving(answer) as url:
        described = {
            "type": "oidc",
            "token_url": tokens.url,
            "client_id": "me",
            "client_secret": f"${{file:{tmp_path / 'secret'}}}",
            "section": "format.auth",
        }
        options = {
            "registry.auth": json.dumps(described),
            "registry.bearer.auth.logical.cluster": "lsrc-1",
        }
        assert reader(url, **options).decode([VALUE], COLUMNS).num_rows == 1
        assert sent == [f"Bearer {tokens.given[0]}"]
    with TokenServer() as tokens:
        tokens.mode = "refuse"
        described["token_url"] = tokens.url
        with pytest.raises(TokenServerRefused, match="invalid_client") as caught:
            reader(troubled.url, **{"registry.auth": json.dumps(described)}).decode(
                [VALUE], COLUMNS
            )
        assert "format.auth.client_id" in str(caught.value)
        assert SECRET not in str(caught.value)
    assert troubled.asked == [], "nobody was asked without a token"


# ---------------------------------------------------------------------------------------------- TLS


class Authority:
    """Signs certificates for 127.0.0.1, in files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, folder.name)])
        self.ca = folder / "ca.pem"
        made = self._signed(self._name, self._key.public_key(), ca=True)
        self.ca.write_bytes(made.public_bytes(Encoding.PEM))

    def _signed(self, name: x509.Name, key: Any, *, ca: bool) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        at = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([at]), critical=False)
            # What RFC 5280 asks for; Python 3.13 and later insist on it.
            .add_extension(_usage(ca=ca), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )

    def pair(self, called: str, password: bytes = b"") -> tuple[Path, Path]:
        """Return the files of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, called)])
        certificate, own = self.folder / f"{called}.pem", self.folder / f"{called}.key"
        made = self._signed(name, key.public_key(), ca=False)
        certificate.write_bytes(made.public_bytes(Encoding.PEM))
        locked = BestAvailableEncryption(password) if password else NoEncryption()
        own.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
        return certificate, own


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def asked(url: str, **options: str) -> int:
    return reader(url, **options).decode([VALUE], COLUMNS).num_rows


def test_certificates_of_both_sides_are_checked(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ours.pair("registry"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(ours.ca)
    certificate, key = ours.pair("client", b"opens the key")
    trusting = {"registry.ssl.ca.location": str(ours.ca)}
    known = {
        "registry.ssl.certificate.location": str(certificate),
        "registry.ssl.key.location": str(key),
        "registry.ssl.key.password": "opens the key",
    }
    with serving(answering(200, GOOD), context) as url:
        assert asked(url, **trusting, **known) == 1
        with pytest.raises(Unreachable, match="its certificate is not accepted"):
            asked(url, **known)
        with pytest.raises(Unreachable, match="its certificate is not accepted"):
            asked(url, **known, **{"registry.ssl.ca.location": str(theirs.ca)})
        with pytest.raises(Unreachable, match=r"certificate is not accepted|no connection"):
            asked(url, **trusting)
        with pytest.raises(ConfigurationError, match="cannot be read") as caught:
            asked(url, **trusting, **{**known, "registry.ssl.key.password": "needle"})
        assert "needle" not in str(caught.value)


def test_certificates_may_be_replaced_while_the_sink_runs(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*theirs.pair("registry"))
    with serving(answering(200, GOOD), context) as url:
        options = {"registry.ssl.ca.location": str(ours.ca)}
        with pytest.raises(Unreachable, match="its certificate is not accepted"):
            asked(url, **options)
        ours.ca.write_bytes(theirs.ca.read_bytes())
        assert asked(url, **options) == 1


# ------------------------------------------------------------------------------------------- bounds


def test_caches_are_bounded_and_what_was_dropped_is_asked_for_again(
    troubled: RegistryServer,
) -> None:
    numbers = [registered(troubled.url, f"s{n}", {**FIRST, "name": f"N{n}"}) for n in range(5)]
    values = [framed(number, FIRST, {"id": 1, "name": "x"}) for number in numbers]
    options = {"registry.cache.capacity": "2"}
    assert reader(troubled.url, **options).decode(values, COLUMNS).num_rows == 5
    count = len(troubled.asked)
    kept: Any = SchemaRegistry.shared_for_settings(
        {
            "url": troubled.url,
            "cache.capacity": "2",
            **{name.removeprefix("registry."): value for name, value in QUICK.items()},
        }
    )
    assert len(kept._avro._found) == 2
    reader(troubled.url, **options).decode(values[-2:], COLUMNS)
    assert len(troubled.asked) == count
    reader(troubled.url, **options).decode(values[:1], COLUMNS)
    assert len(troubled.asked) == count + 1


def test_an_id_that_is_given_to_another_schema_stops_the_sink_instead_of_wrong_rows(
    troubled: RegistryServer,
) -> None:
    """Its bytes would be read by the wrong schema: two longs fit whatever they are called."""
    one, two = ({**FIRST, "name": name} for name in ("One", "Two"))
    number = registered(troubled.url, "s", one)
    value = framed(number, one, {"id": 1, "name": "x"})
    options = {"registry.check.interval": "0"}
    assert reader(troubled.url, **options).decode([value], COLUMNS).num_rows == 1
    asked = len(troubled.asked)
    assert reader(troubled.url, **options).decode([value], COLUMNS).num_rows == 1
    assert len(troubled.asked) == asked + 1
    troubled.trouble = Trouble(status=500)
    assert reader(troubled.url, **options).decode([value], COLUMNS).num_rows == 1
    troubled.trouble = Trouble()
    troubled.subjects = Subjects()
    assert reader(troubled.url, **options).decode([value], COLUMNS).num_rows == 1
    assert registered(troubled.url, "s", two) == number
    with pytest.raises(SchemaIdReused, match=f"as the schema {number}"):
        reader(troubled.url, **options).decode([value], COLUMNS)
    with pytest.raises(SchemaIdReused):
        reader(troubled.url, **options).decode([value], COLUMNS)
    assert reader(troubled.url).decode([value], COLUMNS).num_rows == 1, "who never knew another"


def test_an_id_that_is_gone_hides_no_other_that_is_given_anew(
    troubled: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(schema_cache, "time", SimpleNamespace(monotonic=lambda: now_s))
    one, two, three = ({**FIRST, "name": name} for name in ("One", "Two", "Three"))
    gone, reused = (registered(troubled.url, "s", schema) for schema in (one, two))
    row = {"id": 1, "name": "x"}
    values = [framed(gone, one, row), framed(reused, two, row)]
    assert reader(troubled.url).decode(values, COLUMNS).num_rows == 2
    troubled.subjects.ids = {json.dumps({"schema": json.dumps(three)}): reused}
    now_s += 600
    with pytest.raises(SchemaIdReused, match=f"as the schema {reused}"):
        reader(troubled.url).decode(values, COLUMNS)


def test_the_same_schema_in_other_words_is_the_same(troubled: RegistryServer) -> None:
    number = registered(troubled.url, "s", FIRST)
    value = framed(number, FIRST, {"id": 1, "name": "x"})
    options = {"registry.check.interval": "0"}
    assert reader(troubled.url, **options).decode([value], COLUMNS).num_rows == 1
    ((text, known),) = troubled.subjects.ids.items()
    body = json.loads(text)
    turned = dict(reversed(json.loads(body["schema"]).items()))
    body["schema"] = json.dumps(turned, indent=1)
    troubled.subjects.ids = {json.dumps(body): known}
    assert reader(troubled.url, **options).decode([value], COLUMNS).num_rows == 1


def test_the_second_address_is_asked_when_the_first_is_away(troubled: RegistryServer) -> None:
    registered(troubled.url, "s", FIRST)
    with RegistryServer() as gone:
        away = gone.url
    assert asked(f"{away}, {troubled.url}") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"registry.url": "ftp://x"}, "no address"),
        ({"registry.url": "http://x?y=1"}, "more than an address"),
        ({"registry.timeout": "0"}, "above 0"),
        ({"registry.max.retries": "many"}, "max.retries cannot be 'many'"),
        ({"registry.basic.auth.user.info": "me"}, "USER:PASSWORD"),
        ({"registry.ssl.key.location": "/x"}, "needs registry.ssl.certificate.location"),
        ({"registry.ssl.certificate.location": "/nowhere"}, "cannot be read"),
        ({"registry.moon": "1"}, "no option registry.moon"),
        ({"framing": "glue"}, "framing cannot be 'glue'"),
        (
            {"registry.basic.auth.user.info": "a:b", "registry.bearer.auth.token": "t"},
            "are both set",
        ),
        (
            {"registry.auth": '{"type": "token-file", "path": "/x"}', "registry.url": "http://x.y"},
            "open line",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        create_record_format("avro-registry", {"registry.url": "http://x", **options})
    assert isinstance(caught.value, HeadgateError)
