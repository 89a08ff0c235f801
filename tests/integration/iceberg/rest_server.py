"""Iceberg's own REST server from Maven's jars, and a proxy in front of it that lies on demand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import ClassVar, Self

from support.java_server import java_server
from support.maven import maven_jars

from headgate.operations.local_kafka.broker import find_free_port

POM = Path(__file__).with_name("rest-catalog-pom.xml")


def rest_jars() -> Path:
    """The server's jars, fetched once."""
    return maven_jars("iceberg-rest-1.11.0", POM)


@contextmanager
def rest_server(
    folder: Path, properties: Mapping[str, str] | None = None, *jars: Path
) -> Iterator[int]:
    """The port of a server whose catalog is in the folder, and its warehouse, if none is given.

    ``properties`` are its catalog's, ``jars`` folders of what they need beyond the server's own.
    """
    port = find_free_port()
    catalog = {
        "uri": f"jdbc:sqlite:file:{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
        "rest.port": str(port),
        **(properties or {}),
    }
    variables = {server_variable(key): value for key, value in catalog.items()}
    classes = ":".join(f"{each}/*" for each in (rest_jars(), *jars))
    main = ["org.apache.iceberg.rest.RESTCatalogServer"]
    with java_server(folder, classes, main, port, variables):
        yield port


def server_variable(key: str) -> str:
    """How the server is told a property: one underscore for a dot, two for a hyphen."""
    return "CATALOG_" + key.replace("-", "__").replace(".", "_").upper()


class LyingProxy(ThreadingHTTPServer):
    """Passes requests on; the next commit of a table goes as ``lie`` says.

    ``drop-before``, ``drop-after``: the connection ends before or after the server has it.
    ``503-after``, ``502-before``: an answer of the proxy's own. ``twice``: it sends the commit
    again after a landed one, and passes the second answer on. ``hang-after``: no answer at all.
    ``keep-next``: it is sent on at ``let_go``, though its client may have given up; ``lose-next``:
    it is kept, and lost at ``let_go``. While ``refusing``, no request gets any answer. What it
    ``forbids`` (``commit`` or ``create``) is answered by 403, and all about the tables in
    ``closed``. ``only`` is what the name of the table ends with whose commits are lied about.
    """

    daemon_threads = True

    def __init__(self, server_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server_port_behind = server_port
        self.lie: str | None = None
        self.only = ""
        self.commits = 0
        self.refusing = False
        self.forbids = ""
        self.closed: set[str] = set()
        self.kept = Event()
        self._gone_on = Event()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def keep_next(self) -> None:
        self._keep("keep-next")

    def lose_next(self, table: str) -> None:
        self.only = f"/{table}"
        self._keep("lose-next")

    def _keep(self, lie: str) -> None:
        self.kept.clear()
        self._gone_on.clear()
        self.lie = lie

    def let_go(self) -> None:
        self._gone_on.set()

    def keep(self) -> None:
        """Returns when the commit that is being handled may go on."""
        self.kept.set()
        self._gone_on.wait()

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LyingProxy
    HOP_BY_HOP: ClassVar = {"transfer-encoding", "connection", "content-length"}

    def do_GET(self) -> None:
        if self.server.refusing:
            self.close_connection = True
            return
        if self._is_closed():
            self._forbid()
            return
        self._answer(*self._forward(b""))

    do_HEAD = do_DELETE = do_GET  # noqa: N815 - the names are http.server's

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.refusing:
            self.close_connection = True
            return
        does = "create" if self.path.endswith("/tables") else "commit"
        if self.server.forbids == does or self._is_closed():
            self._forbid()
            return
        lie = None
        if b'"add-snapshot"' in body and self.path.endswith(self.server.only):
            self.server.commits += 1
            lie, self.server.lie = self.server.lie, None
        if lie in ("keep-next", "lose-next"):
            self.server.keep()
        if lie == "lose-next":
            self.close_connection = True
            return
        if lie and lie.endswith("-before"):
            self._lie(lie)
            return
        answer = self._forward(body)
        if lie == "twice":
            answer = self._forward(body)
        if lie and lie.endswith("-after"):
            self._lie(lie)
            return
        self._answer(*answer)

    def _is_closed(self) -> bool:
        return self.path.partition("?")[0].rpartition("/")[2] in self.server.closed

    def _forbid(self) -> None:
        error = {"message": "not allowed", "type": "ForbiddenException", "code": 403}
        self._answer(403, {}, json.dumps({"error": error}).encode())

    def _lie(self, lie: str) -> None:
        what = lie.partition("-")[0]
        if what.isdecimal():
            self._answer(int(what), {}, b"upstream connect error")
            return
        if what == "hang":
            self.rfile.read(1)  # until the client gives up
        self.close_connection = True

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        behind = HTTPConnection("127.0.0.1", self.server.server_port_behind)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in self.HOP_BY_HOP}
        headers["Accept-Encoding"] = "identity"
        behind.request(self.command, self.path, body or None, headers)
        response = behind.getresponse()
        answer = response.read()
        kept = {k: v for k, v in response.headers.items() if k.lower() not in self.HOP_BY_HOP}
        behind.close()
        return response.status, kept, answer

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        with suppress(OSError):  # its client may be killed, or may have given up
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
