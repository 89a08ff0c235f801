"""A token endpoint that a test may break, and a Kafka that checks the tokens it signs."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars, find_free_port

SECRET = "s3cret-needle-of-the-token-server/+="


def b64(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


class TokenServer:
    """Signs tokens for who brings ``SECRET``. ``mode``: ok, hang, refuse, fail, or noise.

    ``asked`` has each request's form and headers; ``given`` every token.
    """

    def __init__(self, life_s: float = 60.0, subject: str = "headgate") -> None:
        self.life_s, self.subject, self.mode = life_s, subject, "ok"
        self.asked: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.given: list[str] = []
        self.more: dict[str, Any] = {}
        self.claims: dict[str, Any] = {}
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._freed = threading.Event()
        self._changed = threading.Condition()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.base = f"http://127.0.0.1:{self._http.server_port}"
        self.url = f"{self.base}/token"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.mode = "ok"
        self._freed.set()
        self._http.shutdown()
        self._http.server_close()

    def go(self, mode: str) -> None:
        """From now on answer so; who hangs is let go."""
        self.mode = mode
        self._freed.set()
        self._freed = threading.Event()

    def wait_for_requests(self, number: int, bound_s: float = 60) -> None:
        """Wait until so many more have come."""
        with self._changed:
            end = len(self.asked) + number
            assert self._changed.wait_for(lambda: len(self.asked) >= end, bound_s)

    def jwks(self) -> str:
        n = self._key.public_key().public_numbers()
        modulus, exponent = (b64(x.to_bytes((x.bit_length() + 7) // 8, "big")) for x in (n.n, n.e))
        key = {"kty": "RSA", "kid": "k1", "use": "sig", "alg": "RS256", "n": modulus, "e": exponent}
        return json.dumps({"keys": [key]})

    def token(self, life_s: float | None = None, **claims: Any) -> str:
        now = int(time.time())
        held = {"sub": self.subject, "aud": "kafka", "iss": "https://issuer.test", "iat": now}
        held |= {"exp": now + (self.life_s if life_s is None else life_s), "scope": "kafka"}
        head = {"alg": "RS256", "kid": "k1", "typ": "JWT"}
        text = ".".join(
            b64(json.dumps(part).encode()) for part in (head, {**held, **self.claims, **claims})
        )
        signed = self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{b64(signed)}"

    def _answer(self, path: str, form: dict[str, str], headers: dict[str, str]) -> tuple[int, Any]:
        with self._changed:
            self.asked.append((path, form, headers))
            self._changed.notify_all()
        if self.mode == "hang":
            self._freed.wait()
        if self.mode == "refuse":
            # As badly as a server can: with what it was sent.
            echoed = form.get("client_secret") or headers.get("Authorization", "")
            told = {"error": "invalid_client", "error_description": f"not known: {echoed}"}
            return 401, told
        if self.mode == "fail":
            return 500, {"error": "temporarily_unavailable"}
        if self.mode == "noise":
            return 200, "x" * 1_000_000
        token = self.token()
        self.given.append(token)
        return 200, {"access_token": token, "expires_in": self.life_s, **self.more}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", 0))
                self._reply(self.rfile.read(length).decode())

            def do_GET(self) -> None:
                self._reply("")

            def _reply(self, body: str) -> None:
                path, _, query = self.path.partition("?")
                form = dict(urllib.parse.parse_qsl(body or query))
                if path.endswith("/email"):
                    code, data = 200, b"sink@project.iam.example"
                else:
                    code, answer = server._answer(path, form, dict(self.headers))
                    data = json.dumps(answer).encode()
                try:
                    self.send_response(code)
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # who asked does not wait any longer

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler


class KafkaWithTokens(EmbeddedKafka):
    """Has a second door, for who brings a token of this server; the first is the test's own."""

    def __init__(self, home: Path, server: TokenServer) -> None:
        super().__init__(home, ensure_broker_jars())
        self.guarded = f"127.0.0.1:{find_free_port()}"
        home.mkdir(parents=True, exist_ok=True)
        self._jwks = home.resolve() / "jwks.json"
        self._jwks.write_text(server.jwks())

    def settings(self) -> Mapping[str, str]:
        return {"bootstrap.servers": self.guarded, "security.protocol": "SASL_PLAINTEXT"}

    def _java_command(self, main: str, *arguments: str) -> list[str]:
        java, *more = super()._java_command(main, *arguments)
        prefix = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
        return [java, f"{prefix}.urls=file://{self._jwks}", f"{prefix}.files={self._jwks}", *more]

    def _write_configuration(self, log_dir: Path) -> Path:
        config = super()._write_configuration(log_dir)
        text = config.read_text()
        for key in ("listeners", "advertised.listeners"):
            text = text.replace(f"\n{key}=PLAIN", f"\n{key}=GUARDED://{self.guarded},PLAIN")
        text = text.replace(":PLAINTEXT\n", ":PLAINTEXT,GUARDED:SASL_PLAINTEXT\n")
        kafka, at = "org.apache.kafka.common.security.oauthbearer", "listener.name.guarded"
        checks = f"{kafka}.OAuthBearerValidatorCallbackHandler"
        door = {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "connections.max.reauth.ms": 3_600_000,  # so that sessions end with their tokens
            "oauthbearer.sasl.server.callback.handler.class": checks,
            "oauthbearer.sasl.oauthbearer.jwks.endpoint.url": f"file://{self._jwks}",
            "oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
            "oauthbearer.sasl.oauthbearer.expected.issuer": "https://issuer.test",
            "oauthbearer.sasl.oauthbearer.clock.skew.seconds": 0,
            "oauthbearer.sasl.jaas.config": f"{kafka}.OAuthBearerLoginModule required;",
        }
        text += "".join(f"{at}.{key}={value}\n" for key, value in door.items())
        config.write_text(text)
        return config
