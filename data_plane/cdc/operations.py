"""Translates the words of envelopes into what records do to rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.data_plane.formats.record_format import Faults

Operations = np.ndarray[tuple[int], np.dtype[np.uint8]]
"""An ``Operation`` per record."""


class Operation(IntEnum):
    """Says what a record does."""

    UPSERT = 0
    """It is a row, which replaces the one with its key."""
    DELETE = 1
    """It removes the row with its key."""
    SKIP = 2
    """It does not concern rows."""
    TRUNCATE = 3
    """It removes all rows."""


DEBEZIUM = {
    **dict.fromkeys("cru", Operation.UPSERT),
    "d": Operation.DELETE,
    "m": Operation.SKIP,
    "t": Operation.TRUNCATE,
}
DMS = {
    **dict.fromkeys(("load", "insert", "update"), Operation.UPSERT),
    "delete": Operation.DELETE,
}
DMS_TRUNCATES = ("truncate-table", "truncate")
"""Of a control record. The others (``drop-table`` begins each full load) do not concern rows.

AWS documents create, drop, rename and column operations of control records (``KafkaSettings``,
``IncludeTableAlterOperations``), and a task setting ``HandleSourceTableTruncated``, but not which
word Kafka gets for a truncate. These are named like the documented ones.
"""
DMS_LETTERS = {**dict.fromkeys("IU", Operation.UPSERT), "D": Operation.DELETE}

_CHARACTERS_MAX = 40


def operations_of(
    words: pa.Array, known: Mapping[str, Operation], name: str, faults: Faults
) -> Operations:
    """Return the operations that the field ``name`` gives; an unknown word is a fault."""
    places = pc.index_in(words, pa.array([*known], words.type))
    unknown = np.flatnonzero(np.asarray(places.is_null()))
    codes = np.array([*known.values(), Operation.SKIP], np.uint8)
    result: Operations = codes[np.asarray(places.fill_null(len(known)))]
    _note_unknown_words(unknown.tolist(), words, name, faults)
    return result


def true_flags_of(
    words: pa.Array, name: str, faults: Faults
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return where the field ``name`` is true; a word other than true and false is a fault."""
    places = pc.index_in(words, pa.array(["false", "true"], words.type))
    wrong = pc.and_(words.is_valid(), places.is_null())
    _note_unknown_words(np.flatnonzero(np.asarray(wrong)).tolist(), words, name, faults)
    return np.asarray(pc.is_in(words, pa.array(["true"], words.type)))


def _note_unknown_words(rows: Sequence[int], words: pa.Array, name: str, faults: Faults) -> None:
    for row in rows:
        word = words[row].as_py()
        description = "is missing" if word is None else f"{word[:_CHARACTERS_MAX]!r} is not known"
        faults.note([row], f"{name}: {description}")
