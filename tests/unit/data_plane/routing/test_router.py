"""What a route finds in records."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.data_plane.batch.writer_task_plan import SourcePlan
from headgate.data_plane.routing.router import RouteValues
from headgate.data_plane.routing.routes import Route
from headgate.kafka.record_fetch import Chunk
from headgate.native.byte_arrays import Packed


def _chunk_of(*values: bytes) -> Chunk:
    numbers = np.arange(len(values), dtype=np.int64)
    return Chunk(Packed.pack(values), numbers, numbers, numbers, numbers)


@pytest.mark.parametrize(
    ("field", "form"), [("kind", '{"%s": "a"}'), ("in.kind", '{"in": {"%s": "a"}}')]
)
@pytest.mark.parametrize(("caseless", "found"), [("true", [0, 0]), ("false", [0, -1])])
def test_a_field_of_any_depth_is_found_as_the_columns_are(
    field: str, form: str, caseless: str, found: list[int]
) -> None:
    source = SourcePlan({}, format_options={"case-insensitive": caseless})
    chunk = _chunk_of(*((form % name).encode() for name in ("kind", "Kind")))
    values = RouteValues(Route(to="lake.{field}", field=field), source).values_of(chunk)
    assert values.codes.tolist() == found
