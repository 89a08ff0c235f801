"""Recognizes the envelope of each value, whatever a sink file says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.data_plane.cdc.envelope_reader import Columns, EnvelopeReader
from headgate.data_plane.cdc.operations import DEBEZIUM, DMS, DMS_LETTERS
from headgate.data_plane.cdc.policy import Envelope
from headgate.data_plane.formats.record_format import RecordFormat
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Flags

ENVELOPE_FIELDS = frozenset({"op", "__deleted", "__op", "Op", "metadata"})
"""Top-level fields of a value that tell envelopes apart."""

_WORDS = (
    ("op",),
    ("after",),
    ("before",),
    ("__deleted",),
    ("__op",),
    ("metadata", "operation"),
    ("metadata", "record-type"),
    ("Op",),
)


@dataclass(slots=True)
class EnvelopeCounts:
    """Counts how many records have each envelope or no value, or cannot be read by the format."""

    envelopes: Counter[Envelope] = field(default_factory=Counter)
    tombstones: int = 0
    unreadable: int = 0
    why: str = ""

    @property
    def record_count(self) -> int:
        return self.envelopes.total() + self.tombstones + self.unreadable

    @property
    def most_common_envelope(self) -> Envelope | None:
        """Return the most common envelope; ``None`` if no value could be read."""
        return max(self.envelopes, key=self.envelopes.__getitem__, default=None)


def count_envelopes(
    values: Sequence[bytes | None], format_of: Callable[[], RecordFormat]
) -> EnvelopeCounts:
    """Read the values with a format, and examine them. Raises what the format raises."""
    there = [value for value in values if value is not None]
    looks = EnvelopeCounts(tombstones=len(values) - len(there))
    if not there:
        return looks
    nothing = Columns(pa.schema([]), (), {}, format_of)
    parts = EnvelopeReader(nothing, words=_WORDS).read(Packed.from_values(there))
    looks.unreadable = len(parts.bad)
    looks.why = next(iter(parts.bad.values()), "")
    op, after, before, deleted, flat_op, operation, kind, letter = parts.words
    rest = np.ones(len(parts.left), np.bool_)
    row = np.asarray(pc.or_(after.is_valid(), before.is_valid()))
    empties = _flag_known_words(op, [word for word in DEBEZIUM if word in "mt"])
    for envelope, result in (
        (Envelope.DEBEZIUM, (_flag_known_words(op, DEBEZIUM) & row) | empties),
        (
            Envelope.FLATTENED,
            _flag_known_words(deleted, ("true", "false")) | _flag_known_words(flat_op, DEBEZIUM),
        ),
        (
            Envelope.DMS,
            _flag_known_words(operation, DMS) | _flag_known_words(kind, ("control", "data")),
        ),
        (Envelope.DMS, _flag_known_words(letter, DMS_LETTERS)),
        (Envelope.PLAIN, rest),
    ):
        fits = result & rest
        rest = rest & ~fits
        looks.envelopes[envelope] += int(fits.sum())
    looks.envelopes += Counter()  # drops those with a count of zero
    return looks


def _flag_known_words(words: pa.Array, known: Iterable[str]) -> Flags:
    return np.asarray(pc.is_in(words, pa.array([*known], words.type)))
