"""A leader whose own way to the store is cut, beside a participant that can do everything
(ELECTION-2)."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from support.object_store import ObjectStore
from support.store_proxy import HANGS, Answer, StoreProxy, s3_error

from headgate.control_protocol.errors import LeadershipReleased
from headgate.operations.audit.audit import audit
from headgate.operations.status.status import read_status

pytestmark = [pytest.mark.integration, pytest.mark.wide]

RELEASED_S = 400.0
"""A minute, and what a call takes that hangs until its client gives up."""


@pytest.mark.parametrize(
    "answer",
    [pytest.param(s3_error(503, "SlowDown"), marks=pytest.mark.soak), HANGS],
    ids=["503", "hangs"],
)
def test_the_lead_goes_to_the_one_that_reaches_the_store(
    deploy: Deploy, object_store: ObjectStore, unique_name: str, answer: Answer
) -> None:
    with ExitStack() as stack:
        ways = [stack.enter_context(StoreProxy(object_store.port)) for _ in range(2)]
        warehouse = {"warehouse": f"s3://lake/{unique_name}"}
        sink = deploy({"catalog.properties": {**object_store.s3(), **warehouse}})
        started = {}
        for way in ways:
            sink.change({"catalog.properties": {**object_store.s3(way.uri), **warehouse}})
            (participant,) = sink.start()
            started[participant] = way
        sink.change({"catalog.properties": {**object_store.s3(), **warehouse}})
        sink.produce()
        sink.wait_until(sink.all_share, "two at work")
        sink.produce()
        sink.wait_until_lag_zero()
        first = sink.leader()
        (second,) = started.keys() - {first}

        started[first].refuse(".*", answer)
        sink.produce()
        released = f"{LeadershipReleased.code} catalog and store have not done what"
        sink.wait_until(lambda: first.said(released), "the lead to be released", RELEASED_S)
        sink.wait_until(lambda: said(sink) == LeadershipReleased.code, "status to say so")
        sink.wait_until(lambda: sink.leader() is second, "the other's first commit")
        sink.wait_until_lag_zero()

        started[first].pass_on()
        started[first].let_go()
        sink.produce()
        sink.wait_until(sink.all_share, "it to come back")
        sink.wait_until_lag_zero()
        sink.stop()
        report = audit(sink.settings)
        assert not report.findings
        assert len(report.epochs) >= 2


def said(sink: Deployment) -> str | None:
    """The code of the newest error that ``headgate status`` shows, past or not."""
    error = read_status(sink.settings).last_error
    return error.code if error else None
