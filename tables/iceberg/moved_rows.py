"""Tracks rows whose files were rewritten, and which of them died meanwhile (U11). Pure.

Data files never change, so a row is its file and its position. A rewrite leaves out the rows that
were dead when it began: the n-th of the others, in the order they were read, is the n-th that was
written, or where it was sorted to. What later delete files say of an old position holds for the new
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap64

from headgate.tables.iceberg.keyed.delete_files import Positions, bitmap_of, positions_of


@dataclass(frozen=True, slots=True)
class Source:
    """A data file whose rows were rewritten, except ``dead`` ones. ``records`` counts those too."""

    path: str
    records: int
    dead: BitMap64

    @property
    def alive(self) -> int:
        return self.records - len(self.dead)


@dataclass(frozen=True, slots=True)
class MovedRows:
    """The live rows of the ``sources``, in this order, are those of the ``files``: path and rows.

    ``places``: the number of the written row for the n-th row read; ``None``: the n-th.
    """

    sources: tuple[Source, ...]
    files: tuple[tuple[str, int], ...]
    places: Positions | None = None

    def died(self, dead: Callable[[str], BitMap64]) -> dict[str, BitMap64] | None:
        """Return the positions of the new files whose rows are dead now, by ``dead`` of their
        sources.

        ``None`` if a row that was left out lives again. Raises what ``dead`` raises.
        """
        found, begin = [np.empty(0, np.int64)], 0
        for source in self.sources:
            now = dead(source.path)
            if source.dead - now:
                return None
            died = positions_of(now - source.dead)
            found.append(begin + died - np.searchsorted(positions_of(source.dead), died))
            begin += source.alive
        numbers = np.concatenate(found)
        written = np.sort(numbers if self.places is None else self.places[numbers])
        return dict(self._in_files(written))

    def _in_files(self, written: Positions) -> Sequence[tuple[str, BitMap64]]:
        """Turn sorted row numbers into positions of the files that have them."""
        ends = np.cumsum([rows for _, rows in self.files])
        parts = np.split(written, np.searchsorted(written, ends)[:-1]) if self.files else []
        begins = [0, *ends.tolist()]
        return [
            (path, bitmap_of(part - begin))
            for (path, _), part, begin in zip(self.files, parts, begins, strict=False)
            if len(part)
        ]
