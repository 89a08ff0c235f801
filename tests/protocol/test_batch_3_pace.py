"""BATCH-3: who reads no faster than it may answers END in time, and leaves nothing out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.participating import SETTINGS, Participant, claimed
from protocol.values import P0, P1, offsets

from headgate.participant.settings import ParticipantSettings

ENDS = {P0: 1_000_010, P1: 1_000_020}
LARGE = replace(SETTINGS, batch_records_max=1_000_000)


def reading(settings: ParticipantSettings) -> Participant:
    participant = Participant.writing(offsets(10, 20), settings=settings)
    participant.waits(100)
    participant.source_ends(ENDS)
    return participant


def read_in(participant: Participant, seconds: int) -> int:
    """Return how many records it begins to read, in steps of a tenth of a second."""
    begun = sum(map(len, participant.batch.ranges.values()))
    participant.batch_written()
    until_ms = participant.now_ms + seconds * 1000
    while participant.now_ms < until_ms:
        participant.waits(100)
        participant.source_ends(ENDS)
        for batch in participant.submitted:
            begun += sum(map(len, batch.ranges.values()))
            participant.batch_written()
    return begun


@pytest.mark.parametrize(
    ("records", "octets", "expected"),
    [(50, 0, 50), (0, 500, 50), (50, 250, 25), (20, 100_000, 20)],
)
def test_no_more_is_read_than_the_bound_allows(records: int, octets: int, expected: int) -> None:
    bounded = replace(
        SETTINGS,
        records_per_second_max=records,
        bytes_per_second_max=octets,
        batch_records_max=2000,
    )
    participant = reading(bounded)
    first = sum(map(len, participant.batch.ranges.values()))
    rest = read_in(participant, 200) - first  # the first batch does not know its records' size
    assert rest == pytest.approx(200 * expected, abs=11 * expected)


def test_a_batch_takes_ten_seconds_of_the_bound() -> None:
    participant = reading(replace(LARGE, records_per_second_max=3_000))
    assert sum(map(len, participant.batch.ranges.values())) == 30_000


def test_a_first_batch_whose_size_is_not_known_is_small() -> None:
    participant = reading(replace(LARGE, bytes_per_second_max=1_000))
    assert sum(map(len, participant.batch.ranges.values())) == 10_000
    participant.batch_written()
    participant.waits(100)
    participant.source_ends(ENDS)
    assert sum(map(len, participant.batch.ranges.values())) == 1_000, "ten bytes each, in the test"


def test_a_record_that_is_larger_than_a_seconds_share_is_read_all_the_same() -> None:
    participant = reading(replace(LARGE, bytes_per_second_max=1_000))
    participant.batch_written()
    participant.state = replace(
        participant.state, run=replace(participant.state.run, record_bytes=10**9)
    )
    participant.waits(100_000)
    participant.source_ends(ENDS)
    assert sum(map(len, participant.batch.ranges.values())) == 1


def test_end_is_answered_while_reading_is_held_back_and_nobody_takes_the_rest_for_idle() -> None:
    participant = reading(replace(LARGE, records_per_second_max=100))
    participant.batch_written()
    participant.hears_itself()
    participant.end(1)
    participant.source_ends(ENDS)
    assert participant.submitted == []
    assert claimed(participant.status) == {P0: (10, 510), P1: (20, 520)}
    participant.hears_itself()
    participant.start(2, offsets(510, 520), settled_to=participant.next_offset)
    participant.end(2)
    participant.source_ends(ENDS)
    assert participant.submitted == []
    assert claimed(participant.status) == {P0: (510, 510), P1: (520, 520)}
    assert participant.status.unknown == {P0, P1}
