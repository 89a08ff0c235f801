"""Finds a sink's tables by the names that its routes can produce, in namespaces of any depth."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from support.local_catalog import LocalCatalog

from headgate.config.load import parse
from headgate.runtime.sink_tables import SinkTables

SINK_FILE = """
name = "sink"
[source]
topics = ["topic"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[tables]
ledger = "headgate.ledger"
[[tables.route]]
topic = "topic"
to = "{to}"
"""

CUT = f"lake.{'t' * 103}_{'0' * 16}"
THERE = (
    "db.orders",
    "lake.orders",
    "lake.eu.orders",
    "lake.eu.refunds",
    "lake.eu.raw.orders",
    "lake.us_east.orders",
    "lake.UPPER.orders",
    "lakes.eu.orders",
    CUT,
)


@pytest.mark.parametrize(
    ("to", "found"),
    [
        ("lake.orders", {"lake.orders"}),
        ("lake.{topic}", {"lake.orders", CUT}),
        ("lake.{topic}_events", {CUT}),
        ("{topic}.orders", {"db.orders", "lake.orders"}),
        ("lake.{topic}.orders", {"lake.eu.orders", "lake.us_east.orders"}),
        ("lake.eu.{topic}", {"lake.eu.orders", "lake.eu.refunds"}),
        ("{topic}.eu.orders", {"lake.eu.orders", "lakes.eu.orders"}),
        ("lake.{topic}.raw.orders", {"lake.eu.raw.orders"}),
        ("missing.{topic}.orders", set()),
        ("missing.orders", set()),
    ],
)
def test_tables_that_a_route_can_name_are_found_in_namespaces_of_any_depth(
    sqlite_catalog: LocalCatalog, to: str, found: set[str]
) -> None:
    catalog = sqlite_catalog.catalog
    for name in THERE:
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        catalog.create_table(name, Schema())
    tables = SinkTables.from_open_catalog(parse(SINK_FILE.format(to=to)), catalog)
    assert tables.find_tables_that_routes_can_name() == found
