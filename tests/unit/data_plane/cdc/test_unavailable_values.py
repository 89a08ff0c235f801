"""Placeholders are found in every form in which Debezium writes them."""

from __future__ import annotations

import pyarrow as pa

from headgate.data_plane.cdc.unavailable_values import placeholder_of


def test_a_placeholder_beyond_ascii_is_found_in_an_hstore_as_it_is_written() -> None:
    rows = pa.RecordBatch.from_pydict({"tags": ['{"für nichts":"für nichts"}', '{"a":"b"}']})
    found = placeholder_of("für nichts").replace_with_nulls(rows)
    assert found.rows.to_pylist() == [{"tags": None}, {"tags": '{"a":"b"}'}]
