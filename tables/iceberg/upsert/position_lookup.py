"""Finds the rows that die when a commit's records come in, against one head (KEY-3, KEY-8, KEY-9).

The last record of a key wins: within one partition that with the higher offset, of several
transactions one of the last, and over rows of older partitions one of a younger. Every other row of
the key dies, live ones of the head and earlier ones of the same commit. The result belongs to that
head and to no other (KEY-5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.errors import KeyInTwoPartitions, KeyTwice
from headgate.native.kernels import Words
from headgate.tables.iceberg.upsert.key_index import (
    FileKeys,
    KeyIndex,
    Numbers,
    group_by_number,
    order_and_sorted_words,
)
from headgate.tables.iceberg.upsert.key_reader import Sources
from headgate.tables.iceberg.upsert.position_deletes import bitmap_of, sorted_positions_of


@dataclass(frozen=True, slots=True)
class Change:
    """A file of a commit: its rows replace those of their keys, or (``deletes``) its keys die.

    ``transaction``: the ordinal of the one that decided it, where a delivery brings several. A
    later one's records are newer whatever their offsets: a re-created topic begins at 0 again.
    """

    path: str
    keys: FileKeys
    deletes: bool = False
    transaction: int = 0


@dataclass(frozen=True, slots=True)
class Resolution:
    """``dead``: all dead positions of the data files in which rows die now; ``counts``: the effects
    of the records. ``doubled`` keys had several live rows, which somebody else wrote."""

    dead: dict[str, BitMap64] = field(default_factory=dict)
    counts: KeyCounts = field(default_factory=KeyCounts)
    doubled: int = 0


@dataclass(frozen=True, slots=True)
class _Records:
    """The records of a commit, as its files have them."""

    high: Words
    low: Words
    sources: npt.NDArray[np.int32]
    offsets: Numbers
    rows: Numbers
    changes: npt.NDArray[np.int32]
    transactions: Numbers

    @classmethod
    def from_changes(cls, changes: Sequence[Change]) -> _Records:
        numbers = [np.full(len(change.keys), n, np.int32) for n, change in enumerate(changes)]
        decided = [np.full(len(change.keys), change.transaction, np.int64) for change in changes]
        return cls(
            np.concatenate([change.keys.high for change in changes]),
            np.concatenate([change.keys.low for change in changes]),
            np.concatenate([change.keys.sources for change in changes]),
            np.concatenate([change.keys.offsets for change in changes]),
            np.concatenate([_row_positions(change) for change in changes]),
            np.concatenate(numbers),
            np.concatenate(decided),
        )

    def places_and_words_in_key_order(self) -> tuple[Numbers, Words]:
        """Return the records' places in the order of their keys, and the high words in it.

        The newest record of each key comes last. Few have the same high word, as a rule: to sort
        all by five columns takes six times as long.
        """
        order, high = order_and_sorted_words(self.high)
        same = high[1:] == high[:-1]
        at = np.flatnonzero(np.append(same, False) | np.append(False, same))
        alike = order[at]
        newest = (self.rows[alike] >= 0, self.offsets[alike], self.transactions[alike])
        order[at] = alike[np.lexsort((*newest, self.low[alike], self.high[alike]))]
        return order, high


def resolve_changes(
    index: KeyIndex,
    changes: Sequence[Change],
    dead_positions_of: Callable[[str], BitMap64],
    sources: Sources,
) -> Resolution:
    """Resolve the changes on the head at which ``index`` stands.

    ``dead_positions_of`` returns the positions of its files that are dead already. Raises
    ``KeyInTwoPartitions``, ``KeyTwice``, and what ``dead_positions_of`` raises.
    """
    if not any(len(change.keys) for change in changes):
        return Resolution()
    records = _Records.from_changes(changes)
    order, high = records.places_and_words_in_key_order()
    low = records.low[order]
    follows = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    older = order[:-1][follows]
    newer = order[1:][follows]
    _require_one_source_per_key(records, older, newer, sources)
    _require_key_once_per_record(records, older, newer, sources)
    killed: dict[str, BitMap64] = {}
    lost = older[records.rows[older] >= 0]
    for number, positions in group_by_number(records.changes[lost], records.rows[lost]):
        killed[changes[number].path] = bitmap_of(positions)
    last = np.append(~follows, True)
    winners = order[last]
    found = index.find_rows(high[last], low[last])
    hits = np.zeros(len(winners), np.int64)
    for number, places in group_by_number(found.files, np.arange(len(found.files))):
        path = index.path_of_file(number)
        before = dead_positions_of(path)
        alive = places[~np.isin(found.positions[places], sorted_positions_of(before))]
        if len(alive):
            asked = found.asked[alive]
            _require_same_source_as_live_rows(
                records, winners[asked], found.sources[alive], sources
            )
            np.add.at(hits, asked, 1)
            killed[path] = before | bitmap_of(found.positions[alive])
    counts = _count_effects_on_keys(records.rows[winners], hits, len(order))
    return Resolution(killed, counts, int((hits > 1).sum()))


def _row_positions(change: Change) -> Numbers:
    """Return the position of each record's row; a record that deletes has none."""
    count = len(change.keys)
    return np.full(count, -1, np.int64) if change.deletes else np.arange(count, dtype=np.int64)


def _count_effects_on_keys(
    last_rows: Numbers, replaced_counts: Numbers, record_count: int
) -> KeyCounts:
    """Count what happens to the records: only the last one of each key does anything.

    ``last_rows``: its row, -1 for a delete; ``replaced_counts``: how many live rows it replaces.
    """
    deletes, found = last_rows < 0, replaced_counts > 0
    return KeyCounts(
        inserted=int((~deletes & ~found).sum()),
        updated=int((~deletes & found).sum()),
        deleted=int((deletes & found).sum()),
        absent=int((deletes & ~found).sum()),
        superseded=record_count - len(last_rows),
    )


def _require_one_source_per_key(
    records: _Records, older: Numbers, newer: Numbers, sources: Sources
) -> None:
    """KEY-8: refuse a key in two partitions within the commit, unless a later transaction is of the
    younger one: all that the older one held was decided before."""
    before, now = records.sources[older], records.sources[newer]
    crossed = np.flatnonzero(before != now)
    if len(crossed):
        later = records.transactions[newer[crossed]] > records.transactions[older[crossed]]
        crossed = crossed[~(sources.younger_partition_mask(now[crossed], before[crossed]) & later)]
    if len(crossed):
        one, other = (
            _describe_record(records, int(at[crossed[0]]), sources) for at in (older, newer)
        )
        raise _two_partitions_error(f"the records at {one} and {other} have the same key")


def _require_key_once_per_record(
    records: _Records, older: Numbers, newer: Numbers, sources: Sources
) -> None:
    """QUERY-24: refuse two changes of a key by one record, or by one batch that has none."""
    same = np.ones(len(older), np.bool_)
    for places in (records.sources, records.offsets, records.transactions):
        same &= places[older] == places[newer]
    if same.any():
        record = _describe_record(records, int(newer[np.argmax(same)]), sources)
        raise KeyTwice(
            f"two changes of one key are of the same record, {record}: no order tells which one "
            "counts; nothing was committed",
            "let the query make at most one row of each key: of a record, or of a batch where it "
            "is stateful (a group by the key does)",
        )


def _require_same_source_as_live_rows(
    records: _Records, winners: Numbers, before: npt.NDArray[np.int32], sources: Sources
) -> None:
    """KEY-8: refuse a key whose live row came from elsewhere, but for a partition that is older:
    else no order tells which one is newer."""
    now = records.sources[winners]
    crossed = np.flatnonzero((before >= 0) & (before != now))
    if len(crossed):
        crossed = crossed[~sources.younger_partition_mask(now[crossed], before[crossed])]
    if len(crossed):
        record = _describe_record(records, int(winners[crossed[0]]), sources)
        source = sources.describe_source(int(before[crossed[0]]))
        raise _two_partitions_error(f"the record at {record} has the key of a row from {source}")


def _describe_record(records: _Records, at: int, sources: Sources) -> str:
    return f"{sources.describe_source(int(records.sources[at]))}@{records.offsets[at]}"


def _two_partitions_error(what: str) -> KeyInTwoPartitions:
    return KeyInTwoPartitions(
        f"{what}, and no order tells which one is newer; nothing was committed",
        "have the producer send all records of a key to one partition",
    )
