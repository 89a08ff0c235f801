"""What a participant that does not lead logs of itself."""

from __future__ import annotations

import logging

import pytest
from protocol.values import P0, P1, gain, status

from headgate.control_protocol.events import WriteStatus
from headgate.control_protocol.identifiers import Epoch, TransactionNumber
from headgate.control_protocol.machine_io import OutgoingEvent
from headgate.participant.driver import log_own_event

LOG = logging.getLogger("headgate.test_driver_own_words")


def said(caplog: pytest.LogCaptureFixture, draft: OutgoingEvent) -> list[str]:
    with caplog.at_level(logging.INFO, LOG.name):
        log_own_event(LOG, "orders", draft)
    return caplog.messages


def test_rows_that_it_announces(caplog: pytest.LogCaptureFixture) -> None:
    draft = OutgoingEvent(Epoch(7), TransactionNumber(3), status(1, {P0: (0, 5), P1: (2, 4)}), 9)
    assert said(caplog, draft) == ["sink orders: 7 rows announced for transaction 7.3"]


def test_what_it_could_not_write_is_told_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = WriteStatus(1, unknown=frozenset({P0, P1}), failure="HG-403 no space left")
    told = "0 rows announced for transaction 7.3, and 2 partitions are not written: HG-403 no space"
    (line,) = said(caplog, OutgoingEvent(Epoch(7), TransactionNumber(3), failed, 9))
    assert line.startswith(f"sink orders: {told}")


def test_a_status_without_rows_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    assert (
        said(caplog, OutgoingEvent(Epoch(7), TransactionNumber(3), status(1, {P0: (5, 5)}), 9))
        == []
    )


def test_partitions_that_it_gained(caplog: pytest.LogCaptureFixture) -> None:
    draft = OutgoingEvent(Epoch(7), TransactionNumber(0), gain(P0, P1), 9)
    assert said(caplog, draft) == ["sink orders: gained trips/0, trips/1"]
