"""Seeds whose rows have times, and expire by them (EXPIRY-1 to EXPIRY-3) while the sink commits;
where the table has a key, deletes mark rows in most of these seeds (KEY-13).

The seeds of ``AGED`` over the real adapter are such, with dice of their own. Marks are made by the
product's own code, and expiry is the product's own, in the hands of the keeper.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField, TimestamptzType
from simulation.climate import drawn
from simulation.keyed_real import AT, BY, COLUMNS, DELETED_AT, NAMES, KeyedRealCatalog, KeyedStorage
from simulation.keys import Keys
from simulation.real_catalog import Call
from support.verdicts import Kind, Violation

from headgate.control_protocol.commit_record_codec import (
    expired_before_ms,
    expired_row_count,
    maintenance_property,
    on_delete_property,
)
from headgate.control_protocol.events import TableStart, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.testing import SourceRecord
from headgate.data_plane.batch.writer_task_plan import SourcePlan
from headgate.data_plane.cdc.envelope_reader import Columns
from headgate.data_plane.cdc.policy import Changes, Envelope
from headgate.data_plane.formats.format_registry import create_record_format
from headgate.data_plane.write.delete_marking import MarkedDeletes
from headgate.kafka.record_fetch import Chunk
from headgate.native.byte_arrays import Packed
from headgate.tables.iceberg.data_file import FileDetail
from headgate.tables.iceberg.maintenance.row_expiry import HOUR_MS, ROW_EXPIRY
from headgate.tables.iceberg.tag_lineage import summary_properties_of

if TYPE_CHECKING:
    from simulation.world import World

AGED = range(750_000, 800_000)

SCHEMA = Schema(
    *COLUMNS.fields,
    *(NestedField(of, NAMES[of], TimestamptzType(), required=False) for of in (AT, DELETED_AT)),
    identifier_field_ids=COLUMNS.identifier_field_ids,
)

MARKS_SHARE = 0.8
TIMELESS_SHARE = 0.1
HOURS = 60
HOUR_EVERY_MS = 300
"""So fast the limit grows: in the time of a seed most of the rows become due."""
BACK_SHARE = 0.2
"""How likely the clock of whoever expires rows is behind, so that its limit is lower."""

_TIME = pa.timestamp("us", tz="UTC")


class Ages:
    """What time each row has, which rows have expired on which snapshot, and how many ever did."""

    def __init__(self, world: World, keys: Keys | None) -> None:
        self._world = world
        dice = random.Random(f"ages in {world.seed}")
        self.marks = keys is not None and dice.random() < MARKS_SHARE
        if keys:
            keys.marks = self.marks
        self.dead_per_thousand = dice.choice((1, 200, 900))
        self._dice = dice
        self._expired: dict[int | None, frozenset[SourceRecord]] = {None: frozenset()}
        """By snapshot, the records whose rows had expired on its way."""
        self._gone: dict[int | None, int] = {None: 0}
        """By snapshot, how many rows had expired on its way."""
        self._total = 0
        self._limit_ms: int | None = None
        self._there: frozenset[SourceRecord] = frozenset()
        """The rows on the branch."""
        self._wrong: Violation | None = None
        self._marked: set[str] = set()
        self._marker: MarkedDeletes | None = None

    def new_catalog(self) -> AgedCatalog:
        """The sink's table; without a key, the numbers of keys are only values."""
        seed = self._world.seed
        keys = self._world.keys or Keys(seed, drawn(random.Random(seed)))
        return AgedCatalog(self, keys, serves=seed % 2 == 0)

    # ---------------------------------------------------------------------------- what rows have

    def time_ms(self, record: SourceRecord) -> int | None:
        """The time by which its row expires."""
        place = (self._world.seed, record.partition, record.offset)
        if hash((*place, 11)) % 1_000 < 1_000 * TIMELESS_SHARE:
            return None
        return hash((*place, 12)) % HOURS * HOUR_MS + hash((*place, 13)) % HOUR_MS

    def marks_of(self, records: Sequence[SourceRecord]) -> pa.Array:
        """What the product's own code marks of them."""
        if not (self.marks and records):
            return pa.nulls(len(records), _TIME)
        keys = self._world.keys
        assert keys is not None
        times = np.array([self.said_ms(each) for each in records], np.int64)
        chunk = Chunk(
            Packed.from_values([b"{}"] * len(records)),
            np.full(len(records), len(b"{}"), np.int64),
            np.zeros(len(records), np.int64),
            np.array([each.offset for each in records], np.int64),
            times,
        )
        self._marker = self._marker or _marker()
        marks, _ = self._marker.deletion_times_and_bad_rows(
            chunk, np.array([keys.deletes(each) for each in records])
        )
        return marks

    def said_ms(self, record: SourceRecord) -> int:
        """When the record was produced."""
        at = TopicPartition(record.topic, record.partition)
        return self._world.oracle.ledger[record.topic_id, at][record.offset]

    def limit_ms(self) -> int:
        """Below which rows are due now; who looks may have a clock that is behind."""
        hours = self._world.clock.now_ms // HOUR_EVERY_MS
        if self._dice.random() < BACK_SHARE:
            hours -= self._dice.randint(1, 9)
        return max(0, hours) * HOUR_MS

    # ------------------------------------------------------------------------ what becomes of them

    @property
    def expired(self) -> frozenset[SourceRecord]:
        """The records that have no row on the branch because it has expired."""
        return self._expired[self._head]

    @property
    def gone(self) -> int:
        """How many rows have expired on the branch's way."""
        return self._gone[self._head]

    @property
    def _head(self) -> int | None:
        head: int | None = self._world.catalog.metadata.current_snapshot_id
        return head

    def created(self) -> None:
        """The table is a new one."""
        self._total, self._limit_ms, self._there = 0, None, frozenset()

    def landed(self, before: int | None) -> None:
        """A call has changed the table, whose head was ``before``.

        What is wrong is told by ``look``: who made the call may take it for an unknown outcome.
        """
        catalog = self._world.catalog
        head = catalog.metadata.current_snapshot()
        if head is not None and head.snapshot_id != before:
            there, self._there = self._there, frozenset(catalog.visible_rows())
            if head.snapshot_id not in self._expired:
                self._follow(head, there)
            self._tell(self._wrong_marks(catalog))
        self._tell(self._wrong_properties())

    def look(self) -> None:
        """Raises ``Violation``."""
        if self._wrong is not None:
            raise self._wrong

    def _tell(self, wrong: Violation | None) -> None:
        self._wrong = self._wrong or wrong

    def _follow(self, head: Snapshot, there: frozenset[SourceRecord]) -> None:
        summary, sink = summary_properties_of(head), self._world.sink
        gone = frozenset[SourceRecord]()
        if summary.get(maintenance_property(sink)) == ROW_EXPIRY:
            self._world.struck["rows expired"] += 1
            gone = there - self._there
            limit_ms, count = expired_before_ms(sink, summary), expired_row_count(sink, summary)
            assert limit_ms is not None
            self._total += len(gone)
            self._limit_ms = max(limit_ms, self._limit_ms or 0)
            self._tell(self._wrong_rows(gone, self._there - there, limit_ms, count))
        parent = head.parent_snapshot_id
        self._expired[head.snapshot_id] = self._expired.get(parent, frozenset()) | gone
        self._gone[head.snapshot_id] = self._gone.get(parent, 0) + len(gone)

    def _wrong_rows(
        self,
        gone: frozenset[SourceRecord],
        new: frozenset[SourceRecord],
        limit_ms: int,
        count: int,
    ) -> Violation | None:
        if young := sorted(each for each in gone if not self._is_below(each, limit_ms)):
            return Violation(Kind.LOSS, f"rows expired before their time: {young[:5]}")
        if new:
            return Violation(Kind.DOUBLE, f"rows came by expiry: {sorted(new)[:5]}")
        if len(gone) != count:
            return Violation(Kind.UNTRUTH, f"{len(gone)} rows expired, and {count} were counted")
        return None

    def _is_below(self, record: SourceRecord, limit_ms: int) -> bool:
        at_ms = self.time_ms(record)
        return at_ms is not None and at_ms < limit_ms

    def _wrong_properties(self) -> Violation | None:
        """EXPIRY-1 and EXPIRY-3: the table knows the highest limit, and the sum."""
        sink, properties = self._world.sink, self._world.catalog.metadata.properties
        stored = expired_before_ms(sink, properties), expired_row_count(sink, properties)
        known = self._limit_ms, self._total
        if stored == known:
            return None
        return Violation(Kind.UNTRUTH, f"limit and sum of expired rows: {known}, not {stored}")

    def _wrong_marks(self, catalog: AgedCatalog) -> Violation | None:
        """KEY-13: what deletes has its record's time, what lives has none."""
        keys = self._world.keys
        if not self.marks or keys is None:
            return None
        for path, records in catalog.live_files():
            if path in self._marked:
                continue
            self._marked.add(path)
            whole = pq.read_table(io.BytesIO(catalog.storage.content(path)))
            marks = whole.column(NAMES[DELETED_AT]).cast(pa.timestamp("ms", tz="UTC"))
            for record, mark in zip(records, marks.cast(pa.int64()).to_pylist(), strict=True):
                right = self.said_ms(record) if keys.deletes(record) else None
                if mark != right:
                    what = f"{record} is marked {mark}, and should be {right}"
                    return Violation(Kind.UNTRUTH, what)
        return None

    def is_chosen(self, known: bool) -> None:
        """KEY-13: a table that was claimed says what deletes do. Raises ``Violation``."""
        properties = self._world.catalog.metadata.properties
        text = properties.get(on_delete_property(self._world.sink))
        if known and self.marks and (not text or json.loads(text)["marks"] != DELETED_AT):
            raise Violation(Kind.UNTRUTH, f"deletes mark rows, and the table says {text}")


def _marker() -> MarkedDeletes:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field(NAMES[DELETED_AT], _TIME)])
    changes = Changes(BY.key, Envelope.PLAIN, deleted_at=NAMES[DELETED_AT])
    columns = Columns(schema, BY.key, {}, lambda: create_record_format("json", {}))
    start = TableStart("lake.records", "", 0, 0, "")
    first = TransactionId(Epoch(1), TransactionNumber(1))
    batch = Batch(1, first, start, {TopicPartition("source", 0): OffsetRange(0, 0)}, 1)
    return MarkedDeletes(SourcePlan({}, changes=changes), schema, columns, batch)


class AgedStorage(KeyedStorage):
    """Its files of rows have times, and most of them bounds of these."""

    def __init__(self, ages: Ages, keys: Keys) -> None:
        super().__init__(keys)
        self._ages = ages

    def write(self, prefix: str, records: list[SourceRecord]) -> WrittenFile:
        file = super().write(prefix, records)
        times = [self._ages.time_ms(record) for record in records]
        known = [each * 1_000 for each in times if each is not None]
        if not known or len(self.files) % 7 == 0:
            return file  # as writers do that keep no bounds
        kind = TimestamptzType()
        detail = FileDetail(
            value_counts={AT: len(times)},
            null_value_counts={AT: len(times) - len(known)},
            lower_bounds={AT: to_bytes(kind, min(known))},
            upper_bounds={AT: to_bytes(kind, max(known))},
        )
        return detail.to_written_file(file.path, file.records, file.size_bytes)

    def more_columns(self, records: list[SourceRecord]) -> dict[int | str, pa.Array]:
        times = [self._ages.time_ms(record) for record in records]
        micros = [None if each is None else each * 1_000 for each in times]
        return {AT: pa.array(micros, _TIME), DELETED_AT: self._ages.marks_of(records)}


class AgedCatalog(KeyedRealCatalog):
    """A table whose rows have times; each call that lands is shown to ``Ages``."""

    columns = SCHEMA

    def __init__(self, ages: Ages, keys: Keys, *, serves: bool) -> None:
        self._ages = ages
        super().__init__(keys, "lake.records", serves=serves, beside=AgedStorage(ages, keys))

    def _create(self) -> None:
        super()._create()
        self._ages.created()

    def call(self, call: Call, by: object = None) -> CommitTableResponse:
        before = self.metadata.current_snapshot_id
        answer = super().call(call, by)
        self._ages.landed(before)
        return answer

    def live_files(self) -> Iterator[tuple[str, list[SourceRecord]]]:
        for file in self.files():
            yield file.path, self.storage.files[file.path]
