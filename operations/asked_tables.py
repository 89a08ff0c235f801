"""Meets what records need of tables without a coordinator, for a rehearsal or a replay."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from pyiceberg.catalog import Catalog

from headgate.control_protocol.column_growth import Refusal
from headgate.control_protocol.errors import WriteFailed
from headgate.control_protocol.events import Destination, TableStart
from headgate.control_protocol.ports import Batch, BatchNeeds, TableView
from headgate.control_protocol.table_changes import Want
from headgate.sink.iceberg_format import IcebergFormat
from headgate.sink.made_tables import TableMaker
from headgate.sink.settings import SinkSettings
from headgate.tables.followers import FollowerTables
from headgate.tables.iceberg.gate import Gates


def with_what_is_needed(
    settings: SinkSettings,
    catalog: Catalog,
    batch: Batch,
    needs: BatchNeeds,
    *,
    maker: TableMaker | None = None,
) -> Batch:
    """Return the batch after creating and changing what a coordinator would for it (N1, S3).

    Without a ``maker`` no table is created. Raises ``WriteFailed`` if a table could not be changed.
    """
    wants = [
        Want(Destination(need.at.table, need.at.uuid), need.columns, need.raw)
        for need in needs.tables
    ]
    tables = IcebergFormat(settings, catalog, Gates())
    make = maker.wanted if maker else None
    with closing(FollowerTables(tables.open, make=make)) as followers:
        changed = followers.change(wants)
    if failures := [said.failure for said in changed if said.failure]:
        raise WriteFailed(failures[0])
    told = {start.table: start for start in batch.told}
    for said in changed:
        refused = said.refused if said.uuid else (Refusal((), said.why),)
        ids, prefix = (said.uuid, said.schema_id, said.spec_id), f"{said.data}/{batch.folder}"
        told[said.table] = TableStart(said.table, *ids, prefix, refused=refused)
        if said.any_other:
            told[""] = replace(told[said.table], table="")
    return replace(batch, told=tuple(told.values()))


def start_of(view: TableView, folder: str) -> TableStart:
    """Return what a START would say about the table as read; files go to the folder."""
    prefix = f"{view.data_root}/{folder}"
    return TableStart(view.table, view.uuid, view.schema_id, view.spec_id, prefix)
