"""COMMIT-5: a participant says what its next status will hold, at each eighth of its share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.participating import SETTINGS, Participant, started
from protocol.values import P0, offsets

from headgate.control_protocol.events import Limits, Presence, PresenceKind
from headgate.participant.settings import ParticipantSettings

LARGE = replace(SETTINGS, batch_records_max=1_000)


def writing(
    limits: Limits, *, others: bool = False, settings: ParticipantSettings = LARGE
) -> Participant:
    """It owns one partition, of two if there are others."""
    participant = Participant(settings=settings)
    participant.owns(P0)
    participant.hears_itself()
    at = offsets(0, 0) if others else offsets(0)
    participant.hears(replace(started(1, at, 1, None), limits=limits), transaction=1)
    return participant


def told(participant: Participant, end: int) -> list[tuple[int, int]]:
    """What it says when the source's end is seen there."""
    participant.waits(SETTINGS.end_offset_interval_ms)
    participant.source_ends({P0: end})
    said = [event for event in participant.said if isinstance(event, Presence)]
    assert all(presence.kind is PresenceKind.ALIVE for presence in said)
    return [(presence.buffered_records, presence.buffered_bytes) for presence in said]


def test_it_speaks_at_each_eighth_and_not_between() -> None:
    participant = writing(Limits(commit_records=800))
    assert told(participant, 99) == []
    assert told(participant, 100) == [(100, 0)]
    assert told(participant, 199) == []
    assert told(participant, 450) == [(450, 0)]


def test_its_share_is_that_of_its_partitions() -> None:
    participant = writing(Limits(commit_records=800), others=True)
    assert told(participant, 50) == [(50, 0)]


@pytest.mark.parametrize("limits", [Limits(), Limits(commit_bytes=1)])
def test_without_a_limit_or_a_size_it_says_nothing_more(limits: Limits) -> None:
    assert told(writing(limits), 900) == []


def test_bytes_of_what_is_not_read_are_taken_to_be_like_the_last_batchs() -> None:
    participant = writing(Limits(commit_bytes=8_000))
    participant.waits(SETTINGS.end_offset_interval_ms)
    participant.source_ends({P0: 1_000})
    participant.batch_written()
    (read,) = [event for event in participant.said if isinstance(event, Presence)]
    assert (read.buffered_records, read.buffered_bytes) == (1_000, 10_000)
    assert told(participant, 1_050) == []
    assert told(participant, 1_100) == [(1_100, 11_000)]


def test_after_its_answer_it_begins_anew() -> None:
    participant = writing(Limits(commit_records=800))
    assert told(participant, 450) == [(450, 0)]
    participant.answers(1, {P0: 450})
    participant.hears_itself()
    start = replace(started(2, offsets(0), 1, 0), limits=Limits(commit_records=800))
    participant.hears(start, transaction=2)

    assert told(participant, 560) == [(110, 1_100)]


def test_one_that_may_read_no_faster_tells_of_no_more_than_end_would_bring() -> None:
    """Else the backlog that it holds back would end each transaction at once (BATCH-3)."""
    paced = replace(LARGE, records_per_second_max=50)
    participant = writing(Limits(commit_records=800), settings=paced)
    assert told(participant, 100_000) == [(500, 0)], "the batch that runs"
    participant.batch_written()
    participant.answers(1, {P0: 100_000})
    participant.hears_itself()
    start = replace(started(2, offsets(500), 1, 0), limits=Limits(commit_records=800))
    participant.hears(start, transaction=2)
    assert told(participant, 100_000) == [], "the next one is held back"
    participant.waits(10_000)
    participant.source_ends({P0: 100_000})
    assert participant.presence.buffered_records == 500
