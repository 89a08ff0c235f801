"""Which rows of a query's batch are already in the table."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from headgate.control_protocol.errors import RowsUnfit
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.data_plane.spark.query_rows import RowsWriter

PLACES = {"topic": "t", "partition": "p", "offset": "o"}


@pytest.mark.parametrize("column", ["t", "p", "o"])
def test_query_6_a_row_that_does_not_say_all_of_its_record_is_refused(column: str) -> None:
    begin = Offsets({TopicPartition("trips", 0): 5})
    writer = RowsWriter(cast("Any", None), cast("Any", None), begin, PLACES)
    row = {"t": "trips", "p": 0, "o": 3}
    rows = pa.RecordBatch.from_pylist([row, {**row, "o": 5}])
    assert writer._rows_not_yet_stored(rows).to_pylist() == [{**row, "o": 5}]
    rows = pa.RecordBatch.from_pylist([row, {**row, column: None}])
    with pytest.raises(RowsUnfit, match="do not say of which record"):
        writer._rows_not_yet_stored(rows)
