"""A sink of three topics and five tables, and its judge: an independent reader, table by table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.oracle import assert_exactly_once, read_source
from integration.readers import read_with_duckdb
from integration.sink_file import COLUMNS, COORDINATES

from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

ROUTED_COLUMNS = [{"name": name, "type": kind} for name, kind in COLUMNS.items()]
_DECLARED = {
    **COLUMNS,
    **dict(zip(COORDINATES, ("string", "int", "long"), strict=True)),
}


def routed(
    deploy: Deploy,
    change: Mapping[str, Any] | None = None,
    *,
    namespace: str = "db",
    topics: int = 3,
) -> Deployment:
    """The first topic goes to one table, the second by its name, the third by the field zone.

    Zones a and b have tables, c has none.
    """
    sink = deploy({}, topics=topics)
    first, second, third = sink.topics[:3]
    sink.change(
        {
            "table": None,
            "table.columns": None,
            "table.record_columns": None,
            "tables": {"ledger": f"{namespace}.ledger"},
            "tables.create": {"schema": "declared", "partition_by": ["zone|kind"]},
            "tables.record_columns": dict(
                zip(("topic", "partition", "offset"), COORDINATES, strict=True)
            ),
            "tables.route": [
                {"topic": first, "to": f"{namespace}.orders"},
                {"topic": third, "field": "zone", "to": f"{namespace}.zone_{{field}}"},
                {"topic": f"^{second[:-1]}.$", "to": f"{namespace}.of_{{topic}}"},
            ],
            "tables.table": [
                {"match": f"{namespace}.(orders|of_.*)", "columns": ROUTED_COLUMNS},
            ],
            "quarantine": {"per_thousand_max": 1_000, "table": f"{namespace}.rejected"},
            **(change or {}),
        }
    )
    return sink


def with_zones(sink: Deployment, namespace: str = "db", zones: str = "ab") -> None:
    """Tables that somebody else made."""
    known = sink.settings.catalog
    catalog = load_catalog(known.name, known.properties)
    for zone in zones:
        create_table_if_missing(catalog, f"{namespace}.zone_{zone}", TableDeclaration(_DECLARED))
    catalog.close()


def table_of(sink: Deployment, topic: str, namespace: str = "db") -> str:
    """The table that the route by topic makes of its name."""
    name = "".join(c if c.isalnum() else "_" for c in topic.lower())
    return f"{namespace}.of_{name}"


def rows_of(sink: Deployment, table: str) -> pa.Table:
    """By DuckDB, which knows nothing of headgate."""
    with sink.catalog() as catalog:
        return read_with_duckdb(catalog.load_table(table).metadata_location)


def judge(sink: Deployment, tables: Sequence[str], rejected: str = "db.rejected") -> dict[str, int]:
    """Each record of the source is in one of the tables or rejected, once; how many are where."""
    everything, counts = [], {}
    for table in tables:
        rows = rows_of(sink, table)
        counts[table] = rows.num_rows
        everything.append(rows.select(list(COORDINATES)))
    aside = rows_of(sink, rejected).select(["topic", "partition", "offset"])
    counts[rejected] = aside.num_rows
    everything.append(aside.rename_columns(list(COORDINATES)))
    kinds = everything[0].schema
    together = [rows.cast(kinds) for rows in everything]
    assert_exactly_once(together, read_source(sink.bootstrap, *sink.topics), columns=COORDINATES)
    return counts
