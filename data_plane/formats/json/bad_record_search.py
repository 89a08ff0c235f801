"""Takes apart blocks of JSON with bad records: the good ones stay together on the fast path.

Values that are not JSON objects are sorted out first. What the parser or a column refuses is
searched for where it probably is: by the key that the parser's message names, by the form of a
column's texts. A suspect is left to the explaining path, which accepts what the fast one accepts;
the others must pass together. If nothing looks suspicious, blocks are divided until the refused
records stand alone.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types

from headgate.data_plane.formats.casting.relabel import rows_from_python
from headgate.data_plane.formats.json import columns as json_columns
from headgate.data_plane.formats.json import values as json_values
from headgate.data_plane.formats.json.columns import Spelling
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Fields, Flags, Integers, Octets, loops

# Finds JSON values that are not objects, and values that probably do not fit their column.
#
# It looks at all values at once. What it reports is tried alone; the rest must pass together. For
# columns it is a guess that saves time; for objects the parser would not notice: it accepts
# ``{"a":1 "b":01,}``.


_DAY = r"\d{4}-(\d\d-[0-2]\d|(0[13-9]|1[0-2])-30|(0[13578]|1[02])-31)"
_TIME = r"([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d{1,9})?)?)?"
_FORMS = {
    "date": rf"^{_DAY}$",
    "timestamp": rf"^{_DAY}([T ]{_TIME}(Z|[+-]\d\d(:?\d\d)?)?)?$",
    "time": rf"^{_TIME}$",  # after the longer name
    "decimal": r"^[+-]?[0-9]{1,38}(\.[0-9]{1,38})?$",
    "uuid": r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
}

_SPACE = r"[ \t\r\n]*"
_CHARACTER = "|".join(
    (
        r'[^"\\\x00\x80-\xff]',  # ASCII; then UTF-8 of two to four bytes, and escapes
        r"[\xc2-\xdf][\x80-\xbf]",
        r"[\xe0-\xef][\x80-\xbf]{2}",
        r"[\xf0-\xf4][\x80-\xbf]{3}",
        r'\\["\\/bfnrt]',
        # Not what is beyond the parser: zero, and pairs for characters from U+20000 on.
        r"\\u(?:[1-9a-cefA-CEF]HHH|0(?:XHH|0(?:XH|0X))|[dD](?:[0-7c-fC-F]HH|8[0-3]H))",
    )
)
_CHARACTER = _CHARACTER.replace("H", "[0-9a-fA-F]").replace("X", "[1-9a-fA-F]")
_STRING = rf'"(?:{_CHARACTER})*"'
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_SINGLE = rf"{_STRING}|{_NUMBER}|true|false|null|\[{_SPACE}\]|\{{{_SPACE}\}}"


# One copy of what repeats keeps the expression short: a comma may stand for the opening bracket.
def _object_regex(depth: int) -> str:
    """Return a regular expression for objects; below that depth, brackets need not match."""
    return rf"(?:[{{,]{_SPACE}{_STRING}{_SPACE}:{_SPACE}{_value_regex(depth - 1)}{_SPACE})+\}}"


def _value_regex(depth: int) -> str:
    if depth:
        array = rf"(?:[\[,]{_SPACE}{_value_regex(depth - 1)}{_SPACE})+\]"
        return f"(?:{_SINGLE}|{array}|{_object_regex(depth)})"
    begins, ends = rf"(?:[\[{{ \t\r\n]|{_STRING}{_SPACE}:)*", r"[\]} \t\r\n]*"
    return rf"(?:{_SINGLE}|(?:[\[{{,]{begins}(?:{_SINGLE}){ends})+)"


# Every text from left to right, so that none begins inside another; the colon makes it a key.
_KEYS = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?', re.DOTALL)
_OBJECT = rf"^{_SPACE}(?:\{{{_SPACE}\}}|{_object_regex(3)}){_SPACE}$"


class SuspectRecords(NamedTuple):
    """What looks wrong about each of some values, and the C code's marks if it gives them."""

    ill_formed: Flags
    key_repeated: Flags
    marks: Octets | None


def flag_suspect_records(
    values: pa.LargeBinaryArray, fields: Fields | None = None
) -> SuspectRecords:
    """Return which values are not one JSON object each (RFC 8259), and which name a key twice.

    Of the latter, a few may be listed wrongly. Control characters in strings pass; escapes that the
    parser gets wrong, and what is deeper than 64 levels (256 where Python looks), do not.

    With ``fields``: also the marks of each value as in ``Loops.flag_json_objects``, if the C code
    gives them.
    """
    result = loops().flag_json_objects(values, fields)
    if result is not None:
        shown = result & 3
        marks = (result >> 2).astype(np.uint8) if fields else None
        return SuspectRecords(shown == 1, shown == 2, marks)
    # The expression does not count depth: what may be too deep is parsed alone.
    opened = pc.add(pc.count_substring(values, "["), pc.count_substring(values, "{"))
    deep = np.asarray(pc.greater(opened, json_values.DEPTH_MAX))
    ill_formed: Flags = ~np.asarray(pc.match_substring_regex(values, _OBJECT)) | deep
    twice = np.zeros(len(values), np.bool_)
    for row in np.flatnonzero(~ill_formed).tolist():
        twice[row] = _has_repeated_key(values[row].as_py())
    return SuspectRecords(ill_formed, twice, None)


def _has_repeated_key(value: bytes) -> bool:
    """Return whether an object in a well-formed value names a key twice."""
    keys = [text for text, colon in _KEYS.findall(value) if colon]
    if len(set(keys)) == len(keys) and not any(b"\\" in key for key in keys):
        return False
    try:
        json_values.parse_record(value)
    except json_values.KeyTwice:
        return True
    except ValueError:
        pass
    return False


def flag_suspect_values(field: pa.Field, parsed: pa.Array, places: Integers) -> Flags:
    """Find suspects; ``parsed`` is as the parser read it: doubles for numbers, else text."""
    here = parsed.take(pa.array(places))
    result: Flags = np.zeros(len(places), np.bool_)
    if pa_types.is_floating(here.type):
        result = _flag_suspect_numbers(field.type, here)
    elif pa_types.is_large_string(here.type):
        result = _flag_suspect_texts(field.type, here)
    if not field.nullable:
        result = result | np.asarray(here.is_null())
    return result


def _flag_suspect_numbers(target: pa.DataType, numbers: pa.Array) -> Flags:
    with np.errstate(all="ignore"):
        result = numbers.fill_null(0.0).to_numpy(zero_copy_only=False)
        wrong: Flags = ~np.isfinite(result)
        if pa_types.is_decimal(target):
            scaled = result * 10.0**target.scale
            wrong |= np.abs(result) >= 10.0 ** (target.precision - target.scale)
            wrong |= np.abs(scaled - np.rint(scaled)) > 1e-6 * np.maximum(1.0, np.abs(scaled))
        elif not pa_types.is_floating(target):
            bits = target.bit_width if pa_types.is_integer(target) else 63
            wrong |= (result != np.floor(result)) | (np.abs(result) >= 2.0 ** (bits - 1))
            # The smallest integer is the one whose magnitude is too large.
            wrong &= result != -(2.0 ** (bits - 1))
        elif target.bit_width == 32:
            wrong |= np.abs(result) > np.finfo(np.float32).max
    return wrong


def _flag_suspect_texts(target: pa.DataType, texts: pa.Array) -> Flags:
    form = next((name for name in _FORMS if str(target).startswith(name)), "")
    if target == pa.uuid():
        form = "uuid"
    if form:
        fits = pc.match_substring_regex(texts, _FORMS[form]).fill_null(fill_value=True)
        wrong: Flags = ~np.asarray(fits)
        return (
            wrong if form != "timestamp" or wrong.any() else _flag_rarer_of_zoned_and_unzoned(texts)
        )
    if pa_types.is_fixed_size_binary(target) or pa_types.is_large_binary(target):
        return np.array([not _is_base64_or_none(text) for text in texts.to_pylist()], np.bool_)
    return np.zeros(len(texts), np.bool_)


def _flag_rarer_of_zoned_and_unzoned(texts: pa.Array) -> Flags:
    """Flag the minority with or without a zone: the column is read in one of the two ways."""
    zoned = np.asarray(
        pc.match_substring_regex(texts, r"(Z|:.*[+-].*)$").fill_null(fill_value=False)
    )
    odd: Flags = zoned if 2 * zoned.sum() < len(zoned) else ~zoned
    there: Flags = np.asarray(texts.is_valid())
    return odd & there


def _is_base64_or_none(text: str | None) -> bool:
    try:
        return text is None or base64.b64decode(text, validate=True) is not None
    except (binascii.Error, ValueError):
        return False


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
    """Remembers what bad records looked like, so that the next block is searched for it at once."""

    def __init__(self) -> None:
        self.patterns: dict[str, str] = {}
        """Maps the regular expression of a value that does not fit to the name of its column."""
        self.columns: set[str] = set()

    @property
    def has_seen_bad_values(self) -> bool:
        return bool(self.columns or self.patterns)


class Respelled(Exception):
    """Says that the block showed an unknown spelling: it is worth another try as a whole."""


class BadRecordSearch:
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
        self.ill_formed, twice, self.marks = flag_suspect_records(values.array, fields)
        search = self.ill_formed | twice
        self.refused |= dict.fromkeys(np.flatnonzero(search).tolist(), "")
        self._take_or_refuse_rows(np.flatnonzero(~search), match_watched=watch.has_seen_bad_values)

    def accepted_rows(self) -> tuple[Rows, pa.RecordBatch]:
        """Return the rows that the fast path took, in order."""
        if len(self.parts) == 1:
            return self.parts[0]
        rows = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in self.parts)])
        empty = rows_from_python([], self._schema)
        order = np.argsort(rows, kind="stable")
        batch = pa.concat_batches([empty, *(part for _, part in self.parts)])
        return rows[order], batch.take(pa.array(order))

    # -------------------------------------------------------------------------------- the text

    def _values_at(self, rows: Rows) -> Packed:
        if len(rows) == len(self._values):
            return self._values
        return self._values.take(rows)

    def _take_or_refuse_rows(self, rows: Rows, *, match_watched: bool = False) -> None:
        if not len(rows):
            return
        if match_watched:
            suspects = self._match_and_prune_patterns(rows)
            if 0 < len(suspects) <= len(rows) // _SUSPECTS_SHARE:
                self._refuse_and_parse_rest(rows, suspects)
                return
        try:
            parsed = json_columns.parse_objects(
                self._values_at(rows), list(self._schema), self._spelling
            )
        except (pa.ArrowException, ValueError) as error:
            self._parse_around_suspects(rows, str(error))
            return
        self._convert_and_add_part(rows, parsed)

    def _parse_around_suspects(self, rows: Rows, reason: str) -> None:
        if len(rows) == 1:
            self.refused[int(rows[0])] = self._column_named_in(reason)
            return
        suspects = self._find_suspects_by_parser_error(rows, reason)
        if 0 < len(suspects) <= max(1, len(rows) // _SUSPECTS_SHARE):
            self._refuse_and_parse_rest(rows, suspects)
            return
        if self._has_learned_new_spelling:
            raise Respelled
        for part in np.array_split(rows, min(_SPLIT, len(rows))):
            self._take_or_refuse_rows(part)

    @cached_property
    def _has_learned_new_spelling(self) -> bool:
        return self._learn()  # for the whole block: once is enough

    def _refuse_and_parse_rest(self, rows: Rows, suspects: dict[int, str]) -> None:
        self.refused |= suspects
        self._take_or_refuse_rows(
            np.setdiff1d(rows, np.array([*suspects], np.int64), assume_unique=True)
        )

    def _column_named_in(self, reason: str) -> str:
        path = _FIELD.findall(reason)
        return path[1] if len(path) > 1 and path[1] in self._schema.names else ""

    # ------------------------------------------------------------------------------- suspicions

    def _find_suspects_by_parser_error(self, rows: Rows, reason: str) -> dict[int, str]:
        """Return suspicious rows, and the column that makes them so."""
        column = self._column_named_in(reason)
        start = next((s for says, s in _WRONG_START.items() if f": {says}" in reason), None)
        if column and start:
            leaf = _FIELD.findall(reason)[-1]
            pattern = rf"{re.escape(json.dumps(leaf))}\s*:\s*{start}"
            result = self._rows_matching(rows, pattern)
            if result:
                self._watch.patterns[pattern] = column
                return dict.fromkeys(result, column)
        return {}

    def _match_and_prune_patterns(self, rows: Rows) -> dict[int, str]:
        """Return what looks like recent bad records; forget patterns that no longer occur."""
        suspects: dict[int, str] = {}
        for pattern, column in list(self._watch.patterns.items()):
            result = self._rows_matching(rows, pattern)
            if not result:
                del self._watch.patterns[pattern]
            suspects |= dict.fromkeys(result, column)
        return suspects

    def _rows_matching(self, rows: Rows, pattern: str) -> list[int]:
        try:
            hits = pc.match_substring_regex(self._values_at(rows).array, pattern)
        except pa.ArrowInvalid:  # a key that the library cannot take as a regular expression
            return []
        return list(rows[np.asarray(hits)].tolist())

    # ------------------------------------------------------------------------------ the columns

    def _convert_and_add_part(self, rows: Rows, parsed: pa.StructArray) -> None:
        refused = np.zeros(len(rows), np.bool_)
        columns = [
            self._convert_noting_refused(rows, field, parsed.field(at), refused)
            for at, field in enumerate(self._schema)
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if refused.any():
            rows, batch = rows[~refused], batch.filter(pa.array(~refused))
        self.parts.append((rows, batch))

    def _convert_noting_refused(
        self, rows: Rows, field: pa.Field, parsed: pa.Array, refused_flags: Any
    ) -> pa.Array:
        """Return the column; values that it refuses become null and are noted as refused."""

        def convert_at(places: Rows | None) -> pa.Array:
            here = parsed if places is None else parsed.take(pa.array(places))
            return json_columns.convert_column(field, here, partial(parse_wide_at, places))

        def parse_wide_at(places: Rows | None) -> pa.Array:
            values = self._values_at(rows if places is None else rows[places])
            return json_columns.parse_with_wide_numbers(values, field, self._spelling)

        if field.name not in self._watch.columns:
            try:
                return convert_at(None)
            except (pa.ArrowException, ValueError):
                self._watch.columns.add(field.name)
        isolation = _Isolation(convert_at, partial(flag_suspect_values, field, parsed))
        result, bad = isolation.convert_with_bad_as_nulls(
            np.arange(len(rows), dtype=np.int64), field.type
        )
        refused_flags[bad] = True
        self.refused |= dict.fromkeys(rows[bad].tolist(), field.name)
        if not bad:
            self._watch.columns.remove(field.name)
        return result


class _Isolation:
    """Converts a column in as few pieces as it takes to leave out the refused values."""

    def __init__(
        self, attempt: Callable[[Rows], pa.Array], suspects: Callable[[Rows], np.ndarray[Any, Any]]
    ) -> None:
        self._attempt = attempt
        self._suspects = suspects
        self._pieces: list[tuple[Rows, pa.Array]] = []
        self._bad: list[int] = []

    def convert_with_bad_as_nulls(
        self, places: Rows, data_type: pa.DataType
    ) -> tuple[pa.Array, list[int]]:
        suspects = self._suspects(places)
        if 0 < suspects.sum() <= len(places) // _SUSPECTS_SHARE:
            self._bad += places[suspects].tolist()
            places = places[~suspects]
        self._convert_or_split(places)
        if self._bad:
            bad = np.array(self._bad, np.int64)
            self._pieces.append((bad, pa.nulls(len(bad), data_type)))
        order = np.argsort(np.concatenate([rows for rows, _ in self._pieces]))
        return _concat_arrays([piece for _, piece in self._pieces]).take(pa.array(order)), self._bad

    def _convert_or_split(self, places: Rows) -> None:
        if not len(places):
            return
        try:
            self._pieces.append((places, self._attempt(places)))
        except (pa.ArrowException, ValueError):
            if len(places) == 1:
                self._bad.append(int(places[0]))
                return
            for part in np.array_split(places, 2):
                self._convert_or_split(part)


def _concat_arrays(parts: list[pa.Array]) -> pa.Array:
    if len(parts) > 1 and isinstance(parts[0], pa.ExtensionArray):
        storage = pa.concat_arrays([part.storage for part in parts])
        return pa.ExtensionArray.from_storage(parts[0].type, storage)
    return pa.concat_arrays(parts)
