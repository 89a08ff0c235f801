"""The pages of a process's sinks."""

from __future__ import annotations

from headgate.operations.http.status_page import index_page


def test_the_key_of_a_fleets_participant_is_a_path_and_no_fragment() -> None:
    page = index_page({"trips#2": "HG-401 no connection"}, 0)
    assert '<a href="/sinks/trips%232">trips#2</a>' in page
