"""What a dead letter carries, and the note that says how far the dead letters are."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.control_protocol.identifiers import Epoch
from headgate.coordinator.dead_letter_message import COLUMNS, Progress, dead_letter_of


def row(**other: Any) -> dict[str, Any]:
    found = {
        "topic": "trips",
        "topic_id": "tL3p",
        "partition": 3,
        "offset": 42,
        "key": b"\x00k",
        "value": b"{broken",
        "headers": [{"key": "trace", "value": b"\xff"}, {"key": "empty", "value": None}],
        "error_class": "value",
        "message": "is no JSON: caf\u00e9",
        "sink": "nightly",
        "epoch": 7,
        "transaction": 19,
    }
    assert found.keys() == set(COLUMNS)
    return {**found, **other}


def test_a_letter_is_the_record_as_it_was_and_says_where_it_was_and_why() -> None:
    letter = dead_letter_of(row())
    assert (letter.key, letter.value) == (b"\x00k", b"{broken")
    assert letter.headers == (
        ("trace", b"\xff"),
        ("empty", None),
        ("__connect.errors.topic", b"trips"),
        ("__connect.errors.partition", b"3"),
        ("__connect.errors.offset", b"42"),
        ("__connect.errors.exception.class.name", b"value"),
        ("__connect.errors.exception.message", "is no JSON: caf\u00e9".encode()),
        ("headgate.topic.id", b"tL3p"),
        ("headgate.sink", b"nightly"),
        ("headgate.transaction", b"7.19"),
    )


def test_offset_and_partition_zero_are_told_and_what_is_not_known_is_left_out() -> None:
    letter = dead_letter_of(row(partition=0, offset=0, topic_id=None, headers=None, key=None))
    names = dict(letter.headers)
    assert (names["__connect.errors.partition"], names["__connect.errors.offset"]) == (b"0", b"0")
    assert "headgate.topic.id" not in names
    assert letter.key is None


def test_progress_is_its_note() -> None:
    progress = Progress("5f0c", -(2**62), 12, Epoch(7))
    assert Progress.from_offset_metadata(progress.to_offset_metadata()) == progress


@pytest.mark.parametrize("note", ["", "x", "[]", "[1]", "{}", '["a", "b", 3, 4]', "null", "7"])
def test_another_note_is_none(note: str) -> None:
    assert Progress.from_offset_metadata(note) is None
