"""KEY-10: the record says what a commit's records came to, each once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.keyed import KeyedHead, deletes, rows
from protocol.values import SINK, offsets, record

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.commit_record_codec import decode_record, encode_record
from headgate.control_protocol.errors import RecordUnreadable

HEAD = KeyedHead({"a": [(1, 0, 0), (2, 0, 1), (3, 0, 2)]})
COUNTS = KeyCounts(inserted=1, updated=1, deleted=1, absent=1, superseded=3)


def test_each_record_counts_once() -> None:
    found = HEAD.resolved(
        rows("x", (1, 0, 3), (1, 0, 4), (9, 0, 5), (8, 0, 6)),
        deletes((2, 0, 7), (8, 0, 8), (8, 0, 9)),
    )
    assert found.counts == COUNTS
    assert found.counts.record_count == 7
    assert HEAD.resolved().counts == KeyCounts()


def test_they_travel_in_the_commit_record_and_older_records_have_none() -> None:
    older = record(1, 1, offsets(7))
    assert older.keys is None
    assert decode_record(SINK, encode_record(older)) == older
    keyed = replace(older, keys=COUNTS, records=4, skipped=2)
    assert decode_record(SINK, encode_record(keyed)) == keyed
    assert keyed.source_record_count == 9


@pytest.mark.parametrize("said", ["[1]", '{"inserted": -1}', '{"upserted": 1}', '{"absent": true}'])
def test_what_is_no_count_is_not_believed(said: str) -> None:
    summary = encode_record(replace(record(1, 1, offsets(7)), keys=COUNTS))
    assert "headgate.rides.keys" in summary
    with pytest.raises(RecordUnreadable):
        decode_record(SINK, {**summary, "headgate.rides.keys": said})
