"""Where a new epoch begins: stored offsets against the sources as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import IDENTITY, SETTINGS
from protocol.values import P0, P1, SINK, TOPIC_ID, offsets, record, topics, view

from headgate.control_protocol.commit_record import offset_metadata_of_table
from headgate.control_protocol.errors import (
    OffsetOutOfRange,
    SinkNameTaken,
    TableRecreated,
    TopicRecreated,
)
from headgate.control_protocol.identifiers import Epoch, TopicId, TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.coordinator.recovery import (
    fit_offsets_to_sources,
    next_epoch,
    record_to_resume_from,
    require_sink_name_not_taken,
    require_table_not_recreated,
)
from headgate.coordinator.settings import OffsetPolicy, TableRecreatedPolicy

KNOWN = {"trips": TOPIC_ID}


@pytest.mark.parametrize("stored", [5, 50, 90])
def test_an_offset_within_the_log_is_kept(stored: int) -> None:
    assert fit_offsets_to_sources(offsets(stored), KNOWN, topics((5, 90)), SETTINGS) == offsets(
        stored
    )


@pytest.mark.parametrize(("stored", "why"), [(4, "retention"), (91, "beyond the log's end")])
def test_hc17_hc18_one_outside_of_it_stops_the_sink(stored: int, why: str) -> None:
    with pytest.raises(OffsetOutOfRange, match=why) as stopped:
        fit_offsets_to_sources(offsets(stored), KNOWN, topics((5, 90)), SETTINGS)

    assert f"trips/0: the next offset is {stored}" in stopped.value.message


@pytest.mark.parametrize(
    ("policy", "stored", "goes_on_at"),
    [
        (OffsetPolicy.EARLIEST, 4, 5),
        (OffsetPolicy.LATEST, 4, 90),
        (OffsetPolicy.LATEST, 91, 90),
    ],
)
def test_f39_f41_unless_a_policy_says_where_to_go_on(
    policy: OffsetPolicy, stored: int, goes_on_at: int
) -> None:
    settings = replace(SETTINGS, on_offset_out_of_range=policy)

    assert fit_offsets_to_sources(offsets(stored), KNOWN, topics((5, 90)), settings) == offsets(
        goes_on_at
    )


def test_a_log_that_lost_its_end_is_not_read_again_from_its_beginning() -> None:
    """Its records are in the table: an append-only table would hold them twice."""
    earliest = replace(SETTINGS, on_offset_out_of_range=OffsetPolicy.EARLIEST)
    fit = fit_offsets_to_sources(offsets(91), KNOWN, topics((5, 90)), earliest)
    assert fit == offsets(90)


def test_f45_a_topic_with_another_id_stops_the_sink_though_the_offset_fits() -> None:
    with pytest.raises(TopicRecreated, match="trips"):
        fit_offsets_to_sources(
            offsets(50), KNOWN, topics((0, 90), topic_id=TopicId("new")), SETTINGS
        )


@pytest.mark.parametrize(
    ("policy", "goes_on_at"), [(OffsetPolicy.EARLIEST, 3), (OffsetPolicy.LATEST, 90)]
)
def test_unless_a_policy_says_so(policy: OffsetPolicy, goes_on_at: int) -> None:
    """Partitions that the new topic does not have are forgotten."""
    settings = replace(SETTINGS, on_topic_recreated=policy)
    now = topics((3, 90), topic_id=TopicId("new"))

    assert fit_offsets_to_sources(offsets(50, 60), KNOWN, now, settings) == offsets(goes_on_at)


def test_a_new_partition_begins_at_its_logs_begin() -> None:
    assert fit_offsets_to_sources(offsets(50), KNOWN, topics((0, 90), (7, 9)), SETTINGS) == offsets(
        50, 7
    )


def test_a_new_topic_does_too() -> None:
    now = topics((0, 90)) | topics((4, 5), name="more", topic_id=TopicId("more-1"))
    fit = fit_offsets_to_sources(offsets(50), KNOWN, now, SETTINGS)

    assert fit == Offsets({P0: 50, TopicPartition("more", 0): 4})


def test_a_topic_that_is_no_longer_there_keeps_its_offsets() -> None:
    gone = Offsets({P0: 50, TopicPartition("gone", 0): 8})

    assert fit_offsets_to_sources(gone, KNOWN, topics((0, 90)), SETTINGS) == gone


def test_the_next_epoch_is_above_table_branch_and_log() -> None:
    low, high = record(3, 9, offsets(0)), record(8, 0, offsets(0))

    assert next_epoch((view(None),), Epoch(0)) == 1
    assert next_epoch((view(low),), Epoch(0)) == 4
    assert next_epoch((view(low, on_branch=high),), Epoch(0)) == 9
    assert next_epoch((view(low, on_branch=high),), Epoch(11)) == 12


def test_a_fresh_table_has_no_record() -> None:
    assert record_to_resume_from(view(None), SETTINGS) is None
    stored = record(3, 9, offsets(1))
    assert record_to_resume_from(view(stored), SETTINGS) == stored


def test_another_group_may_not_use_the_sinks_name() -> None:
    require_sink_name_not_taken(record(3, 9, offsets(1)), IDENTITY)
    require_sink_name_not_taken(None, IDENTITY)
    with pytest.raises(SinkNameTaken, match="others"):
        require_sink_name_not_taken(record(3, 9, offsets(1), group="others"), IDENTITY)


@pytest.mark.parametrize(
    ("known_uuid", "note", "is_stopped"),
    [
        (None, None, False),
        ("uuid-1", None, False),
        ("uuid-0", None, True),
        (None, offset_metadata_of_table("uuid-1", SINK), False),
        (None, offset_metadata_of_table("uuid-0", SINK), True),
        (None, "somebody else's note", False),
        ("uuid-1", offset_metadata_of_table("uuid-0", SINK), False),
    ],
)
def test_a_table_created_anew_is_noticed(
    known_uuid: str | None, note: str | None, is_stopped: bool
) -> None:
    if is_stopped:
        with pytest.raises(TableRecreated, match="uuid-0"):
            require_table_not_recreated(view(None), known_uuid, note, SETTINGS)
    else:
        require_table_not_recreated(view(None), known_uuid, note, SETTINGS)
    restart = replace(SETTINGS, on_table_recreated=TableRecreatedPolicy.RESTART)
    require_table_not_recreated(view(None), known_uuid, note, restart)


def test_the_groups_note_means_nothing_once_the_table_has_our_record() -> None:
    """The note may be older than a restart that was wanted."""
    require_table_not_recreated(
        view(record(1, 0, offsets(0))), None, offset_metadata_of_table("uuid-0", SINK), SETTINGS
    )


def test_partition_numbers_are_told_apart() -> None:
    fit = fit_offsets_to_sources(offsets(50, 60), KNOWN, topics((0, 90), (0, 90)), SETTINGS)
    assert (fit[P0], fit[P1]) == (50, 60)
