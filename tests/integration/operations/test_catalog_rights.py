"""What ``headgate check`` tells of rights in the catalog, on servers that forbid some."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg2
import pyarrow as pa
import pytest
from integration.iceberg.rest_server import LyingProxy
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from repository.tree import ROOT
from support.postgres_server import PostgresServer
from unit.operations.filled_table import sink_file_text

from headgate.config.catalog_settings import CatalogSettings
from headgate.config.load import parse
from headgate.config.setting_types import Properties
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import MissingRights
from headgate.operations.check.table import NotChecked, TableCheck
from headgate.tables.iceberg.catalog import load_catalog

pytestmark = pytest.mark.integration

SCHEMA = Schema(NestedField(1, "offset", LongType(), required=False))
ROLE = "trips_sink"


@pytest.fixture
def settings(tmp_path: Path, unique_name: str) -> Callable[[dict[str, str]], SinkSettings]:
    """A sink on a catalog; its table may be made."""

    def made(properties: dict[str, str]) -> SinkSettings:
        text = sink_file_text(tmp_path)
        sink = parse(text.replace("[table]", "[table]\ncreate = true", 1))
        table = replace(sink.table, identifier=f"{unique_name.replace('-', '_')}.rows")
        catalog = CatalogSettings(name="rights", properties=Properties(properties))
        return replace(sink, catalog=catalog, table=table)

    return made


def make(settings: SinkSettings, *, table: bool = True) -> None:
    with closing(load_catalog("rights", dict(settings.catalog.properties))) as catalog:
        catalog.create_namespace_if_not_exists(settings.table.identifier.partition(".")[0])
        if table:
            catalog.create_table(settings.table.identifier, SCHEMA)


def commands(role: str) -> list[str]:
    """What docs/guides/security.md gives out for a role, for the test's user."""
    text = (ROOT / "docs/guides/security.md").read_text()
    block = text.partition("```sql\n")[2].partition("```")[0]
    part = block.partition(f"-- {role}")[2].partition("\n")[2].partition("-- ")[0]
    return [re.sub(r"TO \w+", f"TO {ROLE}", line) for line in part.splitlines() if line]


def rights(settings: SinkSettings) -> str:
    check = TableCheck(settings)
    check.check_catalog()
    check.check_table()
    return check.check_rights()


def test_a_rest_catalog_is_asked_whether_it_takes_commits(
    lying_proxy: LyingProxy, settings: Callable[[dict[str, str]], SinkSettings]
) -> None:
    sink = settings({"type": "rest", "uri": lying_proxy.uri})
    make(sink)
    with closing(load_catalog("rights", dict(sink.catalog.properties))) as catalog:
        before = catalog.load_table(sink.table.identifier).metadata_location
        assert rights(sink).endswith("rows may be committed")
        lying_proxy.forbids = "commit"
        with pytest.raises(MissingRights, match="rows may not be committed"):
            rights(sink)
        assert catalog.load_table(sink.table.identifier).metadata_location == before


def test_a_rest_catalog_is_asked_whether_it_lets_create(
    lying_proxy: LyingProxy, settings: Callable[[dict[str, str]], SinkSettings]
) -> None:
    sink = settings({"type": "rest", "uri": lying_proxy.uri})
    make(sink, table=False)
    assert rights(sink).endswith("rows may be created")
    lying_proxy.forbids = "create"
    with pytest.raises(MissingRights, match="rows may not be created"):
        rights(sink)
    with closing(load_catalog("rights", dict(sink.catalog.properties))) as catalog:
        assert not catalog.table_exists(sink.table.identifier)


def test_the_rights_that_a_database_gives_are_named(
    postgres: PostgresServer,
    settings: Callable[[dict[str, str]], SinkSettings],
    tmp_path: Path,
) -> None:
    uri = postgres.new_database()
    warehouse = tmp_path.as_uri()
    owner = settings({"type": "sql", "uri": uri, "warehouse": warehouse})
    make(owner)
    with pytest.raises(NotChecked, match="may DELETE and TRUNCATE iceberg_tables too"):
        rights(owner)

    with closing(psycopg2.connect(uri.replace("+psycopg2", ""))) as admin:
        admin.autocommit = True
        run = admin.cursor().execute
        run(f"DROP ROLE IF EXISTS {ROLE}")
        run(f"CREATE ROLE {ROLE} LOGIN")
        for command in commands("observer"):
            run(command)
        limited = {"type": "sql", "uri": uri.replace("headgate@", f"{ROLE}@")}
        sink = settings({**limited, "warehouse": warehouse})
        with pytest.raises(MissingRights, match="does not let this user UPDATE"):
            rights(sink)
        for command in commands("participant"):
            run(command)
        assert rights(sink).endswith("rows may be committed")
        with closing(load_catalog("rights", dict(sink.catalog.properties))) as catalog:
            catalog.load_table(sink.table.identifier).append(pa.table({"offset": [1]}))
        other = replace(sink, table=replace(sink.table, identifier="another.rows"))
        with pytest.raises(MissingRights, match="does not let this user INSERT"):
            rights(other)
        run(f"GRANT INSERT ON iceberg_tables TO {ROLE}")
        assert rights(other).endswith("rows may be created")
        run(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")
