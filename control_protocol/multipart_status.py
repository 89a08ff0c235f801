"""Splits a status too large for one message, and joins it again (rules LOG-2, ANSWER-1).

A status is the sum of its parts: any subset of its ranges, files, troubles of tables and unknown
partitions is itself a status, and all subsets together are the whole. It counts once, at its last
missing part.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from headgate.control_protocol import message_encoding
from headgate.control_protocol.errors import StopSink
from headgate.control_protocol.event_codec import PARTS_MAX
from headgate.control_protocol.events import (
    Envelope,
    TableStatus,
    WriteStatus,
    WrittenFile,
    WrittenRange,
)
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicPartition,
    TransactionNumber,
)

PART_BYTES_MAX = 880_000
"""Leaves 40 kB of a message to the envelope, whose names are the user's."""

STATUS_BYTES_MAX = 128 * 1024 * 1024
"""The limit of a whole status, in all its parts: some 40,000 files of a hundred columns."""

HELD_BYTES_MAX = 2 * STATUS_BYTES_MAX
_RANGES_PER_PIECE = 500
_TROUBLES_PER_PIECE = 20
"""Each has up to ``REASON_CHARACTERS_MAX`` characters of up to four bytes."""
_SMALLER = "keep statistics of fewer columns (write.metadata.metrics.*), or lower files_max"
_Item = TypeVar("_Item")


def split_status(status: WriteStatus, part_bytes_max: int = PART_BYTES_MAX) -> list[WriteStatus]:
    """Split the status into parts of at most so many encoded bytes each, ranges before files.

    Raises ``StopSink`` when one file alone is larger than a part (more than some 10,000 columns
    with statistics), or the whole needs more than ``PARTS_MAX`` parts.
    """
    piles: list[list[WriteStatus]] = [[]]
    pile_bytes = whole_bytes = 0
    for piece in _split_into_smallest(status):
        # a sum is never larger than its pieces, for it shares names
        piece_bytes = _encoded_size_bytes(piece)
        if piece_bytes > part_bytes_max:
            raise StopSink(
                f"{_describe_piece(piece)} needs {piece_bytes} bytes, more than a whole part",
                _SMALLER,
            )
        if pile_bytes + piece_bytes > part_bytes_max:
            piles.append([])
            pile_bytes = 0
        piles[-1].append(piece)
        pile_bytes += piece_bytes
        whole_bytes += piece_bytes
    if len(piles) > PARTS_MAX or whole_bytes > STATUS_BYTES_MAX:
        raise StopSink(
            f"a status of {len(piles)} parts with {whole_bytes} bytes is too large, at most "
            f"{PARTS_MAX} with {STATUS_BYTES_MAX}",
            _SMALLER,
        )
    return [replace(_merge_pieces(pile), part=k, parts=len(piles)) for k, pile in enumerate(piles)]


@dataclass(slots=True)
class Assembler:
    """Collects parts per sender and status number until a status is whole.

    Memory is bounded by ``held_bytes_max`` encoded bytes of incomplete statuses; beyond it the
    status that waited longest for a next part is forgotten. That costs a repetition, never a row:
    only whole statuses count.
    """

    held_bytes_max: int = HELD_BYTES_MAX
    _piles: OrderedDict[_Key, dict[int, _Part]] = field(default_factory=OrderedDict)
    _held: int = 0

    def add_and_pop_if_whole(self, envelope: Envelope) -> Envelope | None:
        """Return the envelope with its whole event, or ``None`` while parts are missing.

        An event that needs no parts passes as it is. A status that was repeated in all its parts is
        whole again: its ranges decide whether it still counts.
        """
        status = envelope.event
        if not isinstance(status, WriteStatus) or status.parts == 1:
            return envelope
        pile = self._add_part_and_pop_if_whole(_key_of(envelope, status), status)
        if pile is None:
            return None
        try:
            whole = _merge_pieces(pile[k].status for k in range(status.parts))
        except ValueError:
            return None  # parts that contradict each other come from no sender of ours
        return replace(envelope, event=whole)

    def _add_part_and_pop_if_whole(self, key: _Key, status: WriteStatus) -> dict[int, _Part] | None:
        """Keep the part; return and forget all of the status if it was the last missing one.

        May drop the oldest others.
        """
        pile = self._piles.setdefault(key, {})
        self._piles.move_to_end(key)
        if status.part not in pile:
            part = pile[status.part] = _Part(status, _encoded_size_bytes(status))
            self._held += part.encoded_bytes
        if len(pile) == status.parts:
            return self._pop_parts(key)
        while self._held > self.held_bytes_max:
            self._pop_parts(next(iter(self._piles)))
        return None

    def _pop_parts(self, key: _Key) -> dict[int, _Part]:
        pile = self._piles.pop(key)
        self._held -= sum(part.encoded_bytes for part in pile.values())
        return pile


@dataclass(frozen=True, slots=True)
class _Part:
    status: WriteStatus
    encoded_bytes: int


_Key = tuple[SinkName, Epoch, Sender, int, int]


def _key_of(envelope: Envelope, status: WriteStatus) -> _Key:
    number, parts = status.status_number, status.parts
    return envelope.sink, envelope.epoch, envelope.sender, number, parts


# -------------------------------------------------------------------------------------- pieces


def _split_into_smallest(status: WriteStatus) -> Iterator[WriteStatus]:
    """Yield the smallest statuses whose sum is this one, the files last."""
    empty = WriteStatus(status.status_number)
    yield replace(empty, failure=status.failure)
    for troubles in _split_into_chunks(sorted(status.troubles.items()), _TROUBLES_PER_PIECE):
        yield replace(empty, troubles=dict(troubles))
    for written in _split_into_chunks(sorted(status.written.items())):
        yield replace(empty, written=dict(written))
    for unknown in _split_into_chunks(sorted(status.unknown)):
        yield replace(empty, unknown=frozenset(unknown))
    for table in status.tables:
        yield replace(empty, tables=(replace(table, files=()),))
        for file in table.files:
            yield replace(empty, tables=(replace(table, files=(file,)),))


def _split_into_chunks(
    items: Iterable[_Item], chunk_size: int = _RANGES_PER_PIECE
) -> Iterator[list[_Item]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, chunk_size)):
        yield chunk


def _merge_pieces(pieces: Iterable[WriteStatus]) -> WriteStatus:
    """Return the sum; ``ValueError`` when two pieces speak of the same thing."""
    written: dict[TopicPartition, WrittenRange] = {}
    tables: dict[tuple[str, str], _TableSum] = {}
    unknown: set[TopicPartition] = set()
    failures: list[str] = []
    troubles: dict[str, str] = {}
    number = 0
    for piece in pieces:
        number = piece.status_number
        if not written.keys().isdisjoint(piece.written):
            raise ValueError("two parts have a range of the same partition")
        written.update(piece.written)
        for table in piece.tables:
            at = table.table, table.uuid
            tables.setdefault(at, _TableSum(table)).add(table)
        if not troubles.keys().isdisjoint(piece.troubles):
            raise ValueError("two parts say what is wrong with the same table")
        troubles.update(piece.troubles)
        unknown |= piece.unknown
        failures += [] if piece.failure is None else [piece.failure]
    return WriteStatus(
        status_number=number,
        written=written,
        tables=tuple(found.status() for found in tables.values()),
        unknown=frozenset(unknown),
        failure=_require_at_most_one_text(failures),
        troubles=troubles,
    )


@dataclass(slots=True)
class _TableSum:
    first: TableStatus
    files: list[WrittenFile] = field(default_factory=list)

    def add(self, table: TableStatus) -> None:
        if table.schema_id != self.first.schema_id:
            raise ValueError(f"two parts say something of the same table {table.table}")
        self.files.extend(table.files)

    def status(self) -> TableStatus:
        return replace(self.first, files=tuple(self.files))


def _require_at_most_one_text(texts: list[str]) -> str | None:
    if len(texts) > 1:
        raise ValueError("two parts say something of the same thing")
    return texts[0] if texts else None


def _encoded_size_bytes(status: WriteStatus) -> int:
    nobody = Sender("", "")
    envelope = Envelope(SinkName(""), Epoch(0), TransactionNumber(0), nobody, 0, 0, status)
    return message_encoding.encoded_size_bytes(envelope)


def _describe_piece(piece: WriteStatus) -> str:
    for table in piece.tables:
        for file in table.files:
            return f"table {table.table}: the description of data file {file.path}"
        return f"the name of table {table.table}"
    if piece.troubles:
        return f"what is wrong with table {min(piece.troubles)} and others"
    return "the failure, ranges or unknown partitions of a status"
