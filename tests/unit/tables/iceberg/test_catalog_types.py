"""Only catalogs that were seen to compare and set, and to keep tags, are opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from headgate.control_protocol.errors import CatalogRefused
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.catalog_types import KINDS, require_supported_type

DOCUMENT = Path(__file__).parents[4] / "docs/guides/catalogs.md"

REFUSED = [
    ({"type": "hive", "uri": "thrift://127.0.0.1:1"}, "can lose a commit that it has confirmed"),
    ({"uri": "thrift://127.0.0.1:1"}, "can lose a commit that it has confirmed"),
    ({"type": "DynamoDB"}, "cannot commit to them"),
    ({"type": "bigquery"}, "cannot commit to them"),
    ({"type": "in-memory"}, "is gone with its process"),
    ({"type": "sql", "uri": "sqlite://"}, "is gone with its process"),
    ({"type": "sql", "uri": "sqlite:///:memory:"}, "is gone with its process"),
    ({"uri": "sqlite:///file:cat?mode=memory&cache=shared&uri=true"}, "is gone with its process"),
    ({"uri": "sqlite:///file::memory:?cache=shared&uri=true"}, "is gone with its process"),
    ({"uri": "sqlite+pysqlite:///file:/lake/c.db?nolock=1&uri=true"}, "take away the locks"),
    ({"uri": "sqlite:////lake/c.db?immutable=1&uri=true"}, "take away the locks"),
    ({"type": "sql", "uri": "mysql+pymysql://u:secret@h/db"}, "in mysql was never seen"),
    ({"type": "unity", "uri": "http://127.0.0.1:1"}, "'unity' is not a catalog"),
    ({"py-catalog-impl": "my.own.Catalog"}, "a class of its own"),
]


@pytest.mark.parametrize(("properties", "why"), REFUSED)
def test_what_cannot_be_the_lock_is_refused_before_it_is_opened(
    properties: Mapping[str, str], why: str
) -> None:
    with pytest.raises(CatalogRefused, match=why) as caught:
        load_catalog("lake", properties)
    assert caught.value.code == "HG-116"
    assert caught.value.hint
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"uri": "sqlite:////tmp/c.db"}, "sql"),
        ({"type": "SQL", "uri": "postgresql+psycopg2://h/db"}, "sql"),
        ({"uri": "https://h/api"}, "rest"),
        ({"type": "glue"}, "glue"),
        ({}, ""),
    ],
)
def test_what_was_seen_to_hold_is_opened(properties: Mapping[str, str], kind: str) -> None:
    assert require_supported_type("lake", properties) == kind


def test_the_document_has_a_row_for_every_kind() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    assert {kind for kind in KINDS if not any(f'`type = "{kind}"`' in row for row in rows)} == set()


@contextmanager
def configured(answer: bytes) -> Iterator[str]:
    """A REST server that says this of itself."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_nessie_server_is_refused_by_what_it_says_of_itself() -> None:
    nessie = b'{"defaults": {}, "overrides": {"nessie.is-nessie-catalog": "true"}}'
    with (
        configured(nessie) as uri,
        pytest.raises(CatalogRefused, match="Nessie server, which takes a commit and drops"),
    ):
        load_catalog("lake", {"type": "rest", "uri": uri})
    with configured(b'{"defaults": {}, "overrides": {}}') as uri:
        load_catalog("lake", {"type": "rest", "uri": uri}).close()
