"""A sink file that differs from that of the participants at work does not join them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from unit.config.test_load import MINIMAL

from headgate.config.configuration_fingerprint import configuration_digest, settings_to_agree_on
from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import OtherConfiguration
from headgate.control_protocol.events import (
    Envelope,
    Event,
    Notice,
    NoticeKind,
    PartitionPresence,
    Presence,
    PresenceKind,
    StartCommit,
    TableStart,
)
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Epoch,
    Sender,
    TopicPartition,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.runtime.configuration_comparison import (
    find_operator_started_with_other_file,
    find_participants_with_other_file,
    require_same_configuration,
)

RUNNING = parse(MINIMAL)
RUNNING = replace(RUNNING, participant=replace(RUNNING.participant, presence_interval_ms=1_000))
OTHER = replace(RUNNING, quarantine=replace(RUNNING.quarantine, policy=Disposal.SKIP))
OLD, NEW = Sender("host-1", "old"), Sender("host-2", "new")
P0 = TopicPartition("trips", 0)
NOW = 1_790_000_000_000


def envelope(event: Event, sender: Sender = OLD, time_ms: int = NOW - 500) -> Envelope:
    return Envelope(RUNNING.name, Epoch(1), TransactionNumber(1), sender, 0, time_ms, event)


def started(settings: SinkSettings, sender: Sender = OLD) -> Envelope:
    digest = configuration_digest(settings)
    return envelope(Notice(NoticeKind.STARTED, configuration=digest), sender)


def alive(sender: Sender = OLD, time_ms: int = NOW - 500) -> Envelope:
    said = Presence(PresenceKind.ALIVE, frozenset(), {P0: PartitionPresence()}, "writing")
    return envelope(said, sender, time_ms)


def start(settings: SinkSettings = RUNNING) -> Envelope:
    table = TableStart(settings.table.identifier, "uuid-1", 1, 0, "s3://t/data")
    said = StartCommit(
        ControlOffset(1),
        Offsets({P0: 1}),
        {},
        (table,),
        configuration=dict(settings_to_agree_on(settings)),
    )
    return envelope(said, Sender(OLD.member, "its coordinator"))


def found(said: Sequence[Envelope], settings: SinkSettings = OTHER) -> OtherConfiguration | None:
    return find_participants_with_other_file(settings, said, NOW).error


def test_config_1_what_differs_from_those_at_work_is_named() -> None:
    error = found([started(RUNNING), alive(), start()])
    assert error is not None
    assert "host-1" in error.message
    assert "quarantine.policy is 'fail' there and 'skip' here" in error.message


@pytest.mark.parametrize(
    "said",
    [
        [],
        [start()],
        [started(RUNNING), alive()],
        [started(RUNNING), alive(time_ms=NOW - 9_000), start()],
        [started(RUNNING), alive(), start(), envelope(Notice(NoticeKind.STOPPED))],
        [start(), started(OTHER, NEW), alive(NEW)],
        [started(RUNNING), alive(), start(OTHER)],
    ],
    ids=["nothing", "nobody", "no START", "dead", "left", "they have our file", "the same"],
)
def test_config_1_nobody_stands_in_the_way(said: Sequence[Envelope]) -> None:
    assert found(said) is None


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ('[shape]\nwhere = "a > 1"', "shape"),
        (
            '[maintenance]\nrows_after_ms = 3600000\nrows_by = "at"\nrows_late = "skip"',
            "maintenance.rows_late is '' there and 'skip by at' here",
        ),
    ],
)
def test_config_1_what_only_one_of_two_files_uses_differs(more: str, name: str) -> None:
    using = parse(f"{MINIMAL}\n{more}\n")
    error = found([started(RUNNING), alive(), start()], using)
    assert error is not None
    assert name in error.message
    error = found([started(using), alive(), start(using)], RUNNING)
    assert error is not None
    assert name.partition(" ")[0] in error.message


def test_config_1_the_same_file_joins() -> None:
    assert found([started(RUNNING), alive(), start()], RUNNING) is None


def test_config_1_another_digest_alone_is_another_version_and_joins() -> None:
    older = envelope(Notice(NoticeKind.STARTED, configuration="of another version"))
    assert found([older, alive(), start()], RUNNING) is None


def test_config_1_a_start_is_refused_once_one_of_those_at_work_speaks_again() -> None:
    now_ms = time.time_ns() // 1_000_000
    said = [alive(time_ms=now_ms), start()]

    def speaks(_: float) -> None:
        said.append(alive(time_ms=now_ms + 1))

    with pytest.raises(OtherConfiguration):
        require_same_configuration(OTHER, lambda: said, speaks)


def test_config_1_who_started_the_sink_with_another_file_is_named() -> None:
    def asked(text: str, settings: SinkSettings) -> Envelope:
        digest = configuration_digest(settings)
        told = Notice(NoticeKind.ASKED, text=text, actor="ann@desk", configuration=digest)
        return envelope(told, Sender("operator", "1"))

    assert (
        find_operator_started_with_other_file(
            OTHER, [asked("start", RUNNING), asked("pause", OTHER)]
        )
        == "ann@desk"
    )
    assert (
        find_operator_started_with_other_file(
            RUNNING, [asked("start", OTHER), asked("start", RUNNING)]
        )
        == ""
    )
    older = envelope(Notice(NoticeKind.ASKED, text="start", actor="ann@desk"))
    assert find_operator_started_with_other_file(OTHER, [older, asked("stop", RUNNING)]) == "", (
        "an older version's"
    )


def test_config_1_those_that_were_killed_are_waited_for_and_then_not_asked() -> None:
    now_ms = time.time_ns() // 1_000_000
    said = [alive(time_ms=now_ms), start()]
    waited: list[float] = []

    def buried(seconds: float) -> None:
        waited.append(seconds)
        said[0] = alive(time_ms=now_ms - 60_000)

    require_same_configuration(OTHER, lambda: said, buried)
    assert len(waited) == 1
