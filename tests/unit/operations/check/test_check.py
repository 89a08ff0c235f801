"""What ``headgate check`` says of this installation."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.config.sink_sections import WriterKind
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import ClockDiffers, Unreachable
from headgate.control_protocol.events import Envelope, Notice, NoticeKind
from headgate.control_protocol.identifiers import Epoch, Sender, TopicId, TransactionNumber
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import TopicState
from headgate.native.kernels import InPython, Loops
from headgate.operations.check import check
from headgate.operations.check.check import _check_clock, _check_source, _check_writer
from headgate.operations.check.table import NotChecked


def test_whether_there_was_a_c_compiler(settings: SinkSettings, either_loops: Loops) -> None:
    spark = replace(settings.spark, writer=WriterKind.IN_PROCESS)
    said = _check_writer(replace(settings, spark=spark))
    assert ("installed without a C compiler" in said) == isinstance(either_loops, InPython)


def clock(
    monkeypatch: pytest.MonkeyPatch, settings: SinkSettings, *appended_ms: int | None, stops: bool
) -> str:
    """What is said if the newest event, and the next one, were appended so long ago."""
    now_ms = time.time_ns() // 1_000_000
    answers = iter(appended_ms)
    ago = [None if (ms := next(answers, None)) is None else now_ms - ms for _ in range(2)]
    said = Notice(NoticeKind.STOPPED if stops else NoticeKind.STARTED)
    sender = Sender("host", "life")
    heard = Envelope(settings.name, Epoch(0), TransactionNumber(0), sender, 0, now_ms, said)
    monkeypatch.setattr(check, "read_newest_append_time", lambda *_: ago.pop(0))
    monkeypatch.setattr(check, "try_read_recent_envelopes", lambda _: [heard])
    return _check_clock(settings)


HOURS_MS = 2 * 60 * 60 * 1000


def test_a_clock_like_the_brokers(monkeypatch: pytest.MonkeyPatch, settings: SinkSettings) -> None:
    assert "within 1 s" in clock(monkeypatch, settings, 400, stops=False)


@pytest.mark.parametrize(
    ("appended_ms", "words"),
    [((HOURS_MS, HOURS_MS - 500), "ahead of"), ((-HOURS_MS,), "behind")],
    ids=["ahead", "behind"],
)
def test_a_clock_unlike_the_brokers(
    monkeypatch: pytest.MonkeyPatch,
    settings: SinkSettings,
    appended_ms: tuple[int, ...],
    words: str,
) -> None:
    with pytest.raises(ClockDiffers, match=words) as found:
        clock(monkeypatch, settings, *appended_ms, stops=False)
    assert "7200 s" in found.value.message or "7199 s" in found.value.message


@pytest.mark.parametrize(
    ("appended_ms", "stops"),
    [((None,), False), ((HOURS_MS,), True), ((HOURS_MS, None), False)],
    ids=["writers' time", "a sink that was stopped", "a sink that was killed"],
)
def test_a_clock_that_nothing_can_be_compared_with(
    monkeypatch: pytest.MonkeyPatch,
    settings: SinkSettings,
    appended_ms: tuple[int | None, ...],
    stops: bool,
) -> None:
    with pytest.raises(NotChecked):
        clock(monkeypatch, settings, *appended_ms, stops=stops)


def test_a_source_with_a_partition_that_no_broker_leads_is_not_well(
    monkeypatch: pytest.MonkeyPatch, settings: SinkSettings
) -> None:
    """A first start needs every partition."""
    found = TopicState(TopicId("1"), {0: OffsetRange(0, 1), 1: OffsetRange(0, 1)}, frozenset({2}))
    source = SimpleNamespace(describe=lambda: {"trips": found})
    monkeypatch.setattr(check, "open_reachable_source_topics", lambda _: nullcontext(source))
    cluster = cast("Any", SimpleNamespace(describe_topic=lambda _: None))
    with pytest.raises(Unreachable, match="no broker leads trips/2"):
        _check_source(settings, cluster)
