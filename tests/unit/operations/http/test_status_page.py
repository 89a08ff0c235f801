"""The pages of a process's sinks."""

from __future__ import annotations

from headgate.operations.http.status_page import index_page
from headgate.runtime.wall_clock import format_utc


def test_the_key_of_a_fleets_participant_is_a_path_and_no_fragment() -> None:
    page = index_page({"trips#2": "HG-401 no connection"}, 0)
    assert '<a href="/sinks/trips%232">trips#2</a>' in page


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    """Whoever writes to a control topic without signatures chooses when it is tried again."""
    assert format_utc(1_786_000_000_000_000) == "1786000000000000 ms after 1970"
