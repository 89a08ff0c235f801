"""Collects the columns that records need of tables still to be made (rules N1, N2, S2).

Nothing is written of a batch with such records: its table is proposed, and the batch is repeated
once the table exists.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol, cast

import pyarrow as pa

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.events import Destination
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.table_changes import TableNeed
from headgate.data.formats.lookout import Lookout, WatchfulFormat
from headgate.data.formats.port import NOTHING, RecordFormat, UndecodableRecords
from headgate.data.formats.registry import ValueOptions, record_format
from headgate.data.writers.needs import Evolution, Needs
from headgate.data.writers.routed_table import Making
from headgate.kafka.fetch import Chunk
from headgate.participant.settings import SchemaPolicy, UnknownFields

_EVERYTHING = SchemaPolicy(UnknownFields.EVOLVE)


_NO_COLUMNS = pa.schema([])


class _Format(RecordFormat, WatchfulFormat, Protocol):
    """A format that reports on what it decoded last."""


class Newcomer:
    """One table to be made, and what a batch's records need of it."""

    def __init__(
        self, name: str, raw: str, making: Making, partitions: Sequence[TopicPartition]
    ) -> None:
        self._at = Destination(name)
        self._raw = raw
        self._records = 0
        source = making.source
        options = ValueOptions.taken(source.format_options)
        taken = source.record_columns.values()
        lookout = Lookout(_NO_COLUMNS, taken, (), caseless=options.caseless)
        self._needs = Needs(Evolution(_EVERYTHING, Struct()), lookout, partitions)
        self._format: _Format | None = None
        if not making.declared:
            made = record_format(source.format_name, options.of_format)
            self._format = cast("_Format", made)
            self._format.watch(lookout)

    def take(self, chunk: Chunk) -> None:
        """Note what the chunk's records need: all of them wait for the table."""
        self._records += len(chunk.offsets)
        self._needs.note_all(chunk)
        if self._format is not None:
            bad: Collection[int] = ()
            try:
                self._format.decode(chunk.values, NOTHING)
            except UndecodableRecords as error:
                bad = error.bad
            self._needs.take(chunk, self._format.lacking(chunk.values, bad))

    @property
    def need(self) -> TableNeed:
        """Return all that was noted; without columns where no record shows any."""
        return replace(self._needs.of_table(self._at, self._raw), records=self._records)
