"""Audits keyed tables that routes name: each by itself, and against the fold of its topics.

Records of a topic go to a single table, because routes look only at topics if a table has a key. So
the topics of a keyed table are folded and compared with that table, and with nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from pyroaring import BitMap64

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.record import CommitRecord
from headgate.control_protocol.table_history import History, LiveFile, TableReader
from headgate.operations.audit_files import OnProgress
from headgate.operations.audit_fold import FoldEvidence, SourceRanges, fold_and_compare
from headgate.operations.audit_keys import (
    DEATHS_UNTOLD,
    NOT_FOLDED,
    Told,
    told_of_deaths,
    told_of_fold,
    told_of_keys,
    told_of_rows,
)
from headgate.operations.audit_report import PartitionAudit
from headgate.operations.fold.comparison import Fault
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.reader import IcebergReader


@dataclass(slots=True)
class KeyedFollower:
    """One keyed table. ``offsets``: how far it was paid.

    ``fold``: its comparison, for an Iceberg ``reader``.
    """

    name: str
    reader: IcebergReader | None
    history: History
    offsets: Offsets
    whole: bool = True
    fold: FoldEvidence | None = None


@dataclass(slots=True)
class KeyedFollowers:
    """The keyed tables of one sink; findings about them go to ``told``."""

    settings: SinkSettings
    on_progress: OnProgress
    told: Told = field(default_factory=Told)
    tables: dict[str, KeyedFollower] = field(default_factory=dict)

    def has(self, table: str) -> bool:
        return bool(self.settings.tables.routing.key_of(table))

    def table_of(self, topic: str) -> str | None:
        """Return the keyed table that receives the records of a topic."""
        target = self.settings.tables.routing.named_by(topic)
        return target.table if target is not None and self.has(target.table) else None

    def examine(
        self, reader: TableReader, history: History, files: list[LiveFile], *, damaged: bool
    ) -> None:
        """Examine the table alone: commits, rows and keys; only Iceberg shows which rows died."""
        name = history.table
        known = reader if isinstance(reader, IcebergReader) else None
        whole = known is not None and not damaged
        self.tables[name] = KeyedFollower(name, known, history, _paid_upto(history), whole)
        if known is not None:
            self._say(name, told_of_deaths(known, history, self.on_progress))
        else:
            self.told.unproven.append(f"{name}: {DEATHS_UNTOLD}")
        live_rows = sum(-file.records if file.deletes else file.records for file in files)
        self._say(name, told_of_rows(history, live_rows))
        if damaged:
            text = f"{name}: files are missing or damaged: keys and rows were not read"
            self.told.unproven.append(text)
            return
        key = self.settings.tables.routing.key_of(name)
        memory_bytes = self.settings.changes.index_memory_bytes
        self._say(name, told_of_keys(reader, history, files, key=key, memory_bytes=memory_bytes))

    def fold(
        self,
        record: CommitRecord,
        lead: str,
        ranges: Mapping[TopicPartition, OffsetRange],
        left_out: Mapping[TopicPartition, BitMap64],
    ) -> None:
        """Compare each table with its topics, as far as it was paid.

        ``ranges``: of the source, up to the offsets of the ``record`` of the ``lead``, a table's
        UUID; ``left_out``: records that never were changes.
        """
        late = {debt.table for debt in record.lapsed}
        for name, table in sorted(self.tables.items()):
            if name in late:
                self.told.unproven.append(
                    f"{name}: changes that were owed for too long never came: {NOT_FOLDED}"
                )
                continue
            upto = table.offsets if _owed(record, lead, table) else record.offsets
            own = {
                at: OffsetRange(span.begin, max(span.begin, min(span.end, upto.get(at, 0))))
                for at, span in ranges.items()
                if self.table_of(at.topic) == name
            }
            if table.whole and own:
                source = SourceRanges(own, record.topic_ids, left_out, record.generations)
                self._compare(table, source)

    def _compare(self, table: KeyedFollower, source: SourceRanges) -> None:
        try:
            table.fold = fold_and_compare(
                self.settings,
                cast("IcebergReader", table.reader),
                source,
                lambda records: self.on_progress("source records", records, 0),
            )
        except (ValueError, NotImplementedError) as error:
            self.told.unproven.append(f"{table.name}: the rows cannot be compared here: {error}")
        except HeadgateError as error:
            text = f"{table.name}: the source was not folded: {error.message}"
            self.told.unproven.append(text)

    def weigh(self, compacted: Mapping[str, bool | None], skipped: int) -> None:
        """Report the results of the comparisons. ``skipped``: records that the sink skipped."""
        harmless = sum(
            table.fold.read.passed_over + table.fold.read.bad
            for table in self.tables.values()
            if table.fold
        )
        for name, table in sorted(self.tables.items()):
            if table.fold is None:
                self.told.unproven.append(f"{name}: {NOT_FOLDED}")
            else:
                weighed = told_of_fold(table.fold, table.history, compacted, skipped - harmless)
                self._say(name, weighed)

    def judged(self, partition: PartitionAudit) -> PartitionAudit:
        """Return the partition with the findings of its table's comparison."""
        at = TopicPartition(partition.topic, partition.partition)
        table = self.tables.get(self.table_of(at.topic) or "")
        if table is None or table.fold is None or at not in table.fold.read.offsets:
            return partition
        return replace(
            partition,
            produced=len(table.fold.read.offsets[at]),
            lost=table.fold.of(at, Fault.LOST),
            invented=table.fold.of(at, Fault.INVENTED),
        )

    def _say(self, name: str, said: Told) -> None:
        told = self.told
        told.findings += [replace(f, evidence=f"{name}: {f.evidence}") for f in said.findings]
        told.proven += [f"{name}: {text}" for text in said.proven]
        told.unproven += [f"{name}: {text}" for text in said.unproven]
        told.expired += [f"{name}: {text}" for text in said.expired]


def _owed(record: CommitRecord, lead: str, table: KeyedFollower) -> bool:
    """Return whether the table lacks something that was decided (D6)."""
    paid = table.history.record
    owed = [debt for debt in record.debts if debt.table == table.name and debt.manifest]
    return any(paid is None or not paid.pays(debt, lead) for debt in owed)


def _paid_upto(history: History) -> Offsets:
    return history.record.offsets if history.record else Offsets()
