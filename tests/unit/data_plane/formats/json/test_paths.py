"""What stands at a path of a JSON object, in C and in Python alike."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from headgate.data_plane.formats.json import paths
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Loops

pytestmark = pytest.mark.usefixtures("either_loops")

KEYS = st.sampled_from(["a", "b", "", "aa", 'q"', "\u00e9", "a\n"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)


def expected(value: Any, path: list[str]) -> tuple[int, Any]:
    for key in path:
        if value is None:
            return paths.NULL, None
        if not isinstance(value, dict):
            return paths.NO_OBJECT, None
        if key not in value:
            return paths.MISSING, None
        value = value[key]
    kinds = {
        str: paths.TEXT,
        bool: paths.WORD,
        dict: paths.NESTED,
        list: paths.NESTED,
        type(None): paths.NULL,
    }
    return kinds.get(type(value), paths.NUMBER), value


@settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(OBJECTS, min_size=1, max_size=4),
    st.lists(KEYS, min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_the_value_at_a_path_is_what_is_written_there(
    records: list[dict[str, Any]], path: list[str], ascii_only: bool, indent: int | None
) -> None:
    texts = [json.dumps(r, ensure_ascii=ascii_only, indent=indent) for r in records]
    # In front another value, so that the first place of the buffer is not that of the array.
    packed = Packed.from_values([b"{}", *(text.encode() for text in texts)])[1:]
    kinds, found = paths.pick_values_at_path(packed, path)
    for record, kind, text in zip(records, kinds.tolist(), found.to_pylist(), strict=True):
        wanted, value = expected(record, path)
        assert kind == wanted
        if kind == paths.TEXT:
            assert text == value
        elif kind in (paths.NUMBER, paths.WORD, paths.NESTED):
            assert json.loads(text) == value
        else:
            assert text is None


def test_numbers_stay_as_they_are_spelled() -> None:
    spelled = [b"1.50", b"1E+05", b"-0", b"12345678901234567890.10", b"[1.0, 2]"]
    packed = Packed.from_values([b'{"x":{"v" : ' + text + b" }}" for text in spelled])
    assert paths.pick_values_at_path(packed, ["x", "v"])[1].to_pylist() == [
        t.decode() for t in spelled
    ]


def test_keys_with_escapes_and_half_characters_are_looked_at() -> None:
    records = [b'{"\\u0061":1}', b'{"b":"\\"","a":"\\u00e9\\n"}', b'{"a":"\\ud800"}', b'{"a":"x"}']
    kinds, texts = paths.pick_values_at_path(Packed.from_values(records), ["a"])
    assert texts.to_pylist() == ["1", "\u00e9\n", None, "x"]
    assert kinds.tolist() == [
        paths.NUMBER,
        paths.TEXT,
        paths.DOUBT,
        paths.TEXT,
    ]


def test_deep_values_are_passed_over(either_loops: Loops) -> None:
    deep = b"[" * 250 + b"]" * 250
    packed = Packed.from_values([b'{"x":' + deep + b',"a":' + deep + b"}"])
    kinds, texts = paths.pick_values_at_path(packed, ["a"])
    assert (kinds.tolist(), texts.to_pylist()) == ([paths.NESTED], [deep.decode()])


def test_what_is_no_object_is_left_in_doubt(either_loops: Loops) -> None:
    """Nobody asks for it: but the C must neither go astray nor beyond the end."""
    values = [b"", b"[", b"{", b'{"', b'{"a', b'{"a"', b'{"a":', b'{"a":"', b'{"b":1', b'{"b":1,']
    found = either_loops.pick_json(Packed.from_values(values).array, [b"a"])
    assert found is None or set(found.kinds.tolist()) == {paths.DOUBT}
    none = either_loops.pick_json(Packed.from_values([]).array, [b"a"])
    assert none is None or np.array_equal(none.sizes, [])
