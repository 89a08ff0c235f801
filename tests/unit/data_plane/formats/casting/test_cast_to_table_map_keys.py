"""Maps whose keys are structs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headgate.data_plane.formats.casting.cast_to_table import cast_rows
from headgate.data_plane.formats.record_format import Faults

KEY = pa.struct([("a", pa.int64())])


@pytest.mark.parametrize(
    ("entries", "bad"),
    [
        (None, {}),
        ([], {}),
        ([({"a": 1}, 1), ({"a": 2}, 2)], {}),
        ([({"a": 1}, 1), ({"a": 1}, 2)], {1: "m: has a key twice"}),
    ],
)
def test_a_map_with_structs_as_keys_is_read(entries: Any, bad: dict[int, str]) -> None:
    kind = pa.map_(KEY, pa.int64())
    faults = Faults()
    values = pa.array([{"m": [({"a": 1}, 3)]}, {"m": entries}], pa.struct([("m", kind)]))
    found = cast_rows(values, pa.schema([("m", kind)]), faults)
    assert faults.reasons == bad
    assert bad or found.column("m").to_pylist() == [[({"a": 1}, 3)], entries]
