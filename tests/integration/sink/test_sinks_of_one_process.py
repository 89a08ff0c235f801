"""Point 2: two sinks in one process and one thread; what befalls one leaves the other alone."""

from __future__ import annotations

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment

import headgate
from headgate.control_protocol.errors import PoisonRecord

pytestmark = pytest.mark.integration


def turned(sink: headgate.Sink, of: Deployment) -> None:
    """Until all that the source holds is in the table."""

    def caught_up() -> bool:
        for _ in range(5):
            sink.turn()
        return of.lag() == 0

    of.wait_until(caught_up, "lag of zero")


def test_point_2_two_sinks_of_one_process_and_one_that_ends(deploy: Deploy) -> None:
    one = deploy(change={"quarantine": {"policy": "fail"}})
    other = deploy()
    with headgate.Sink(other.settings) as second:
        with headgate.Sink(one.settings) as first:
            for sink in (one, other):
                sink.produce(500)
            turned(first, one)
            turned(second, other)
            one.bad_every = 1
            one.produce(1)
            with pytest.raises(PoisonRecord):
                turned(first, one)
        other.produce(500)
        turned(second, other)
    other.judge()
    assert one.rows().num_rows == 500
