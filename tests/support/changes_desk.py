"""Provides a keyed table and an embedded writer, to see what records do to its rows.

Everything comes back as plain values: rows and keys as they are in the files, bad records with
what is said of them in the quarantine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from support.local_catalog import LocalCatalog

from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.events import FileKind, TableStart, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import (
    Batch,
    BatchFailed,
    BatchNeeds,
    BatchOutcome,
    BatchWritten,
)
from headgate.control_protocol.quarantine_policy import BadRecordLimits, Disposal
from headgate.data_plane.batch.row_rules import RowRules
from headgate.data_plane.batch.transform_and_distribution import Shaping
from headgate.data_plane.batch.writer_task_plan import Handling, Plans, SourcePlan, WriterPlan
from headgate.data_plane.cdc.policy import Changes
from headgate.data_plane.formats.column_options import ColumnRule
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.write_batch import write_chunk_around_poison
from headgate.kafka.push_source import Record
from headgate.participant.settings import SchemaPolicy
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing
from headgate.tables.iceberg.upsert.key_files import OFFSET, PARTITION

TOPIC = "changes"
PLACES = {"kafka_partition": "int", "kafka_offset": "long"}
COLUMNS = {"id": "long not null", "name": "string", "n": "long"}
TIME_MS = 1_785_585_600_123
"""Of every record."""
Message = tuple[bytes | None, bytes | None]
"""A key and a value."""


@dataclass
class Done:
    """What a batch of changes came to. ``deletes``: keys by the offsets of their records."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    deletes: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    skipped: int = 0


class ChangesDesk:
    """Writes batches of one partition, or of several."""

    def __init__(
        self,
        local: LocalCatalog,
        changes: Changes,
        *,
        columns: Mapping[str, str] | None = None,
        format_name: str = "json",
        key_format: str = "",
        options: Mapping[str, str] | None = None,
        rules: Mapping[str, ColumnRule] | None = None,
        policy: Disposal = Disposal.QUARANTINE,
        record_columns: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        schema_policy: SchemaPolicy | None = None,
        row_rules: RowRules | None = None,
    ) -> None:
        self.catalog = local.catalog
        self._key = changes.key
        wanted = {**(columns or COLUMNS), **PLACES}
        declaration = TableDeclaration(wanted, partition_by, key=changes.key)
        create_table_if_missing(local.catalog, "db.t", declaration)
        create_table_if_missing(local.catalog, "db.q", quarantine_declaration())
        limits = BadRecordLimits(per_thousand_max=1_000)
        parts = {"partition": "kafka_partition", "offset": "kafka_offset"}
        self.source = SourcePlan(
            {},
            format_name=format_name,
            format_options=options or {},
            key_format_name=key_format,
            record_columns={**parts, **(record_columns or {})},
            rules=rules or {},
            handling=Handling(
                *(policy, changes.tombstones.disposal or Disposal.FAIL, limits, "headgate-sink"),
                excerpts=not (row_rules and row_rules.hidden_columns),
                keeps_content=not (row_rules and row_rules.hidden_columns),
            ),
            sink="sink",
            changes=changes,
            schema_policy=schema_policy or SchemaPolicy(),
        )
        self._plans = Plans(local.catalog, Shaping(rules=row_rules))
        self._offset = 0

    def outcome(self, messages: Sequence[Message]) -> BatchWritten | BatchFailed | BatchNeeds:
        """What the writer says of these records, which are of one partition."""
        begin, self._offset = self._offset, self._offset + len(messages)
        records = [
            Record(TOPIC, 0, begin + place, TIME_MS, value, key, [])
            for place, (key, value) in enumerate(messages)
        ]
        batch = Batch(
            number=1,
            transaction=TransactionId(Epoch(1), TransactionNumber(1)),
            table=self._start("db.t"),
            ranges={TopicPartition(TOPIC, 0): OffsetRange(begin, self._offset)},
            target_file_bytes=1 << 27,
            topic_ids={TOPIC: TopicId("id")},
            quarantine=self._start("db.q"),
        )
        outcome = self.write_planned(self._plans.load_plan(batch, self.source), batch, records)
        assert isinstance(outcome, BatchWritten | BatchFailed | BatchNeeds)
        return outcome

    def write_planned(
        self, plan: WriterPlan, batch: Batch, records: Sequence[Record]
    ) -> BatchOutcome:
        return write_chunk_around_poison(plan, batch, chunk_of([records]))

    def evolve(self, *messages: Message) -> tuple[str, ...]:
        """Do to the table what these records need, and say what that was."""
        needs = self.outcome(messages)
        assert isinstance(needs, BatchNeeds), needs
        self._offset -= len(messages)
        table = IcebergTable(self.catalog, "db.t", SinkName("s"))
        return table.evolve(table.read(), needs.columns).changes

    def write(self, *messages: Message) -> Done:
        """As ``outcome``, looked into. Each record counts once."""
        outcome = self.outcome(messages)
        assert isinstance(outcome, BatchWritten), outcome
        io = self.catalog.load_table("db.t").io
        done = Done()
        for file in outcome.files:
            for row in read_file(io, file):
                if file.kind is FileKind.ROWS:
                    done.rows.append({name: row[name] for name in row if name not in PLACES})
                else:
                    assert row[PARTITION] == 0
                    done.deletes[row[OFFSET]] = tuple(row[name] for name in self._key)
        for file in outcome.quarantined:
            done.bad |= {row["offset"]: row["message"] for row in read_file(io, file)}
        (result,) = outcome.partitions.values()
        done.skipped = result.skipped
        assert result.records == len(done.rows)
        assert result.deleted == len(done.deletes)
        assert result.quarantined == len(done.bad)
        counted = result.records + result.deleted + result.quarantined + result.skipped
        assert counted == len(messages)
        return done

    def _start(self, name: str) -> TableStart:
        table = self.catalog.load_table(name)
        return TableStart(
            table=name,
            uuid=str(table.metadata.table_uuid),
            schema_id=table.schema().schema_id,
            spec_id=table.spec().spec_id,
            file_prefix=f"{table.location()}/data/7",
        )


def read_file(io: FileIO, file: WrittenFile) -> list[dict[str, Any]]:
    with io.new_input(file.path).open() as stream:
        rows: list[dict[str, Any]] = pq.read_table(stream).to_pylist()
    assert len(rows) == file.records
    return rows
