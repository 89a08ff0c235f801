"""A quarantine with rows of a sink's commits, for tests of what reads it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from support.iceberg_files import write_files
from support.local_catalog import LocalCatalog

from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, Landed
from headgate.tables.iceberg.dead_letter_rows import UnsentRows
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import create_table_if_missing

IDENTIFIER = "db.quarantine"


@dataclass
class QuarantineRows:
    """Makes the table. ``claim`` comes before the first ``commit`` of a sink."""

    local: LocalCatalog

    def __post_init__(self) -> None:
        create_table_if_missing(self.local.catalog, IDENTIFIER, quarantine_declaration())

    def claim(self, epoch: int, sink: str = "sink") -> None:
        self._commit(epoch, 0, [], sink)

    def commit(
        self, epoch: int, transaction: int, *offsets: int, sink: str = "sink", large: int = -1
    ) -> None:
        """Rows that were bad in batches of this transaction; ``large``: one of 20 kB."""
        self._commit(epoch, transaction, list(offsets), sink, large)

    def unsent(self, sink: str = "sink") -> UnsentRows:
        return UnsentRows(self.local.catalog, IDENTIFIER, SinkName(sink))

    def _commit(
        self, epoch: int, transaction: int, offsets: list[int], sink: str, large: int = -1
    ) -> None:
        table = self.local.catalog.load_table(IDENTIFIER)
        rows = [
            {
                "topic": "trips",
                "topic_id": "id-of-trips",
                "partition": 0,
                "offset": offset,
                "key": b"key",
                "value": b"{broken %d" % offset + b"." * (20_000 if offset == large else 0),
                "headers": [{"key": "h", "value": b"\xff"}],
                "error_class": "value",
                "message": "is no JSON",
                "sink": sink,
                "epoch": epoch,
                "transaction": transaction,
            }
            for offset in offsets
        ]
        rows_table = pa.Table.from_pylist(rows, table.schema().as_arrow())
        files = write_files(table, rows_table) if rows else ()
        aside = IcebergTable(self.local.catalog, IDENTIFIER, SinkName(sink))
        record = CommitRecord(
            SinkName(sink),
            "group",
            TransactionId(Epoch(epoch), TransactionNumber(transaction)),
            Sender("member", "1"),
            Offsets(),
            records=len(rows),
        )
        assert isinstance(aside.commit(CommitAttempt(aside.read(), record, files)), Landed)
