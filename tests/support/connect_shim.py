"""Speaks Kafka Connect's REST interface over sinks of headgate: for those who only know Connect.

A connector becomes what ``headgate import`` makes of it, and each of its tasks a participant. What
``import`` refuses is answered as Connect answers a configuration that is not valid. Where Iceberg's
sink would create its table, the columns come from ``headgate init --from-topic``.
"""

from __future__ import annotations

import json
import threading
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from click.testing import CliRunner
from integration import warm_start

from headgate.config.load import load
from headgate.control_protocol.errors import HeadgateError
from headgate.operations.cli.main import main
from headgate.operations.init.sink_file_template import propose_and_write_sink_file
from headgate.operations.kafka_connect.import_connector import import_connector, to_toml
from headgate.operations.kafka_connect.tables_and_routes import parse_partition_by
from headgate.operations.status.status import read_status
from headgate.runtime.sink_tables import open_tables_creating_nothing

_COMMANDS = {"pause": "pause", "stop": "stop", "resume": "start"}


class Connector:
    """One connector: its configuration, the sink that it became, and its participants."""

    def __init__(self, home: Path, name: str, config: Mapping[str, Any], worker: Path) -> None:
        home.mkdir()
        self.home, self.name = home, name
        self.config = {key: str(value) for key, value in config.items()}
        file = home / "connector.json"
        file.write_text(json.dumps({"name": name, "config": self.config}))
        self.told: list[str] = []
        import_connector(file, worker=worker, folder=home, say=self.told.append)
        self.sinks = sorted(home.glob("*.toml"))
        self._tasks: list[warm_start.Forked] = []
        self._deleted = threading.Event()
        self._starter = threading.Thread(target=self._start)
        self._starter.start()

    def _start(self) -> None:
        for sink in self.sinks:
            while self._lacks_table(sink) and not self._complete(sink):
                if self._deleted.wait(0.2):
                    return
        for number in range(int(self.config.get("tasks.max", "1"))):
            for sink in self.sinks:
                log = self.home / f"{sink.stem}-{number}.log"
                self._tasks.append(warm_start.start(["run", str(sink)], log))

    def _lacks_table(self, sink: Path) -> bool:
        if self.config.get("iceberg.tables.auto-create-enabled") != "true":
            return False
        settings = load(sink)
        with open_tables_creating_nothing(settings) as tables:
            return not (settings.tables or tables.exists(settings.table.identifier))

    def _complete(self, sink: Path) -> bool:
        """Let the sink create its table from columns that its records show, once there are some."""
        document = tomllib.loads(sink.read_text())
        proposed = self.home / "proposed" / "proposal.toml"
        proposed.parent.mkdir(exist_ok=True)
        proposed.unlink(missing_ok=True)
        try:
            propose_and_write_sink_file(
                proposed.stem,
                proposed.parent,
                topic=document["source"]["topics"][0],
                kafka=document["kafka"],
                format={"type": document["format"]["type"]},
            )
        except HeadgateError as error:  # no records are there yet
            self.told.append(str(error))
            return False
        table = tomllib.loads(proposed.read_text()).get("table", {})
        if not table.get("columns"):
            return False
        document["table"] |= {"create": True, "columns": table["columns"]}
        if parts := parse_partition_by(self.config.get("iceberg.tables.default-partition-by", "")):
            document["table"]["partition_by"] = parts
        sink.write_text(to_toml(document))
        return True

    def ask(self, command: str) -> None:
        for sink in self.sinks:
            CliRunner().invoke(main, [_COMMANDS[command], str(sink)])

    def state(self) -> dict[str, Any]:
        """Return what ``GET /connectors/NAME/status`` answers."""
        tasks = [
            {"id": n, "worker_id": "headgate", **self._state_of(n, task)}
            for n, task in enumerate(self._tasks)
        ]
        alive = not self._starter.is_alive() and all(self._is_heard(sink) for sink in self.sinks)
        state = {"state": "RUNNING" if alive else "UNASSIGNED", "worker_id": "headgate"}
        return {"name": self.name, "type": "sink", "connector": state, "tasks": tasks}

    def _state_of(self, number: int, task: warm_start.Forked) -> dict[str, str]:
        code = task.poll()
        if code is None:
            return {"state": "RUNNING"}
        if code == 0:
            return {"state": "STOPPED"}
        logs = sorted(self.home.glob("*.log"))
        return {"state": "FAILED", "trace": logs[number % len(logs)].read_text()[-2000:]}

    def _is_heard(self, sink: Path) -> bool:
        with suppress(HeadgateError):
            return bool(read_status(load(sink)).participants)
        return False

    def delete(self) -> None:
        self._deleted.set()
        self._starter.join()
        for task in self._tasks:
            task.terminate()
        for task in self._tasks:
            task.wait(60)


class ConnectShim:
    """The server; ``url`` is what a client of Connect is given."""

    def __init__(self, home: Path, worker: Mapping[str, str]) -> None:
        self._home = home
        self._worker = home / "worker.properties"
        self._worker.write_text("".join(f"{key}={value}\n" for key, value in worker.items()))
        self.connectors: dict[str, Connector] = {}
        shim = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                code, value = shim.answer(self.command, self.path, body)
                text = b"" if value is None else json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - the library's names

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._routes: dict[tuple[str, str], Callable[[Connector], object]] = {
            ("GET", ""): lambda each: {"name": each.name, "config": each.config},
            ("GET", "config"): lambda each: each.config,
            ("GET", "status"): Connector.state,
            **{("PUT", name): lambda each, command=name: each.ask(command) for name in _COMMANDS},
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for connector in self.connectors.values():
            connector.delete()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, object]:
        """Return what a request is answered with: code and value."""
        _, name, what, *_ = [*path.strip("/").split("/"), "", ""]
        if method == "GET" and not name:
            return HTTPStatus.OK, sorted(self.connectors)
        if method == "POST":
            return self._create(body["name"], body["config"])
        if method == "PUT" and what == "config":
            return self._create(name, body)
        connector = self.connectors.get(name)
        if connector is None:
            return HTTPStatus.NOT_FOUND, _error(HTTPStatus.NOT_FOUND, f"no connector {name}")
        if method == "DELETE":
            self.connectors.pop(name).delete()
            return HTTPStatus.NO_CONTENT, None
        asked = self._routes.get((method, what))
        if asked is None:
            return HTTPStatus.METHOD_NOT_ALLOWED, _error(405, f"{method} {path}")
        return HTTPStatus.OK if method == "GET" else HTTPStatus.ACCEPTED, asked(connector)

    def _create(self, name: str, config: Mapping[str, Any]) -> tuple[int, object]:
        if name in self.connectors:
            return HTTPStatus.CONFLICT, _error(HTTPStatus.CONFLICT, f"{name} exists")
        home = self._home / name
        try:
            connector = self.connectors[name] = Connector(home, name, config, self._worker)
        except HeadgateError as error:
            return HTTPStatus.BAD_REQUEST, _error(HTTPStatus.BAD_REQUEST, str(error))
        answer = {"name": name, "config": connector.config, "tasks": [], "type": "sink"}
        return HTTPStatus.CREATED, answer


def _error(code: int, message: str) -> dict[str, object]:
    return {"error_code": int(code), "message": message}
