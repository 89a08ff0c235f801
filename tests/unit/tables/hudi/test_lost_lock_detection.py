"""A chain of commits is distinguished from a fork, whatever is archived."""

from __future__ import annotations

import pytest

from headgate.control_protocol.errors import HudiForked
from headgate.control_protocol.identifiers import SinkName
from headgate.tables.hudi.lost_lock_detection import (
    previous_completion_key,
    require_no_resurrected_instants,
    require_unforked,
)
from headgate.tables.hudi.write_client import Instant

SINK = SinkName("sink")


def commit(requested: str, completed: int, after: str | None) -> Instant:
    said = {} if after is None else {previous_completion_key(SINK): after}
    return Instant(requested, completed, "BULK_INSERT", replaces=False, said=said)


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


def test_what_was_rolled_back_and_is_complete_is_told() -> None:
    require_no_resurrected_instants("db.trips", SINK, {"1"}, {"2"}.__contains__)
    with pytest.raises(HudiForked, match="commit 2 of sink sink was rolled back"):
        require_no_resurrected_instants("db.trips", SINK, {"1", "2"}, {"2"}.__contains__)
