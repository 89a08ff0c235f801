"""Takes apart blocks of JSON with bad records: the good ones stay together on the fast path.

Values that are not JSON objects are sorted out first. What the parser or a column refuses is
searched for where it probably is: by the key that the parser's message names, by the form of a
column's texts. A suspect is left to the explaining path, which accepts what the fast one accepts;
the others must pass together. If nothing looks suspicious, blocks are divided until the refused
records stand alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.data.formats import json_columns
from headgate.data.formats.json_columns import Spelling
from headgate.data.formats.json_suspects import judged, suspects_of
from headgate.data.formats.retyped import rows_from
from headgate.native.loops import Fields
from headgate.native.packed import Packed

Rows = np.ndarray[Any, np.dtype[np.int64]]

_SUSPECTS_SHARE = 8
"""If more than one in this many look suspicious, the guess is useless."""

_SPLIT = 8
_FIELD = re.compile(r"whilst decoding field '([^']*)'")
_WRONG_START = {
    "failed to parse": r'"',
    "expected primitive": r"[tf{\[]",
    "expected boolean": r"[^tfn\s]",
    "expected string": r'[^"n\s]',
    "expected {": r"[^{n\s]",
    "expected [": r"[^\[n\s]",
}


class Watch:
    """What bad records looked like recently, so that the next block is searched for it at once."""

    def __init__(self) -> None:
        self.patterns: dict[str, str] = {}
        """Maps the regular expression of a value that does not fit to the name of its column."""
        self.columns: set[str] = set()

    @property
    def alert(self) -> bool:
        return bool(self.columns or self.patterns)


class Respelled(Exception):
    """The block showed an unknown spelling: it is worth another try as a whole."""


class Apart:
    """One block taken apart. ``rows`` of ``parts`` and ``refused`` together are all its rows."""

    def __init__(
        self,
        values: Packed,
        schema: pa.Schema,
        spelling: Spelling,
        watch: Watch,
        *,
        learn: Callable[[], bool],
        fields: Fields | None = None,
    ) -> None:
        self._values = values
        self._schema = schema
        self._spelling = spelling
        self._watch = watch
        self._learn = learn
        self.parts: list[tuple[Rows, pa.RecordBatch]] = []
        self.refused: dict[int, str] = {}
        """Rows left to the explaining path, and the column that is probably at fault, if known."""
        self.ill_formed, twice, self.marks = judged(values.array, fields)
        aside = self.ill_formed | twice
        self.refused |= dict.fromkeys(np.flatnonzero(aside).tolist(), "")
        self._parse(np.flatnonzero(~aside), watched=watch.alert)

    def together(self) -> tuple[Rows, pa.RecordBatch]:
        """Return the rows that the fast path took, in order."""
        if len(self.parts) == 1:
            return self.parts[0]
        rows = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in self.parts)])
        empty = rows_from([], self._schema)
        order = np.argsort(rows, kind="stable")
        batch = pa.concat_batches([empty, *(part for _, part in self.parts)])
        return rows[order], batch.take(pa.array(order))

    # -------------------------------------------------------------------------------- the text

    def _at(self, rows: Rows) -> Packed:
        if len(rows) == len(self._values):
            return self._values
        return Packed(self._values.array.take(pa.array(rows)))

    def _parse(self, rows: Rows, *, watched: bool = False) -> None:
        if not len(rows):
            return
        if watched:
            suspects = self._watched(rows)
            if 0 < len(suspects) <= len(rows) // _SUSPECTS_SHARE:
                self._without(rows, suspects)
                return
        try:
            rough = json_columns.parse(self._at(rows), list(self._schema), self._spelling)
        except (pa.ArrowException, ValueError) as error:
            self._parse_apart(rows, str(error))
            return
        self._convert(rows, rough)

    def _parse_apart(self, rows: Rows, reason: str) -> None:
        if len(rows) == 1:
            self.refused[int(rows[0])] = self._column_of(reason)
            return
        suspects = self._suspected(rows, reason)
        if 0 < len(suspects) <= max(1, len(rows) // _SUSPECTS_SHARE):
            self._without(rows, suspects)
            return
        if self._respelled:
            raise Respelled
        for part in np.array_split(rows, min(_SPLIT, len(rows))):
            self._parse(part)

    @cached_property
    def _respelled(self) -> bool:
        return self._learn()  # for the whole block: once is enough

    def _without(self, rows: Rows, suspects: dict[int, str]) -> None:
        self.refused |= suspects
        self._parse(np.setdiff1d(rows, np.array([*suspects], np.int64), assume_unique=True))

    def _column_of(self, reason: str) -> str:
        path = _FIELD.findall(reason)
        return path[1] if len(path) > 1 and path[1] in self._schema.names else ""

    # ------------------------------------------------------------------------------- suspicions

    def _suspected(self, rows: Rows, reason: str) -> dict[int, str]:
        """Return suspicious rows, and the column that makes them so."""
        column = self._column_of(reason)
        start = next((s for says, s in _WRONG_START.items() if f": {says}" in reason), None)
        if column and start:
            leaf = _FIELD.findall(reason)[-1]
            pattern = rf"{re.escape(json.dumps(leaf))}\s*:\s*{start}"
            found = self._matching(rows, pattern)
            if found:
                self._watch.patterns[pattern] = column
                return dict.fromkeys(found, column)
        return {}

    def _watched(self, rows: Rows) -> dict[int, str]:
        """Return what looks like recent bad records; forget patterns that no longer occur."""
        suspects: dict[int, str] = {}
        for pattern, column in list(self._watch.patterns.items()):
            found = self._matching(rows, pattern)
            if not found:
                del self._watch.patterns[pattern]
            suspects |= dict.fromkeys(found, column)
        return suspects

    def _matching(self, rows: Rows, pattern: str) -> list[int]:
        try:
            hits = pc.match_substring_regex(self._at(rows).array, pattern)
        except pa.ArrowInvalid:  # a key that the library cannot take as a regular expression
            return []
        return list(rows[np.asarray(hits)].tolist())

    # ------------------------------------------------------------------------------ the columns

    def _convert(self, rows: Rows, rough: pa.StructArray) -> None:
        refused = np.zeros(len(rows), np.bool_)
        columns = [
            self._column(rows, field, rough.field(at), refused)
            for at, field in enumerate(self._schema)
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if refused.any():
            rows, batch = rows[~refused], batch.filter(pa.array(~refused))
        self.parts.append((rows, batch))

    def _column(self, rows: Rows, field: pa.Field, rough: pa.Array, refused: Any) -> pa.Array:
        """Return the column; values that it refuses become null and are noted as refused."""

        def attempt(places: Rows | None) -> pa.Array:
            here = rough if places is None else rough.take(pa.array(places))
            return json_columns.convert_column(field, here, partial(wide, places))

        def wide(places: Rows | None) -> pa.Array:
            values = self._at(rows if places is None else rows[places])
            return json_columns.parse_wide(values, field, self._spelling)

        if field.name not in self._watch.columns:
            try:
                return attempt(None)
            except (pa.ArrowException, ValueError):
                self._watch.columns.add(field.name)
        isolation = _Isolation(attempt, partial(suspects_of, field, rough))
        found, bad = isolation.of(np.arange(len(rows), dtype=np.int64), field.type)
        refused[bad] = True
        self.refused |= dict.fromkeys(rows[bad].tolist(), field.name)
        if not bad:
            self._watch.columns.remove(field.name)
        return found


class _Isolation:
    """Converts a column in as few pieces as it takes to leave out the refused values."""

    def __init__(
        self, attempt: Callable[[Rows], pa.Array], suspects: Callable[[Rows], np.ndarray[Any, Any]]
    ) -> None:
        self._attempt = attempt
        self._suspects = suspects
        self._pieces: list[tuple[Rows, pa.Array]] = []
        self._bad: list[int] = []

    def of(self, places: Rows, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
        suspects = self._suspects(places)
        if 0 < suspects.sum() <= len(places) // _SUSPECTS_SHARE:
            self._bad += places[suspects].tolist()
            places = places[~suspects]
        self._take(places)
        if self._bad:
            bad = np.array(self._bad, np.int64)
            self._pieces.append((bad, pa.nulls(len(bad), kind)))
        order = np.argsort(np.concatenate([rows for rows, _ in self._pieces]))
        return _joined([piece for _, piece in self._pieces]).take(pa.array(order)), self._bad

    def _take(self, places: Rows) -> None:
        if not len(places):
            return
        try:
            self._pieces.append((places, self._attempt(places)))
        except (pa.ArrowException, ValueError):
            if len(places) == 1:
                self._bad.append(int(places[0]))
                return
            for part in np.array_split(places, 2):
                self._take(part)


def _joined(parts: list[pa.Array]) -> pa.Array:
    if len(parts) > 1 and isinstance(parts[0], pa.ExtensionArray):
        storage = pa.concat_arrays([part.storage for part in parts])
        return pa.ExtensionArray.from_storage(parts[0].type, storage)
    return pa.concat_arrays(parts)
