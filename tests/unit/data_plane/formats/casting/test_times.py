"""Dates and times as text: what is written is read as the same."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.data_plane.formats.casting import times

DAYS = st.integers(-719_162, 2_932_896)
IN_DAY = st.integers(0, 86_400 * 10**9 - 1)


@given(DAYS, IN_DAY)
@example(-719_162, 0)
@example(2_932_896, 86_400 * 10**9 - 1)
@example(-1, 1)
def test_the_text_of_a_moment_is_read_as_it(days: int, nanos: int) -> None:
    assert times.parse_date(times.iso_text(days, pa.date32())) == days
    for unit, per in (("us", 1_000), ("ns", 1)):
        clock = nanos // per
        assert times.parse_time(times.iso_text(clock, pa.time64(unit)), unit) == clock
        moment = days * 86_400 * 10**9 // per + clock
        if -(2**63) <= moment < 2**63:
            for zone in (None, "UTC"):
                text = times.iso_text(moment, pa.timestamp(unit, zone))
                assert times.parse_timestamp(text, unit, zoned=zone is not None) == moment
                assert text.endswith("+00:00") == (zone is not None)


@pytest.mark.parametrize(("text", "clock"), [("-03:30", "03:30"), ("+05:45", "18:15")])
def test_minutes_of_a_zone_go_the_way_of_its_hours(text: str, clock: str) -> None:
    there = times.parse_timestamp(f"2026-01-02T00:00:00{text}", "us", zoned=True)
    day = 2 if text[0] == "-" else 1
    assert there == times.parse_timestamp(f"2026-01-0{day}T{clock}:00Z", "us", zoned=True)
