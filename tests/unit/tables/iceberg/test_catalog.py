"""A catalog opens bounded in time, or fails with one line that names no secret."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import create_server

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    MissingRights,
    TableMissing,
    Unreachable,
)
from headgate.tables.iceberg.catalog import (
    load_catalog,
    missing_rights_or_none,
    translate_catalog_error,
)


def sqlite(folder: Path, query: str = "") -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db{query}",
        "warehouse": f"file://{folder}/warehouse",
    }


@pytest.mark.parametrize(
    ("query", "engine_query"),
    [("", {"timeout": "7"}), ("?timeout=2", {"timeout": "2"}), ("?mode=rwc&uri=true", None)],
)
def test_sqlite_waits_for_its_lock(
    tmp_path: Path, query: str, engine_query: dict[str, str] | None
) -> None:
    with load_catalog("test", sqlite(tmp_path, query), timeout_s=7) as catalog:
        found = dict(catalog.engine.url.query)  # type: ignore[attr-defined]
    assert found == (engine_query or {"mode": "rwc", "uri": "true", "timeout": "7"})


def test_postgresql_that_is_no_longer_reached_is_not_waited_for() -> None:
    uri = "postgresql+psycopg2://headgate@127.0.0.1:1/db?connect_timeout=2"
    properties = {"type": "sql", "uri": uri, "init_catalog_tables": "false"}
    with load_catalog("test", properties, timeout_s=7) as catalog:
        found = dict(catalog.engine.url.query)  # type: ignore[attr-defined]
    assert found.pop("connect_timeout") == "2"
    assert found == {
        "tcp_user_timeout": "7000",
        "keepalives_idle": "7",
        "keepalives_interval": "7",
        "keepalives_count": "1",
    }


def test_many_open_a_new_catalog_at_once(tmp_path: Path) -> None:
    def open_one(_: int) -> Catalog:
        return load_catalog("test", sqlite(tmp_path))

    with ThreadPoolExecutor(6) as threads:
        for catalog in threads.map(open_one, range(6)):
            catalog.close()


def test_a_server_that_never_answers_is_unreachable() -> None:
    with create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unreachable, match="Read timed out"):
            load_catalog("test", {"type": "rest", "uri": uri}, timeout_s=0.2)


@pytest.mark.parametrize(
    ("properties", "error", "said"),
    [
        ({}, ConfigurationError, "nothing says what it is"),
        ({"type": "rest"}, ConfigurationError, "a REST catalog needs its uri"),
        ({"type": "sql", "uri": "no uri"}, ConfigurationError, "check the catalog's uri"),
        ({"type": "sql", "uri": "sqlite:////no/such/folder/c.db"}, Unreachable, "unable to open"),
        ({"type": "rest", "uri": "http://127.0.0.1:1"}, Unreachable, "refused"),
    ],
)
def test_mistakes_are_named(
    properties: Mapping[str, str], error: type[HeadgateError], said: str
) -> None:
    with pytest.raises(error) as caught:
        load_catalog("test", properties)
    assert type(caught.value) is error
    assert "catalog 'test'" in str(caught.value)
    assert said in str(caught.value)


def test_no_message_repeats_a_secret() -> None:
    properties = {"uri": "zzz://user:password@host", "credential": "client:password", "type": ""}
    with pytest.raises(ConfigurationError) as caught:
        load_catalog("test", properties)
    assert "password" not in str(caught.value)
    assert "<uri>" in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [
        (NoSuchTableError("t"), TableMissing),
        (ForbiddenError("no"), MissingRights),
        (OSError("disk"), Unreachable),
        (TableMissing("it"), TableMissing),
    ],
)
def test_foreign_errors_become_ours(foreign: Exception, ours: type[HeadgateError]) -> None:
    assert type(translate_catalog_error(foreign, "what")) is ours


def test_the_package_itself_does_without_pyiceberg() -> None:
    code = (
        "import sys; import headgate.control_protocol, headgate.control_protocol.ports; "
        "assert 'pyiceberg' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_right_that_was_taken_is_named_by_one_code() -> None:
    """Reading is tried again, as ``Unreachable``; the table's trouble is the missing right."""
    error = Unreachable(str(MissingRights("table db.orders cannot be read")))
    error.__cause__ = ForbiddenError("this principal may not")
    assert str(missing_rights_or_none(error)) == "HG-103 table db.orders cannot be read"
