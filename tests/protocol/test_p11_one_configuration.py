"""P11: all participants of a sink have one configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.participating import Participant
from protocol.values import P0, TABLE

from headgate.control_protocol.errors import OtherConfiguration
from headgate.control_protocol.offsets import Offsets
from headgate.participant.actions import Stop


def hears_a_start(own_table: str | None) -> Participant:
    participant = Participant()
    participant.state = replace(participant.state, table=own_table)
    participant.owns(P0)
    participant.hears_itself()
    participant.start(1, Offsets({P0: 5}))
    return participant


def test_point_19_a_start_for_another_table_ends_the_participant() -> None:
    participant = hears_a_start("lake.elsewhere")
    (stop,) = participant.all(Stop)
    assert isinstance(stop.error, OtherConfiguration)
    assert stop.error.code == "HG-114"
    assert f"into {TABLE}, but this sink file names lake.elsewhere" in stop.error.message
    assert participant.state.writing is None


@pytest.mark.parametrize("own_table", [None, TABLE])
def test_point_19_a_start_for_its_own_table_is_worked_on(own_table: str | None) -> None:
    participant = hears_a_start(own_table)
    assert participant.all(Stop) == []
    assert participant.state.writing is not None
