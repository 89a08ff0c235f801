"""OUTCOME-1: an outcome is landed, refused or unknown; everything but a proven answer is unknown.

What an adapter makes of a catalog's answers is held by ``tests/contract/test_sink_table.py``; what
the coordinator makes of the three outcomes is ``test_outcome_2_outcomes.py``. Here: there is no
fourth.
"""

from __future__ import annotations

from typing import get_args

import pytest
from protocol.coordinating import Coordinator

from headgate.control_protocol.machine_io import Append
from headgate.control_protocol.ports import CommitOutcome, Landed, Refused, Unknown
from headgate.coordinator.inputs_and_actions import CallFailed, CommitAnswered, CommitTable
from headgate.coordinator.phases import Phase


def test_there_are_three_outcomes() -> None:
    assert set(get_args(CommitOutcome)) == {Landed, Refused, Unknown}


@pytest.mark.parametrize(
    "answer",
    [
        CommitAnswered(Refused("the tag moved")),
        CommitAnswered(Unknown("connection lost")),
        CallFailed("no answer at all"),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_hc23_nothing_but_landed_counts_as_landed(answer: CommitAnswered | CallFailed) -> None:
    coordinator = Coordinator.at(Phase.CLAIMING)
    coordinator.given(answer)

    assert coordinator.phase is Phase.CLAIMING
    assert not coordinator.wants(Append)
    assert not coordinator.wants(CommitTable)
