"""A participant that hears nobody finds out that others commit elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from unit.operations.filled_table import sink_file_text

from headgate.config.load import parse
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import (
    GroupTaken,
    OtherConfiguration,
    SinkStopped,
    Unreachable,
)
from headgate.control_protocol.events import Envelope, Notice, NoticeKind
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.participant.settings import ParticipantSettings
from headgate.participant.state import Ownership, State, Term, Work
from headgate.runtime.misconfigured_participant_detection import (
    ASKED_EVERY_MS,
    MisconfigurationDetector,
    Sources,
)

SETTINGS = parse(sink_file_text(Path("/lake")))
SINK = SinkName("trips")
EVERY_MS = 120_000
LOOKS = 4
OWNS = State(
    SINK,
    Sender("worker-1", "life"),
    ParticipantSettings(),
    term=Term(Epoch(1), Sender("worker-9", "life")),
    work=Work({TopicPartition("trips", 0): Ownership(1)}),
)
"""It heard a coordinator once."""


class Table:
    """A record that somebody else moves, or not."""

    def __init__(
        self, control_topic: str | None, topic_id: str | None = None, *, moves: bool = True
    ) -> None:
        self.number = 0
        self.moves = moves
        self.control_topic = control_topic
        self.topic_id = TopicId(topic_id) if topic_id else None
        self.reads = 0

    def read(self) -> CommitRecord:
        self.reads += 1
        self.number += self.moves
        return CommitRecord(
            SINK,
            "headgate-trips",
            TransactionId(Epoch(1), TransactionNumber(self.number)),
            Sender("worker-9", "life"),
            Offsets(),
            control_topic=self.control_topic,
            control_topic_id=self.topic_id,
        )


def watched(
    read: Callable[[], CommitRecord | None],
    state: State = OWNS,
    *,
    sinks: frozenset[str] = frozenset(),
    leads: bool = False,
    hears: bool = False,
    refused: Callable[[], int] = lambda: 0,
) -> None:
    """For as long as four looks take."""
    sources = Sources(read, lambda: sinks, lambda: TopicId("id-1"), refused)
    lookout = MisconfigurationDetector(SETTINGS, sources, 0)
    for now_ms in range(0, (LOOKS + 1) * EVERY_MS, 1_000):
        if hears and now_ms % 60_000 == 0:
            term = replace(state.term, settled_to=ControlOffset(now_ms))
            state = replace(state, term=term)
        lookout.require_not_misconfigured_or_stopped(state, now_ms, leads=leads)


def test_others_commit_through_another_control_topic() -> None:
    with pytest.raises(OtherConfiguration, match="worker-9 on control topic elsewhere") as caught:
        watched(Table("elsewhere").read)
    assert "this sink file names control:" in caught.value.message


def test_others_commit_through_a_control_topic_of_another_cluster() -> None:
    with pytest.raises(OtherConfiguration, match="control topic control with id id-2") as caught:
        watched(Table("control", "id-2").read)
    assert "participant's cluster has id id-1" in caught.value.message


@pytest.mark.parametrize(
    "table",
    [
        Table("control", "id-1"),
        Table("control"),
        Table(None),
        Table("elsewhere", moves=False),
        Table("control", "id-2", moves=False),
    ],
)
def test_the_same_topic_and_a_record_that_rests_say_nothing(table: Table) -> None:
    watched(table.read)
    assert table.reads == LOOKS


def test_another_sink_in_the_group_is_named() -> None:
    with pytest.raises(GroupTaken, match=r"that of sink 'rides', but this file names sink 'trips'"):
        watched(lambda: None, sinks=frozenset({"rides", "trips"}))


def test_the_sinks_own_notes_say_nothing() -> None:
    watched(lambda: None, sinks=frozenset({"trips"}))


@pytest.mark.parametrize("how", ["hears", "leads", "owns nothing"])
def test_who_hears_a_coordinator_or_has_nothing_to_lose_does_not_look(how: str) -> None:
    table = Table("elsewhere")
    state = replace(OWNS, work=Work()) if how == "owns nothing" else OWNS
    others = frozenset({"rides"})
    watched(table.read, state, sinks=others, leads=how == "leads", hears=how == "hears")
    assert table.reads == 0


def test_a_catalog_that_is_away_is_asked_again() -> None:
    asked = 0

    def away() -> CommitRecord:
        nonlocal asked
        asked += 1
        raise Unreachable("away")

    watched(away)
    assert asked == LOOKS


def test_a_coordinator_that_signs_otherwise_is_named() -> None:
    with pytest.raises(OtherConfiguration, match=r"not signed with .*control\.key"):
        watched(Table("control", "id-1").read, refused=iter(range(5, 50)).__next__)


def test_forged_events_alone_end_nobody() -> None:
    table = Table("control", "id-1", moves=False)
    watched(table.read, refused=iter(range(5, 50)).__next__)
    assert table.reads == LOOKS


def asked(sink: str = "trips", kind: NoticeKind = NoticeKind.ASKED) -> Envelope:
    notice = Notice(kind, text="stop", actor="ann@one")
    nobody = Sender("operator", "life")
    return Envelope(SinkName(sink), Epoch(0), TransactionNumber(0), nobody, 0, 0, notice)


def test_a_notice_that_a_person_did_something_makes_it_look_at_the_table() -> None:
    table = Table(None)
    lookout = MisconfigurationDetector(SETTINGS, Sources(table.read, frozenset, lambda: None), 0)
    lookout.require_not_misconfigured_or_stopped(OWNS, 1, leads=True)
    for said in (asked("other"), asked(kind=NoticeKind.STARTED), asked(kind=NoticeKind.ERROR)):
        lookout.on_event(said)
        lookout.require_not_misconfigured_or_stopped(OWNS, 2, leads=True)
    assert table.reads == 0
    lookout.on_event(asked())
    lookout.require_not_misconfigured_or_stopped(OWNS, 3, leads=True)
    assert table.reads == 1  # nobody had stopped it: nothing comes of it
    lookout.require_not_misconfigured_or_stopped(OWNS, 3 + ASKED_EVERY_MS, leads=True)
    assert table.reads == 1


def test_however_many_notices_come_it_looks_once_in_a_while() -> None:
    table = Table(None)
    lookout = MisconfigurationDetector(SETTINGS, Sources(table.read, frozenset, lambda: None), 0)
    for now_ms in range(ASKED_EVERY_MS):
        lookout.on_event(asked())
        lookout.require_not_misconfigured_or_stopped(OWNS, now_ms, leads=False)
    assert table.reads == 1


def test_what_a_person_stopped_is_left_by_who_leads_and_who_does_not() -> None:
    table = Table(None)
    stopped = replace(table.read(), stopped=True, actor="ann@one")
    answers: list[CommitRecord | None] = []

    def read() -> CommitRecord | None:
        if not answers:
            raise Unreachable("away")
        return answers.pop()

    for leads in (True, False):
        lookout = MisconfigurationDetector(SETTINGS, Sources(read, frozenset, lambda: None), 0)
        lookout.on_event(asked())
        lookout.require_not_misconfigured_or_stopped(
            OWNS, 1, leads=leads
        )  # the table is away: it is looked at again
        answers.append(stopped)
        with pytest.raises(SinkStopped, match="ann@one"):
            lookout.require_not_misconfigured_or_stopped(OWNS, 1 + ASKED_EVERY_MS, leads=leads)


def test_who_hears_nobody_finds_out_as_well() -> None:
    stopped = replace(Table(None).read(), stopped=True)
    with pytest.raises(SinkStopped):
        watched(lambda: stopped)
