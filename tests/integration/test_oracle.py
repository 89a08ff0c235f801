"""The oracle can fail: each way to break exactly-once is found and named."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from integration.oracle import assert_exactly_once, read_source

SOURCE = {("t", 0): pa.array([0, 1, 3]), ("t", 1): pa.array([5]), ("t", 2): pa.array([], "int64")}
RIGHT = [("t", 0, 0), ("t", 0, 1), ("t", 0, 3), ("t", 1, 5)]


def rows(*keys: tuple[str, int, int]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(("topic", "partition", "offset"), key, strict=True)) for key in keys],
        schema=pa.schema(
            [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
        ),
    )


def test_the_right_rows_pass_in_any_order_and_over_tables() -> None:
    assert_exactly_once(rows(*reversed(RIGHT)), SOURCE)
    assert_exactly_once([rows(*RIGHT[:2]), rows(*RIGHT[2:])], SOURCE)


@pytest.mark.parametrize(
    ("keys", "finding"),
    [
        (RIGHT[1:], r"t/0: 1 missing, first \[0\]"),
        (RIGHT[:3], r"t/1: 1 missing, first \[5\]"),
        ([*RIGHT, RIGHT[0]], r"t/0: 1 doubled, first \[0\]"),
        ([*RIGHT, ("t", 0, 2)], r"t/0: 1 invented, first \[2\]"),
        ([*RIGHT, ("other", 0, 0)], r"other/0: 1 invented"),
    ],
)
def test_a_wrong_row_is_named(keys: list[tuple[str, int, int]], finding: str) -> None:
    with pytest.raises(AssertionError, match=finding):
        assert_exactly_once(rows(*keys), SOURCE)


def test_offsets_behind_the_bound_must_not_be_there() -> None:
    until = {("t", 0): 3, ("t", 1): 6}
    kept = [key for key in RIGHT if key != ("t", 0, 3)]
    assert_exactly_once(rows(*kept), SOURCE, until=until)
    with pytest.raises(AssertionError, match=r"t/0: 1 invented, first \[3\]"):
        assert_exactly_once(rows(*RIGHT), SOURCE, until=until)


@pytest.mark.integration
def test_aborted_records_and_markers_are_no_source(
    bootstrap: str, topic_factory: Callable[..., str], unique_name: str
) -> None:
    topic = topic_factory(2)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique_name})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(topic, b"{}", partition=number % 2)
        producer.flush(30)
        end(30)
    found = read_source(bootstrap, topic)
    assert {key: offsets.to_pylist() for key, offsets in found.items()} == {
        (topic, 0): [0, 1],
        (topic, 1): [0],
    }
