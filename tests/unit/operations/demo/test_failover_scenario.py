"""When the demo kills: only the coordinator, only with rows on their way and an heir there."""

from __future__ import annotations

import io
import signal
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from unit.operations.demo.conversation import FIRST as LEADER
from unit.operations.demo.conversation import P0, P1, ack, presence, said, start
from unit.operations.demo.conversation import SECOND as HEIR

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import EndCommit, Envelope, LogRecord
from headgate.control_protocol.identifiers import ControlOffset
from headgate.operations.demo import failover_scenario as playing
from headgate.operations.demo.failover_scenario import COMMITS_BEFORE_KILL, FailoverScenario
from headgate.operations.demo.screen import Screen

RECORDS = 1_000


class Conversation:
    """A control log that says one thing per turn."""

    def __init__(self, *envelopes: Envelope) -> None:
        self._left = deque(envelopes)

    def read(self, timeout_ms: int) -> list[LogRecord]:
        assert self._left, "the play waits for more than was said"
        return [LogRecord(ControlOffset(0), self._left.popleft())]


class Stream:
    records = RECORDS
    confirmed_count_or_raise = RECORDS
    going = released = False

    def lift_backlog_limit(self) -> None:
        self.going = True

    def release_withheld_records(self) -> None:
        self.released = True


class Process:
    def __init__(self, pid: int) -> None:
        self.pid, self.is_running, self.log = pid, True, Path(f"{pid}.log")

    def kill_and_find_end_signal(self) -> signal.Signals:
        self.is_running = False
        return signal.SIGKILL

    def require_running(self) -> None:
        if not self.is_running:
            raise HeadgateError(f"{self.pid} ended by itself")


def commits(number: int) -> list[Envelope]:
    return [said(LEADER, 1, n, ack(n, 100 + n, 2)) for n in range(1, number + 1)]


BOTH_READ = (said(LEADER, 1, 0, presence(P0)), said(HEIR, 1, 0, presence(P1)))
LEADS = said(LEADER, 1, 1, start(0))
END = said(LEADER, 1, 9, EndCommit())
TAKEOVER = said(HEIR, 2, 1, start(4))
ALL_IN = said(HEIR, 2, 1, ack(RECORDS // 2, 200, RECORDS - 8))


def played(
    *envelopes: Envelope, signals: Sequence[int] = ()
) -> tuple[FailoverScenario, str, Stream]:
    output, stream = io.StringIO(), Stream()
    screen = Screen(Console(file=output, width=200))
    processes = [Process(11), Process(22)]
    play = FailoverScenario(screen, Conversation(*envelopes), stream, processes)  # type: ignore[arg-type]
    play.run(signals)
    return play, output.getvalue(), stream


def test_the_coordinator_dies_in_mid_transaction_and_the_heir_brings_all_in() -> None:
    script = (LEADS, *BOTH_READ, *commits(COMMITS_BEFORE_KILL), END, TAKEOVER, ALL_IN)
    play, output, stream = played(*script)
    assert play.kill is not None
    assert (play.kill.pid, play.kill.by_signal) == (11, signal.SIGKILL)
    assert str(play.kill.transaction) == "1.9"
    assert [survivor.pid for survivor in play.survivors] == [22]
    assert play.taken_over_s is not None
    assert (stream.going, stream.released) == (True, True)
    assert "kill -9      pid 11, the coordinator, in the middle of transaction 1.9" in output
    assert "pid 22 coordinates epoch 2" in output


@pytest.mark.parametrize(
    "script",
    [
        (LEADS, *BOTH_READ, *commits(COMMITS_BEFORE_KILL - 1), END),
        (LEADS, BOTH_READ[0], *commits(COMMITS_BEFORE_KILL), END),
    ],
    ids=["too few commits", "nobody else reads"],
)
def test_it_waits_for_the_moment(script: tuple[Envelope, ...]) -> None:
    play, _, stream = played(*script, ALL_IN)
    assert play.kill is None
    assert not stream.released


def test_without_rows_on_their_way_nobody_dies() -> None:
    all_but_confirmed = said(LEADER, 1, 5, ack(RECORDS // 2, 200, RECORDS))
    Stream.confirmed_count_or_raise = RECORDS - 1  # one is still on its way into Kafka
    try:
        script = (LEADS, *BOTH_READ, *commits(COMMITS_BEFORE_KILL), all_but_confirmed, END)
        with pytest.raises(AssertionError, match="more than was said"):
            played(*script)
    finally:
        Stream.confirmed_count_or_raise = RECORDS


def test_a_standstill_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "STUCK_SECONDS_MAX", -1.0)
    with pytest.raises(HeadgateError, match=r"nothing has moved .*11\.log, 22\.log"):
        played(LEADS, LEADS)


def test_a_signal_ends_it_although_its_own_exception_was_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        played(LEADS, *BOTH_READ, ALL_IN, signals=[signal.SIGTERM])
