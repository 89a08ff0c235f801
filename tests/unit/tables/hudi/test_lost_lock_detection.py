"""A chain of commits is distinguished from a fork, whatever is archived."""

from __future__ import annotations

import pytest

from headgate.control_protocol.errors import HudiForked
from headgate.control_protocol.identifiers import SinkName
from headgate.tables.hudi.lost_lock_detection import (
    Link,
    previous_completion_time,
    previous_completion_time_key,
    require_no_resurrected_instants,
    require_unforked,
)

SINK = SinkName("sink")


def commit(requested: str, completed: int, after: str | None) -> Link:
    said = {} if after is None else {previous_completion_time_key(SINK): after}
    return Link(requested, completed, previous_completion_time(SINK, said))


def test_a_chain_is_gone_on_with() -> None:
    require_unforked("db.trips", SINK, [])
    require_unforked("db.trips", SINK, [commit("1", 2, "")])
    require_unforked("db.trips", SINK, [commit("3", 4, "2"), commit("1", 2, "")])


def test_the_commit_before_may_be_archived_and_an_older_one_not() -> None:
    """It was reserved long before it was completed, and Hudi archives by that time."""
    require_unforked("db.trips", SINK, [commit("5", 6, "4"), commit("2", 3, "")])


def test_a_commit_that_came_between_is_told() -> None:
    with pytest.raises(HudiForked, match=r"commit 5 of sink sink continues .* at 2, and not 3"):
        require_unforked("db.trips", SINK, [commit("5", 6, "2"), commit("3", 4, "2")])


@pytest.mark.parametrize("turned", [False, True])
def test_a_commit_is_told_wherever_it_is_known_from(*, turned: bool) -> None:
    """The timeline's come last here, and the archived one may be the first or the last complete."""
    active = [commit("7", 8, "2"), commit("3", 4, "2")]
    require_unforked("db.trips", SINK, [commit("7", 8, "2"), commit("1", 2, "")])
    with pytest.raises(HudiForked, match=r"commit 7 .* and not 3"):
        require_unforked("db.trips", SINK, active[::-1] if turned else active)
    require_unforked("db.trips", SINK, [commit("7", 8, "2"), commit("7", 8, "2")])


def test_the_first_claim_of_two_is_told() -> None:
    with pytest.raises(HudiForked, match="completed at no time, and not 1"):
        require_unforked("db.trips", SINK, [commit("1", 2, ""), commit("3", 4, "")])


def test_what_was_rolled_back_and_is_complete_is_told() -> None:
    require_no_resurrected_instants("db.trips", SINK, {"1"}, {"2"}.__contains__)
    with pytest.raises(HudiForked, match="commit 2 of sink sink was rolled back"):
        require_no_resurrected_instants("db.trips", SINK, {"1", "2"}, {"2"}.__contains__)
