"""What the tests of real commits share: a table, its sink, and rows as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from support.iceberg_files import write_files

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Landed, TableView
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

SINK = SinkName("sink")


def record(
    epoch: int, number: int, offset: int = 0, *, sink: str = SINK, records: int = 0
) -> CommitRecord:
    return CommitRecord(
        sink=SinkName(sink),
        group_id="group",
        transaction=TransactionId(Epoch(epoch), TransactionNumber(number)),
        coordinator=Sender("member", f"incarnation-{epoch}"),
        offsets=Offsets({TopicPartition("topic", 0): offset}),
        records=records,
    )


@dataclass
class SinkOnTable:
    """One sink that has claimed its table; ``view`` is the newest it knows."""

    catalog: Catalog
    identifier: str
    table: IcebergTable
    view: TableView
    number: int = 0

    @classmethod
    def claimed(
        cls,
        catalog: Catalog,
        columns: Mapping[str, str],
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        *,
        identifier: str = "db.t",
    ) -> SinkOnTable:
        declaration = TableDeclaration(columns, partition_by, properties or {})
        create_table_if_missing(catalog, identifier, declaration)
        table = IcebergTable(catalog, identifier, SINK, threads=False)
        outcome = table.commit(CommitAttempt(table.read(), record(1, 0)))
        assert isinstance(outcome, Landed), outcome
        return cls(catalog, identifier, table, outcome.view)

    def load(self) -> Table:
        return self.catalog.load_table(self.identifier)

    def attempt(self, rows: pa.Table | None) -> CommitAttempt:
        self.number += 1
        files = () if rows is None else write_files(self.load(), rows)
        return CommitAttempt(self.view, record(1, self.number, self.number), files)

    def commit(self, rows: pa.Table | None) -> TableView:
        """Lands, or the test fails."""
        return self.land(self.table.commit(self.attempt(rows)))

    def land(self, outcome: CommitOutcome) -> TableView:
        assert isinstance(outcome, Landed), outcome
        self.view = outcome.view
        return self.view

    def files_of_metadata(self) -> set[str]:
        """Names of the manifests and manifest lists on storage."""
        folder = self.load().location().removeprefix("file://") + "/metadata"
        import pathlib

        return {path.name for path in pathlib.Path(folder).glob("*.avro")}
