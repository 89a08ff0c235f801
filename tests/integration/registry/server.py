"""A schema registry over real HTTP: the documented REST API, as far as producers and sinks ask.

Subjects, versions, ids, references, look-ups and deletes in memory, with the documented error
codes. And what a real one does on bad days: errors, silence and closed doors, on demand.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from confluent_kafka import Producer
from integration.deployment import Deployment

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        return int(str(self.code)[:3])


@dataclass
class Trouble:
    """What the next requests meet: an answer of this status, after a wait."""

    status: int = 0
    wait_s: float = 0.0


@dataclass
class Subjects:
    """What is registered. Equal schemas have one id, whatever their subjects."""

    ids: dict[str, int] = field(default_factory=dict)
    versions: dict[str, list[int | None]] = field(default_factory=dict)

    def register(self, subject: str, body: Mapping[str, Any]) -> int:
        if not isinstance(body.get("schema"), str):
            raise Refused(42201, "Invalid schema")
        if body.get("schemaType", "AVRO") == "AVRO":
            try:
                json.loads(body["schema"])
            except ValueError:
                raise Refused(42201, "Invalid Avro schema") from None
        kept = {key: body[key] for key in ("schema", "schemaType", "references") if body.get(key)}
        number = self.ids.setdefault(json.dumps(kept, sort_keys=True), len(self.ids) + 1)
        known = self.versions.setdefault(subject, [])
        if number not in known:
            known.append(number)
        return number

    def schema(self, number: int) -> dict[str, Any]:
        for text, known in self.ids.items():
            if known == number:
                found: dict[str, Any] = json.loads(text)
                return found
        raise Refused(40403, f"Schema {number} not found")

    def version(self, subject: str, which: str) -> dict[str, Any]:
        known = self.versions.get(subject)
        if not known:
            raise Refused(40401, f"Subject '{subject}' not found.")
        place = len(known) if which == "latest" else int(which)
        if not 1 <= place <= len(known) or known[place - 1] is None:
            raise Refused(40402, f"Version {which} not found.")
        number = known[place - 1]
        assert number is not None
        shown = {"subject": subject, "version": place, "id": number}
        return {**shown, "guid": guid_of(number), **self.schema(number)}

    def by_guid(self, guid: str) -> dict[str, Any]:
        for number in self.ids.values():
            if guid_of(number) == guid:
                return {"guid": guid, **self.schema(number)}
        raise Refused(40403, f"Schema {guid} not found")

    def lookup(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        for place in range(1, len(self.versions.get(subject, [])) + 1):
            found = self.version(subject, str(place))
            if found["schema"] == body.get("schema"):
                return found
        raise Refused(40403, "Schema not found")


def framed(number: int, document: Mapping[str, Any]) -> bytes:
    """Return a value as Confluent's JSON serializer writes it."""
    return b"\0" + number.to_bytes(4, "big") + json.dumps(document).encode()


def produce_framed(sink: Deployment, registry: RegistryServer, numbers: range) -> None:
    """Write rows ``{id, name}`` under a schema that is registered for it."""
    properties = {"id": {"type": "integer"}, "name": {"type": "string"}}
    schema = {"title": "Row", "type": "object", "properties": properties}
    body = {"schema": json.dumps(schema), "schemaType": "JSON"}
    schema_id = registry.subjects.register(f"{sink.topics[0]}-value", body)
    producer = Producer({"bootstrap.servers": sink.bootstrap})
    for number in numbers:
        value = framed(schema_id, {"id": number, "name": f"n{number}"})
        producer.produce(sink.topics[0], value, partition=number % 2)
    assert producer.flush(30) == 0


def guid_of(number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, str(number)))


def _registered(subjects: Subjects, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    number = subjects.register(name, body)
    return {"id": number, "guid": guid_of(number)}


class RegistryServer:
    """Runs while the block does. ``asked`` lists method and path of every request."""

    def __init__(self, user: str = "", tokens: Collection[str] | None = None) -> None:
        """``user``: who must ask, as USER:PASSWORD. ``tokens``: one of them must be sent."""
        self.subjects = Subjects()
        self.trouble = Trouble()
        self.asked: list[str] = []
        self._user = user
        self._tokens = tokens
        self._lock = threading.Lock()
        outer = self

        class Handler(_Handler):
            server_of = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, method: str, target: str, body: Mapping[str, Any], user: str) -> Any:
        with self._lock:
            self.asked.append(f"{method} {target}")
        time.sleep(self.trouble.wait_s)
        if self.trouble.status:
            raise Refused(self.trouble.status * 100 + 1, "a bad day")
        if self._user and user != self._user:
            raise Refused(40101, "Unauthorized")
        if self._tokens is not None and user not in self._tokens:
            raise Refused(40101, "Unauthorized")
        path = unquote(urlsplit(target).path).rstrip("/")
        with self._lock:
            for pattern, answer in _ROUTES.items():
                found = re.fullmatch(pattern, f"{method} {path}")
                if found:
                    said = answer(self.subjects, body, *found.groups())
                    return _as_asked(said, urlsplit(target).query)
        raise Refused(404, "HTTP 404 Not Found")


def _as_asked(said: Any, query: str) -> Any:
    """Protobuf is given as text, unless its descriptor was asked for."""
    if not isinstance(said, dict) or said.get("schemaType") != "PROTOBUF":
        return said
    text = 'syntax = "proto3"; // as text'
    return said if "format=serialized" in query else {**said, "schema": text}


def _delete_version(subjects: Subjects, subject: str, which: str) -> int:
    place = int(subjects.version(subject, which)["version"])
    subjects.versions[subject][place - 1] = None
    return place


def _artifact_references(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As Apicurio's own API names them: an artifact is a subject here."""
    return [
        {"artifactId": each["subject"], "version": str(each["version"]), "name": each["name"]}
        for each in said.get("references", ())
    ]


_NAME = r"([^/]+)"
_OWN = "GET /apis/registry/v3"
_VERSION = rf"{_OWN}/groups/default/artifacts/{_NAME}/versions/(\d+)"
GLOBAL_IDS_FROM = 1000
"""Global ids differ from content ids by this."""
_ROUTES: dict[str, Callable[..., Any]] = {
    rf"{_OWN}/ids/contentIds/(\d+)": lambda subjects, _, number: json.loads(
        subjects.schema(int(number))["schema"]
    ),
    rf"{_OWN}/ids/contentIds/(\d+)/references": lambda subjects, _, number: _artifact_references(
        subjects.schema(int(number))
    ),
    rf"{_OWN}/ids/globalIds/(\d+)": lambda subjects, _, number: json.loads(
        subjects.schema(int(number) - GLOBAL_IDS_FROM)["schema"]
    ),
    rf"{_OWN}/ids/globalIds/(\d+)/references": lambda subjects, _, number: _artifact_references(
        subjects.schema(int(number) - GLOBAL_IDS_FROM)
    ),
    rf"{_VERSION}/content": lambda subjects, _, name, which: json.loads(
        subjects.version(name, which)["schema"]
    ),
    rf"{_VERSION}/references": lambda subjects, _, name, which: _artifact_references(
        subjects.version(name, which)
    ),
    r"GET /schemas/types": lambda *_: ["JSON", "PROTOBUF", "AVRO"],
    r"GET /schemas/ids/(\d+)": lambda subjects, _, number: subjects.schema(int(number)),
    r"GET /schemas/guids/([0-9a-f-]{36})": lambda subjects, _, guid: subjects.by_guid(guid),
    r"GET /schemas/ids/(\d+)/schema": lambda subjects, _, number: json.loads(
        subjects.schema(int(number))["schema"]
    ),
    r"GET /schemas/ids/(\d+)/versions": lambda subjects, _, number: [
        {"subject": name, "version": place}
        for name, known in subjects.versions.items()
        for place, found in enumerate(known, 1)
        if found == int(number)
    ],
    r"GET /subjects": lambda subjects, _: sorted(subjects.versions),
    rf"GET /subjects/{_NAME}/versions": lambda subjects, _, name: [
        place for place, found in enumerate(subjects.versions.get(name, []), 1) if found
    ],
    rf"GET /subjects/{_NAME}/versions/(\d+|latest)": lambda subjects, _, name, which: (
        subjects.version(name, which)
    ),
    rf"POST /subjects/{_NAME}/versions": lambda subjects, body, name: _registered(
        subjects, name, body
    ),
    rf"POST /subjects/{_NAME}": lambda subjects, body, name: subjects.lookup(name, body),
    rf"DELETE /subjects/{_NAME}/versions/(\d+|latest)": lambda subjects, _, name, which: (
        _delete_version(subjects, name, which)
    ),
}


class _Handler(BaseHTTPRequestHandler):
    server_of: RegistryServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        kind, _, secret = (self.headers.get("Authorization") or "").partition(" ")
        user = base64.b64decode(secret).decode() if kind == "Basic" else secret
        try:
            status, answer = 200, self.server_of.answer(self.command, self.path, body, user)
        except Refused as error:
            status, answer = error.status, {"error_code": error.code, "message": error.message}
        octets = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(octets)))
            self.end_headers()
            self.wfile.write(octets)
        except OSError:
            return  # who asked has lost patience

    def log_message(self, *_: object) -> None:
        """Tests say what went wrong; the server need not."""
