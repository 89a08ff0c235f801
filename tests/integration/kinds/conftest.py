"""What tests of PostgreSQL tables share: the example's distribution, and a server to be killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import postgres_example
from support.postgres_server import PostgresServer


@pytest.fixture
def installed_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg", reason="the example's driver: make env installs it")
    postgres_example.install(tmp_path, monkeypatch)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server
