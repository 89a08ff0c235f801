"""Completes a table that an earlier start created and no row has reached: it is still its sink's.

A start that stops at the first record leaves such a table, and the corrected sink file often has
one column more. Once there are rows, and for tables that others made, columns are their owner's.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from headgate.tables.iceberg.schema_evolution import Evolution, columns_of, plan_evolution
from headgate.tables.iceberg.table_creation import CREATED_MS, TableDeclaration

_NO_ROWS = "0"


def plan_completion(table: Table, declaration: TableDeclaration | None) -> Evolution | None:
    """Return what the table lacks of its declaration, if it may still get that; else ``None``."""
    metadata = table.metadata
    if declaration is None or CREATED_MS not in metadata.properties or _has_had_rows(metadata):
        return None
    columns = columns_of(declaration.schema())
    step = plan_evolution(metadata, columns, readd_dropped=False)
    return step if step.schema is not None else None


def completed_schema(table: Table, declaration: TableDeclaration | None) -> Schema:
    """Return the schema that the table has after the next start."""
    step = plan_completion(table, declaration)
    return table.schema() if step is None or step.schema is None else step.schema


def complete_table_if_empty(
    catalog: Catalog, identifier: str, declaration: TableDeclaration | None
) -> tuple[str, ...]:
    """Add what the table lacks of its declaration, if it may get that; return the changes.

    Raises what the catalog raises.
    """
    table = catalog.load_table(identifier)
    step = plan_completion(table, declaration)
    if step is None:
        return ()
    catalog.commit_table(table, step.requirements(*table.metadata.refs), step.updates())
    return step.changes


def _has_had_rows(metadata: TableMetadata) -> bool:
    """Return whether any snapshot has rows, or does not say that it has none."""
    summaries = (snapshot.summary for snapshot in metadata.snapshots)
    return any(s is None or s.get("total-records", "") != _NO_ROWS for s in summaries)
