"""Statuses travel in parts and count once whole (rules ANSWER-1, COMMIT-3)."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.control_envelopes import EXAMPLES, P0, STATUSES, WRITTEN_FILE, envelope

from headgate.control_protocol import message_encoding
from headgate.control_protocol.errors import StopSink
from headgate.control_protocol.events import TableStatus, WriteStatus, WrittenRange
from headgate.control_protocol.identifiers import Epoch, Sender, SinkName, TopicPartition
from headgate.control_protocol.multipart_status import PART_BYTES_MAX, Assembler, split_status
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.redaction import REASON_CHARACTERS_MAX, Redaction
from headgate.tables.iceberg.data_file import FileDetail


def status_of(files: int, number: int = 1) -> WriteStatus:
    claims = {P0: WrittenRange(OffsetRange(0, files), records=files)}
    return WriteStatus(number, claims, (TableStatus("t", (WRITTEN_FILE,) * files),))


THREE = [envelope(part) for part in split_status(status_of(9), 700)]


def test_an_ordinary_status_stays_one_message() -> None:
    assert split_status(status_of(3)) == [status_of(3)]


def test_suspend_1_troubles_of_however_many_tables_travel_and_stop_nobody() -> None:
    """Each text has at most so many characters, and characters have up to four bytes."""
    troubles = {f"db.t{n}": "HG-103 \N{GRINNING FACE}" * 4_000 for n in range(400)}
    bounded = Redaction().redact_event(WriteStatus(1, troubles=troubles))
    assert isinstance(bounded, WriteStatus)
    assert {len(why) for why in bounded.troubles.values()} == {REASON_CHARACTERS_MAX}
    parts = split_status(bounded)
    assert len(parts) > 1
    assembler = Assembler()
    *early, last = (envelope(part) for part in parts)
    assert all(assembler.add_and_pop_if_whole(sent) is None for sent in early)
    assert assembler.add_and_pop_if_whole(last) == envelope(bounded)


@given(STATUSES, st.integers(500, 2_000), st.randoms(use_true_random=False))
def test_parts_in_any_order_and_twice_are_the_whole(
    status: WriteStatus, part_bytes_max: int, coin: random.Random
) -> None:
    envelopes = [envelope(part) for part in split_status(status, part_bytes_max)]
    assert all(
        len(message_encoding.encode_envelope(sent)) < part_bytes_max + 100 for sent in envelopes
    )
    *early, last = coin.sample(envelopes, len(envelopes))
    assembler = Assembler()
    for sent in [*early, *early]:
        assert assembler.add_and_pop_if_whole(sent) is None
    assert assembler.add_and_pop_if_whole(last) == envelope(status)


@pytest.mark.parametrize("missing", range(len(THREE)))
def test_an_incomplete_status_never_counts(missing: int) -> None:
    assembler = Assembler()
    received = [sent for k, sent in enumerate(THREE) if k != missing]
    assert len(THREE) == 3
    assert all(assembler.add_and_pop_if_whole(sent) is None for sent in received * 3)


def test_parts_of_different_statuses_do_not_mix() -> None:
    first, second, _ = THREE
    others = [
        replace(THREE[2], sink=SinkName("other")),
        replace(THREE[2], epoch=Epoch(9)),
        replace(THREE[2], sender=Sender("worker-1", "other")),
        replace(THREE[2], event=replace(THREE[2].event, status_number=2)),
        replace(THREE[2], event=replace(THREE[2].event, parts=4)),
    ]
    assembler = Assembler()
    assert all(assembler.add_and_pop_if_whole(sent) is None for sent in [first, second, *others])
    assert assembler.add_and_pop_if_whole(THREE[2]) == envelope(status_of(9))


def test_a_status_sent_again_is_whole_again() -> None:
    assembler = Assembler()
    twice = [assembler.add_and_pop_if_whole(sent) for sent in THREE * 2]
    assert twice == [None, None, envelope(status_of(9))] * 2


def test_parts_that_contradict_each_other_never_count() -> None:
    claims = {P0: WrittenRange(OffsetRange(0, 1))}
    assembler = Assembler()
    for part in range(2):
        assert (
            assembler.add_and_pop_if_whole(envelope(WriteStatus(1, claims, part=part, parts=2)))
            is None
        )


def test_other_events_pass_as_they_are() -> None:
    for event in EXAMPLES.values():
        sent = envelope(event)
        assert Assembler().add_and_pop_if_whole(sent) is sent


def test_what_waited_longest_is_forgotten_first_by_bytes() -> None:
    part = message_encoding.encoded_size_bytes(THREE[0])
    assembler = Assembler(held_bytes_max=2 * part + part // 2)
    senders = [Sender("worker", str(n)) for n in range(3)]
    for sender in senders:
        assembler.add_and_pop_if_whole(replace(THREE[0], sender=sender))
    *_, kept = [
        assembler.add_and_pop_if_whole(replace(sent, sender=senders[2])) for sent in THREE[1:]
    ]
    assert kept is not None
    # the first sender's early part is gone, so the rest of it is no whole
    assert all(
        assembler.add_and_pop_if_whole(replace(sent, sender=senders[0])) is None
        for sent in THREE[1:]
    )


def test_who_still_sends_parts_has_not_waited_longest() -> None:
    part = message_encoding.encoded_size_bytes(THREE[0])
    assembler = Assembler(held_bytes_max=2 * part + part // 2)
    first, silent = (Sender("worker", str(n)) for n in range(2))
    for sender, sent in ((first, THREE[0]), (silent, THREE[0]), (first, THREE[1])):
        assert assembler.add_and_pop_if_whole(replace(sent, sender=sender)) is None
    assert assembler.add_and_pop_if_whole(replace(THREE[2], sender=first)) is not None


def test_parts_of_hostile_senders_take_bounded_memory() -> None:
    """However many, and however small or large each of them is."""
    assembler = Assembler(held_bytes_max=10_000)
    for number in range(2_000):
        half = replace(status_of(number % 7 + 1), status_number=number, part=0, parts=2)
        assert assembler.add_and_pop_if_whole(envelope(half)) is None
    assert assembler._held <= 10_000
    assert len(assembler._piles) < 500


def test_one_file_larger_than_a_part_is_named() -> None:
    with pytest.raises(StopSink, match=r"data file s3://lake/orders.*statistics of fewer"):
        split_status(status_of(1), 150)


def test_many_files_of_three_hundred_columns_go_in_parts() -> None:
    coin = random.Random(7)
    columns = range(1, 301)

    def bounds() -> dict[int, bytes]:
        return {column: struct.pack("<q", coin.getrandbits(62)) for column in columns}

    detail = FileDetail(
        column_sizes={column: coin.randrange(10**7) for column in columns},
        value_counts=dict.fromkeys(columns, 10**6),
        null_value_counts=dict.fromkeys(columns, 10**5),
        nan_value_counts=dict.fromkeys(columns, 0),
        lower_bounds=bounds(),
        upper_bounds=bounds(),
        split_offsets=(4, 10**7),
    )
    wide = detail.to_written_file("", 10**6, 10**8)
    files = tuple(
        replace(wide, path=f"s3://lake/orders/data/headgate-3.7-abcdef/{n:05}.parquet")
        for n in range(500)
    )
    claims = {TopicPartition("t", n): WrittenRange(OffsetRange(n, 10**10)) for n in range(5_000)}
    status = WriteStatus(1, claims, (TableStatus("t", files),))
    assembler = Assembler()
    *early, last = split_status(status)
    assert all(assembler.add_and_pop_if_whole(through_codec(part)) is None for part in early)
    assert assembler.add_and_pop_if_whole(through_codec(last)) == envelope(status)


def through_codec(part: WriteStatus) -> object:
    message = message_encoding.encode_envelope(envelope(part))
    assert len(message) < 900_000
    return message_encoding.decode_envelope(message)


def test_a_part_leaves_room_for_the_envelope() -> None:
    assert PART_BYTES_MAX + 40_000 <= message_encoding.MESSAGE_BYTES_MAX
