"""Tokens of a REST catalog are renewed before they expire, and nobody waits forever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import create_server
from threading import Barrier, Thread
from typing import Any

import pytest
from pydantic import ValidationError
from requests import Session

from headgate.control_protocol.errors import Unreachable
from headgate.tables.concurrent_secondary_tables import AT_ONCE
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.rest_catalog import RenewedToken


class TokenServer(ThreadingHTTPServer):
    """Gives out tokens, and is a catalog without tables that says which one it was shown."""

    daemon_threads = True

    def __init__(self, life_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.life_s = life_s
        self.given = 0
        self.down = False
        self.shown: list[str] = []
        self.asked: list[str] = []
        self.moved_to = ""
        self.overrides: dict[str, str] = {}
        self.connections = 0
        self.together = Barrier(1)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: TokenServer

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.down:
            self._say(503, {})
            return
        if self._say_if_moved():
            return
        self.server.given += 1
        token = f"token-{self.server.given}"
        self._say(
            200, {"access_token": token, "token_type": "bearer", "expires_in": self.server.life_s}
        )

    def do_GET(self) -> None:
        if self._say_if_moved():
            return
        self.server.shown.append(self.headers.get("Authorization", ""))
        self.server.asked.append(self.path)
        self.server.together.wait(30)
        self._say(200, {"defaults": {}, "overrides": self.server.overrides, "namespaces": []})

    def _say_if_moved(self) -> bool:
        if not self.server.moved_to or self.path.startswith(self.server.moved_to):
            return False
        self._say(307, {}, Location=f"{self.server.moved_to}{self.path}")
        return True

    def _say(self, status: int, answer: Any, **headers: str) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def tokens(life_s: float) -> Iterator[TokenServer]:
    with TokenServer(life_s) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(("life_s", "renewed_after_s"), [(40, 20), (3600, 3300)])
def test_a_token_is_renewed_before_it_expires(life_s: float, renewed_after_s: float) -> None:
    now = [0.0]
    with tokens(life_s) as server, Session() as session:
        manager = RenewedToken(
            session=session,
            auth_url=f"{server.uri}/token",
            credential="client:secret",
            monotonic_s=lambda: now[0],
        )
        assert manager.auth_header() == "Bearer token-1"
        now[0] = renewed_after_s - 1
        assert manager.auth_header() == "Bearer token-1"
        now[0] = renewed_after_s
        assert manager.auth_header() == "Bearer token-2"


def test_while_a_renewal_fails_the_token_goes_on() -> None:
    now = [0.0]
    with tokens(40) as server, Session() as session:
        manager = RenewedToken(
            session=session,
            auth_url=f"{server.uri}/token",
            credential="secret",
            monotonic_s=lambda: now[0],
        )
        now[0], server.down = 20.0, True
        assert manager.auth_header() == "Bearer token-1"
        server.down = False
        assert manager.auth_header() == "Bearer token-1", "not with every request"
        now[0] = 26.0
        assert manager.auth_header() == "Bearer token-2"


def test_a_catalog_shows_the_newest_token() -> None:
    with tokens(0.2) as server:
        properties = {
            "type": "rest",
            "uri": server.uri,
            "credential": "client:secret",
            "oauth2-server-uri": f"{server.uri}/token",
        }
        with load_catalog("lake", properties) as catalog:
            before = server.given
            while server.given < before + 2:
                catalog.list_namespaces()
        assert server.shown[-1] == f"Bearer token-{server.given}"


def test_a_server_of_tokens_that_never_answers_is_not_waited_for() -> None:
    with create_server(("127.0.0.1", 0)) as silent, tokens(60) as server:
        properties = {
            "type": "rest",
            "uri": server.uri,
            "credential": "client:secret",
            "oauth2-server-uri": f"http://127.0.0.1:{silent.getsockname()[1]}",
        }
        with pytest.raises(Unreachable, match="Read timed out"):
            load_catalog("lake", properties, timeout_s=0.2)


def write_own_configuration(monkeypatch: pytest.MonkeyPatch, folder: Path, token_url: str) -> None:
    settings = {"client_id": "client", "client_secret": "secret", "token_url": token_url}
    lines = ["catalog:", "  lake:", "    auth:", "      type: oauth2", "      oauth2:"]
    lines += [f"        {name}: {text}" for name, text in settings.items()]
    (folder / ".pyiceberg.yaml").write_text("\n".join([*lines, ""]))
    monkeypatch.setenv("PYICEBERG_HOME", str(folder))


def test_neither_is_that_of_pyicebergs_own_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with create_server(("127.0.0.1", 0)) as silent, tokens(60) as server:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        write_own_configuration(monkeypatch, tmp_path, url)
        with pytest.raises(Unreachable, match="Read timed out"):
            load_catalog("lake", {"type": "rest", "uri": server.uri}, timeout_s=0.2)


@pytest.mark.parametrize("tokens_by", ["credential", "own configuration", "nobody"])
def test_a_secret_does_not_follow_a_redirection_to_another_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokens_by: str
) -> None:
    with tokens(60) as server, tokens(60) as other:
        server.moved_to = other.uri
        properties = {"type": "rest", "uri": server.uri, "header.X-Own": "secret"}
        if tokens_by == "credential":
            url = f"{server.uri}/token"
            properties |= {"credential": "client:secret", "oauth2-server-uri": url}
        elif tokens_by == "own configuration":
            write_own_configuration(monkeypatch, tmp_path, server.uri)
        with pytest.raises(Unreachable, match=rf"redirects to {other.uri}, which gets no"):
            load_catalog("lake", properties)
        assert (other.given, other.asked) == (0, [])


def test_a_redirection_on_the_same_server_is_followed() -> None:
    with tokens(60) as server:
        server.moved_to = "/moved"
        with load_catalog("lake", {"type": "rest", "uri": server.uri}) as catalog:
            assert catalog.list_namespaces() == []
        assert server.asked[-1].startswith("/moved/")


def test_threads_that_ask_at_once_keep_their_connections() -> None:
    """requests keeps ten by itself, and warns of each one that it throws away."""
    with tokens(60) as server:
        with load_catalog("lake", {"type": "rest", "uri": server.uri}) as catalog:
            server.together = Barrier(AT_ONCE)
            before = server.connections
            with ThreadPoolExecutor(AT_ONCE) as threads:
                for _ in range(2):
                    list(threads.map(lambda _: catalog.list_namespaces(), range(AT_ONCE)))
        assert server.connections - before <= AT_ONCE


def test_all_snapshots_are_asked_for_whoever_wants_fewer() -> None:
    """Expiry and orphan clean-up would take the files of those that are not shown for nobody's."""
    fewer = {"snapshot-loading-mode": "refs"}
    with tokens(60) as server:
        server.overrides = fewer
        with (
            load_catalog("lake", {"type": "rest", "uri": server.uri, **fewer}) as catalog,
            pytest.raises(ValidationError),  # the server has no tables
        ):
            catalog.load_table("db.t")
        assert server.asked[-1].endswith("/tables/t")
