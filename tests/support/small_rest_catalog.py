"""A REST catalog of a few routes over pyiceberg's SQL catalog: commits as the specification has it.

Iceberg's own server cannot reach an object store without jars of half a gigabyte; this one can. It
writes metadata files itself, as servers do, straight to the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Self

from pyiceberg.catalog.rest import CommitTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table


class SmallRestCatalog(ThreadingHTTPServer):
    """``config`` goes with every table: vended keys, say. ``endpoints``: what it says it has."""

    daemon_threads = True

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        uri = f"sqlite:///{folder}/rest.db"
        self.catalog = SqlCatalog("behind", uri=uri, **files)
        self.config: Mapping[str, str] = {}
        self.endpoints: list[str] | None = None
        self.one_at_a_time = Lock()

    def with_each_table(self) -> Mapping[str, str]:
        return self.config

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self.catalog.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: SmallRestCatalog

    def do_GET(self) -> None:
        if self.path.startswith("/v1/config"):
            listed = self.server.endpoints
            endpoints = {} if listed is None else {"endpoints": listed}
            self._say(200, {"defaults": {}, "overrides": {}, **endpoints})
        elif len(parts := self.path.strip("/").split("/")) == 3:
            self._describe_namespace(parts[2])
        else:
            self._with_table(lambda table: table)

    def _describe_namespace(self, name: str) -> None:
        try:
            found = self.server.catalog.load_namespace_properties(name)
        except NoSuchNamespaceError as error:
            self._say(404, _error(404, "NoSuchNamespaceException", error))
        else:
            self._say(200, {"namespace": [name], "properties": found})

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        parts = self.path.strip("/").split("/")
        if parts[-1] == "namespaces":
            with self.server.one_at_a_time:
                self.server.catalog.create_namespace_if_not_exists(
                    ".".join(json.loads(asked)["namespace"])
                )
            self._say(200, {"namespace": json.loads(asked)["namespace"], "properties": {}})
        elif parts[-1] == "tables":
            self._with_table(lambda _: self._create(parts[2], json.loads(asked)), found=False)
        elif parts[-2:] == ["transactions", "commit"]:
            changes = json.loads(asked)["table-changes"]
            self._answer(lambda: self._commit_together(changes))
        else:
            self._answer(lambda: self._commit(parts[2], parts[-1], asked))

    def do_DELETE(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        self._answer(lambda: self.server.catalog.drop_table(f"{parts[2]}.{parts[-1]}"))

    def _commit_together(self, changes: list[dict[str, Any]]) -> None:
        catalog = self.server.catalog
        requests = [CommitTableRequest.model_validate(change) for change in changes]
        with self.server.one_at_a_time:
            tables = [
                catalog.load_table((*request.identifier.namespace.root, request.identifier.name))
                for request in requests
            ]
            for table, request in zip(tables, requests, strict=True):
                for requirement in request.requirements:
                    requirement.validate(table.metadata)
            for table, request in zip(tables, requests, strict=True):
                catalog.commit_table(table, (), request.updates)

    def _create(self, namespace: str, asked: dict[str, Any]) -> Table:
        with self.server.one_at_a_time:
            return self.server.catalog.create_table(
                f"{namespace}.{asked['name']}",
                Schema.model_validate(asked["schema"]),
                properties=asked.get("properties") or {},
            )

    def _commit(self, namespace: str, name: str, asked: bytes) -> CommitTableResponse:
        """The table is read once, by the commit itself."""
        request = CommitTableRequest.model_validate_json(asked)
        with self.server.one_at_a_time:
            return self.server.catalog.commit_table(
                _Named(namespace, name), request.requirements, request.updates
            )

    def _with_table(self, answer: Any, *, found: bool = True) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        name = f"{parts[2]}.{parts[-1]}"
        self._answer(lambda: answer(self.server.catalog.load_table(name) if found else None))

    def _answer(self, answer: Callable[[], Table | CommitTableResponse | None]) -> None:
        try:
            table = answer()
        except NoSuchTableError as error:
            self._say(404, _error(404, "NoSuchTableException", error))
        except TableAlreadyExistsError as error:
            self._say(409, _error(409, "AlreadyExistsException", error))
        except CommitFailedException as error:
            self._say(409, _error(409, "CommitFailedException", error))
        else:
            if table is None:
                self.send_response(204)
                self.end_headers()
                return
            metadata = json.loads(table.metadata.model_dump_json())
            metadata = {name: value for name, value in metadata.items() if value is not None}
            location = {"metadata-location": table.metadata_location, "metadata": metadata}
            self._say(200, {**location, "config": dict(self.server.with_each_table())})

    def _say(self, status: int, answer: Mapping[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _Named(Table):
    """A table of which a commit asks nothing but its name."""

    def __init__(self, namespace: str, name: str) -> None:
        self._identifier = (namespace, name)


def _error(status: int, kind: str, error: Exception) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": kind, "code": status}}
