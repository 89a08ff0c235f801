"""What members say, in words."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console
from unit.config.test_load import MINIMAL
from unit.runtime.test_health import ACK, ALIVE, POISON, START, said

from headgate.config.load import parse
from headgate.control_protocol.errors import LogDiscontinuity, Unreachable
from headgate.control_protocol.events import (
    EndCommit,
    Envelope,
    Event,
    LogRecord,
    Notice,
    NoticeKind,
    Pause,
    Presence,
    PresenceKind,
    WriteStatus,
    WrittenRange,
)
from headgate.control_protocol.identifiers import ControlOffset, SinkName, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.operations.render_command_results import show_event
from headgate.operations.status import event_tail as module
from headgate.operations.status.event_tail import (
    describe_event,
    event_as_json,
    event_name,
    tail_events,
)

GAINED = Presence(PresenceKind.GAINED, frozenset(TopicPartition("t", n) for n in range(7)), {})
ROWS = WriteStatus(1, {TopicPartition("t", n): WrittenRange(OffsetRange(0, 4), n) for n in (3, 4)})


@pytest.mark.parametrize(
    ("event", "named", "text"),
    [
        (START, "START-COMMIT", "0 partitions"),
        (EndCommit(), "END-COMMIT", ""),
        (ROWS, "WRITE-STATUS", "7 rows"),
        (WriteStatus(1, failure="disk full"), "WRITE-STATUS", "0 rows, failed: disk full"),
        (ACK, "ACK-COMMIT", "0 rows"),
        (GAINED, "PRESENCE gained", "t/0, t/1, t/2, t/3, t/4 and 2 more"),
        (Pause(), "PAUSE", ""),
        (POISON, "NOTICE stopped", "HG-207 orders/0, offset 7: not JSON"),
        (Notice(NoticeKind.STOPPED), "NOTICE stopped", "in order"),
        (Notice(NoticeKind.ERROR, "HG-401", "no answer"), "NOTICE error", "HG-401 no answer"),
        (
            Notice(NoticeKind.ERROR, "HG-401", "HG-401 no answer"),
            "NOTICE error",
            "HG-401 no answer",
        ),
        (Notice(NoticeKind.ASKED, text="pause", actor="ann@one"), "NOTICE asked", "ann@one: pause"),
        (
            Notice(NoticeKind.STARTED, configuration="0a1b", page="127.0.0.1:8080"),
            "NOTICE started",
            "configuration 0a1b page at 127.0.0.1:8080",
        ),
    ],
)
def test_every_event_in_words(event: Event, named: str, text: str) -> None:
    assert (event_name(event), describe_event(event)) == (named, text)


def test_the_newest_without_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = [said(START, 3), said(ALIVE, 2), said(ACK, 1)]
    monkeypatch.setattr(module, "read_control_tail", lambda *_: heard)
    settings = parse(MINIMAL)
    assert [e.event for e in tail_events(settings, 50, follow=False)] == [START, ACK]
    assert [e.event for e in tail_events(settings, 1, follow=False)] == [ACK]
    assert list(tail_events(settings, 0, follow=False)) == []


def test_a_hostile_text_stays_on_its_line() -> None:
    shown = io.StringIO()
    envelope: Envelope = said(
        Notice(NoticeKind.ERROR, "HG-400", "x\x1b[2J\nok all is well"), 1, member="a\nb"
    )
    show_event(Console(file=shown, width=200), event_as_json(envelope))
    assert shown.getvalue().count("\n") == 1
    assert "\x1b" not in shown.getvalue()
    assert "\n" not in json.dumps(event_as_json(envelope))


def test_brokers_that_are_away_are_one_line(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headgate.operations.cli.main import main

    def away(*_: object) -> list[Envelope]:
        raise Unreachable("no broker answers")

    monkeypatch.setattr(module, "read_control_tail", away)
    path = f"{tmp_path}/sink.toml"
    with open(path, "w") as file:  # noqa: PTH123
        file.write(MINIMAL)
    result = CliRunner().invoke(main, ["events", path])
    assert (result.exit_code, result.stderr) == (3, "headgate: HG-401 no broker answers\n")


class Log:
    """Three reads: what the tail had already, something new with a stranger's, a broken log."""

    def __init__(self, tail: list[Envelope]) -> None:
        new = said(Pause(), 0, member="operator")
        stranger = replace(new, sink=SinkName("other"), sequence=9)
        self.reads = [tail[-1:], [stranger, new, said(ALIVE, 0)], None]
        self.sought: list[int] = []
        self.closed = False

    def end_offset(self) -> int:
        return 7

    def seek(self, offset: int) -> None:
        self.sought.append(offset)

    def read(self, _: int) -> list[LogRecord]:
        found = self.reads.pop(0) if self.reads else []
        if found is None:
            raise LogDiscontinuity("created anew")
        if not self.reads and not found:
            raise KeyboardInterrupt
        return [LogRecord(ControlOffset(0), envelope) for envelope in found]

    def close(self) -> None:
        self.closed = True


def test_following_shows_each_event_once_and_survives_a_new_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tail = [said(START, 2), said(ACK, 1)]
    log = Log(tail)
    monkeypatch.setattr(module, "read_control_tail", lambda *_: tail)
    monkeypatch.setattr(module, "open_control_log", lambda _: log)
    settings = replace(parse(MINIMAL), name=tail[0].sink)
    shown: list[Event] = []
    following = tail_events(settings, 50, follow=True)
    with pytest.raises(KeyboardInterrupt):
        while True:
            shown.append(next(following).event)
    assert [type(event) for event in shown] == [type(START), type(ACK), Pause]
    assert (log.sought, log.closed) == ([7, 7], True)
