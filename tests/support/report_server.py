"""Provides a receiver of reports over HTTP that answers as it is told, or not at all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass
class Got:
    """One request."""

    path: str
    headers: dict[str, str]
    body: Any
    answer: int


@dataclass
class ReportServer:
    """``status``: what it answers; 0: it hangs until it is closed. ``delay_s``: before it does."""

    status: int = 200
    delay_s: float = 0.0
    location: str = ""
    port: int = 0
    got: list[Got] = field(default_factory=list)
    _server: ThreadingHTTPServer | None = None
    _closed: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = outer.status
                outer.got.append(Got(self.path, dict(self.headers), json.loads(body), status))
                if not status:
                    outer._closed.wait(60)
                    return
                time.sleep(outer.delay_s)
                self.send_response(status)
                if outer.location:
                    self.send_header("Location", outer.location)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def accepted_bodies(self, of: Callable[[Any], bool] = lambda _: True) -> list[Any]:
        """The bodies of requests that were answered well, in order."""
        return [each.body for each in self.got if each.answer // 100 == 2 and of(each.body)]
