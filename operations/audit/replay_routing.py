"""A source's records told apart by the sink's routes: which keyed table each is of, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.data_plane.batch.record_numbers import bitmap_of
from headgate.data_plane.batch.write_plan import SourcePlan
from headgate.data_plane.routing.router import Router
from headgate.kafka.record_fetch import Chunk


@dataclass(slots=True)
class Others:
    """Offsets of records that are of no table of a fold: the sink passed over those ``let_go``,
    and what the ``absent`` ones came to nobody can see. The rest is rows of other tables."""

    let_go: dict[TopicPartition, BitMap64] = field(default_factory=dict)
    absent: dict[TopicPartition, BitMap64] = field(default_factory=dict)


class RoutedShares:
    """``Shares`` of one batch, by the sink's own code; what is in no fold is noted in ``others``.

    ``tables``: the names of the folds, each with the offsets up to which its records count.
    """

    def __init__(
        self,
        source: SourcePlan,
        batch: Batch,
        tables: Sequence[tuple[str, Offsets]],
        others: Others,
    ) -> None:
        assert source.routing is not None, "chosen for it"
        self._handling, self._routing = source.handling, source.routing
        self._partitions = list(batch.ranges)
        self._numbers = {name: number for number, (name, _) in enumerate(tables)}
        self._ends = [
            np.array([upto.get(at, 0) for at in self._partitions], np.int64) for _, upto in tables
        ]
        self._others = others
        self._router = Router(source, batch, self._note_bad)

    def __call__(self, chunk: Chunk) -> Iterator[tuple[int, Chunk]]:
        for target, some in self._router.split(chunk):
            if target is None:
                self._note_unmatched(some)
            elif (number := self._numbers.get(target.table)) is not None:
                delivered = some.offsets < self._ends[number][some.places]
                yield number, some.where(delivered)
                self._note(self._others.absent, some.where(~delivered))
            elif self._routing.key_of(target.table):
                self._note(self._others.absent, some)
            elif self._handling.tombstones is Disposal.SKIP:
                self._note(self._others.let_go, _empty(some))

    def _note_unmatched(self, chunk: Chunk) -> None:
        untold = self._handling.unrouted_tombstones or self._handling.unmatched
        if untold is Disposal.SKIP:
            self._note(self._others.let_go, _empty(chunk))
        if self._handling.unmatched is Disposal.SKIP:
            there = np.asarray(chunk.values.array.is_valid())
            self._note(self._others.let_go, chunk.where(there))

    def _note_bad(self, chunk: Chunk, bad: Mapping[int, str]) -> None:
        if self._handling.policy is Disposal.SKIP:
            wanted = np.zeros(len(chunk.offsets), np.bool_)
            wanted[list(bad)] = True
            self._note(self._others.let_go, chunk.where(wanted))

    def _note(self, into: dict[TopicPartition, BitMap64], chunk: Chunk) -> None:
        for place in np.unique(chunk.places).tolist():
            found = bitmap_of(pa.array(chunk.offsets[chunk.places == place]))
            at = self._partitions[place]
            into[at] = into.get(at, BitMap64()) | found


def _empty(chunk: Chunk) -> Chunk:
    """The records without a value."""
    return chunk.where(np.asarray(chunk.values.array.is_null()))
