"""What becomes of the records of one table, where routes name many: rows, or changes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from headgate.control_protocol.ports import Batch
from headgate.data.writers.aside import Aside
from headgate.data.writers.changed_rows import ChangedRows
from headgate.data.writers.data_files import file_shape
from headgate.data.writers.decoding import Decoding
from headgate.data.writers.many_files import TableFiles, TableOutlet
from headgate.data.writers.needs import Needs
from headgate.data.writers.plan import WriterPlan
from headgate.data.writers.routed_table import RoutedTable
from headgate.data.writers.sieve import Sieve
from headgate.kafka.fetch import Chunk
from headgate.native.loops import Integers


class TableReading(Protocol):
    """The records of one table of a batch, on their way.

    By place of the batch's ranges: ``records`` became rows, those ``deleted`` are in key files.
    """

    @property
    def records(self) -> Integers: ...

    @property
    def deleted(self) -> Integers: ...

    @property
    def needs(self) -> Needs | None:
        """What the table lacks for some of them (S2)."""

    def take(self, chunk: Chunk, *, in_vain: bool) -> None:
        """Take sifted records. ``in_vain``: nothing of this attempt will count, only needs."""

    def ignored(self) -> Mapping[str, int]:
        """As ``Decoding.ignored``."""


class RowReading:
    """Each record adds a row."""

    def __init__(
        self,
        known: RoutedTable,
        plan: WriterPlan,
        batch: Batch,
        *,
        aside: Aside,
        outlet: TableOutlet,
    ) -> None:
        self._outlet = outlet
        self._decoding = Decoding(
            plan.source,
            batch,
            file_shape(plan).arrow_schema,
            plan.name_mapping(),
            aside=aside,
            evolution=plan.watched_for(known.refused),
            values=plan.values,
        )
        self.deleted = np.zeros(len(batch.ranges), np.int64)

    @property
    def records(self) -> Integers:
        return self._decoding.records

    @property
    def needs(self) -> Needs | None:
        return self._decoding.needs

    def take(self, chunk: Chunk, *, in_vain: bool) -> None:
        decoded = self._decoding.rows_of(chunk)
        if not (in_vain or self._decoding.needs):
            self._outlet.take(decoded)

    def ignored(self) -> Mapping[str, int]:
        return self._decoding.ignored()


class ChangeTaking:
    """Records replace and delete rows of their key (rule U2)."""

    def __init__(
        self,
        known: RoutedTable,
        plan: WriterPlan,
        batch: Batch,
        *,
        aside: Aside,
        outlet: TableFiles,
    ) -> None:
        changes = plan.source.changes
        assert changes is not None, "chosen for it"
        assert outlet.keys is not None, "the plan is the same"
        self._changes = changes
        self._sieve = Sieve(batch, aside)
        self._changed = ChangedRows(
            plan,
            batch,
            file_shape(plan).arrow_schema,
            aside=aside,
            rows=outlet.rows,
            keys=outlet.keys,
            evolution=plan.watched_for(known.refused),
        )

    @property
    def needs(self) -> Needs | None:
        return self._changed.needs

    @property
    def records(self) -> Integers:
        return self._changed.records

    @property
    def deleted(self) -> Integers:
        return self._changed.deleted

    def take(self, chunk: Chunk, *, in_vain: bool) -> None:
        if in_vain and self.needs is None:
            return
        if disposal := self._changes.tombstones.disposal:
            chunk = self._sieve.without_tombstones(chunk, disposal)
        self._changed.take(chunk)

    def ignored(self) -> Mapping[str, int]:
        return self._changed.ignored()


def reading_of(
    known: RoutedTable, plan: WriterPlan, batch: Batch, *, aside: Aside, outlet: TableOutlet
) -> TableReading:
    """What is to become of the table's records. Raises ``ConfigurationError``."""
    if plan.source.changes is None:
        return RowReading(known, plan, batch, aside=aside, outlet=outlet)
    assert isinstance(outlet, TableFiles), "changes are written where they are read"
    return ChangeTaking(known, plan, batch, aside=aside, outlet=outlet)
