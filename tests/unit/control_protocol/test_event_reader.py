"""A listener hears whole events of its sink, from the end on, and says when the log broke off."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.control_envelopes import EXAMPLES, envelope

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.event_reader import Listener
from headgate.control_protocol.events import Envelope, TableStatus, WriteStatus, WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.multipart_status import split_status
from headgate.control_protocol.testing import FakeClock, FakeLog, FakeLogServer

SAID = envelope(EXAMPLES["presence"])


@pytest.fixture
def server() -> FakeLogServer:
    return FakeLogServer(FakeClock())


@pytest.fixture
def listener(server: FakeLogServer) -> Listener:
    listener = Listener(FakeLog(server), SAID.sink)
    FakeLog(server).append([SAID])  # before it stands: never heard
    assert (listener.behind, listener.seek_end_and_pop_discontinuity(), listener.behind) == (
        True,
        None,
        False,
    )
    return listener


def heard(listener: Listener) -> list[Envelope]:
    return [record.envelope for record in listener.read_events(1)]


def test_it_hears_its_own_sink_from_the_end_on(server: FakeLogServer, listener: Listener) -> None:
    FakeLog(server).append([replace(SAID, sink=SinkName("other")), replace(SAID, sequence=99)])
    assert [said.sequence for said in heard(listener)] == [99]
    assert heard(listener) == []


def test_parts_are_heard_once_and_whole(server: FakeLogServer, listener: Listener) -> None:
    files = tuple(WrittenFile(f"s3://lake/{number}", 1, 100) for number in range(50))
    status = WriteStatus(1, {}, (TableStatus("lake.orders", files),))
    first, *others = [envelope(part) for part in split_status(status, 700)]
    assert others
    FakeLog(server).append([first])
    assert heard(listener) == []
    FakeLog(server).append(others)
    assert [said.event for said in heard(listener)] == [status]


def test_a_log_that_broke_off_is_told_once_and_forgets_parts(
    server: FakeLogServer, listener: Listener
) -> None:
    server.generation += 1
    assert heard(listener) == []
    assert listener.behind
    assert listener.seek_end_and_pop_discontinuity() == "the control topic was re-created"
    assert (listener.behind, listener.seek_end_and_pop_discontinuity()) == (False, None)


def test_an_outage_leaves_the_place(server: FakeLogServer, listener: Listener) -> None:
    server.reachable = False
    with pytest.raises(Unreachable):
        heard(listener)
    assert not listener.behind
    server.reachable = True
    FakeLog(server).append([replace(SAID, sequence=7)])
    assert [said.sequence for said in heard(listener)] == [7]
