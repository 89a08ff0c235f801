"""A sink's life under a worker: the table of transitions, back-off, limits, and any order."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repository.tree import ROOT

from headgate.runtime.fleet.sink_life import (
    ASKED_AGAIN_MS,
    DISAGREES_MS,
    FIRST_PAUSE_MS,
    GOOD_MS,
    HOLDS_START_MS,
    LEAVING_MS_MAX,
    LOST_AFTER_MS,
    OPENING_MS_MAX,
    PAUSE_MS_MAX,
    PERSONS_PAUSE_MS,
    SILENT_MS_MAX,
    TRANSITIONS,
    Ask,
    AskToLeave,
    DesiredState,
    Ended,
    Failed,
    Given,
    Kill,
    Life,
    LifeAction,
    LifeState,
    Passed,
    Request,
    Start,
    Started,
    TakesTooMuch,
    Turned,
    Unstarted,
    Unwanted,
    Wanted,
    state_or_lost,
    step,
)

PID = 7
RUNNING, STOPPED = DesiredState.RUNNING, DesiredState.STOPPED
DIES = Ended(PID, "HG-108", "its process was killed by SIGSEGV")


class Sink:
    """One life, a clock, and the actions of the last input."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.life: Life | None = Life(Wanted("one"), self.now_ms)
        self.actions: tuple[LifeAction, ...] = ()

    @property
    def alive(self) -> Life:
        assert self.life is not None
        return self.life

    def given(self, *inputs: Given) -> Sink:
        for each in inputs:
            self.life, self.actions = step(self.alive, each, self.now_ms)
        return self

    def waits(self, ms: int) -> Sink:
        self.now_ms += ms
        return self.given(Passed(may_start=True))

    def starts(self, pid: int = PID) -> Sink:
        self.given(Passed(may_start=True))
        assert self.actions == (Start(),)
        return self.given(Started(pid))

    def runs(self) -> Sink:
        return self.starts().given(Turned(PID))


def test_it_starts_once_there_is_room_and_only_once() -> None:
    sink = Sink().given(Passed())
    assert sink.actions == ()
    sink.given(Passed(may_start=True))
    assert sink.actions == (Start(),)
    sink.given(Passed(may_start=True))
    assert sink.actions == ()


def test_its_turns_say_whether_it_runs_is_paused_or_stopped() -> None:
    sink = Sink().starts()
    assert sink.alive.state is LifeState.STARTING
    for state in (LifeState.RUNNING, LifeState.PAUSED, LifeState.STOPPED, LifeState.RUNNING):
        assert sink.given(Turned(PID, state)).alive.state is state


def test_each_try_comes_after_twice_the_time_up_to_ten_minutes() -> None:
    sink, pauses = Sink(), []
    for _ in range(15):
        sink.starts().given(DIES)
        assert sink.alive.state is LifeState.ERROR
        pauses.append(sink.alive.due_ms - sink.now_ms)
        sink.waits(pauses[-1] - 1)
        assert sink.actions == ()
        sink.now_ms += 1
    assert pauses[:4] == [FIRST_PAUSE_MS * 2**n for n in range(4)]
    assert pauses[-1] == PAUSE_MS_MAX


def test_an_error_that_needs_a_person_waits_for_a_minute_or_until_the_file_changes() -> None:
    sink = Sink().starts().given(Failed(PID, "HG-207", "bad", needs_person=True))
    sink.given(Ended(PID, "HG-000", "exit code 1"))
    assert (sink.alive.code, sink.alive.text) == ("HG-207", "bad")
    assert sink.alive.due_ms == sink.now_ms + PERSONS_PAUSE_MS
    sink.given(Wanted("two"), Passed(may_start=True))
    assert sink.actions == (Start(),)


def test_an_error_of_before_does_not_explain_the_next_one() -> None:
    sink = Sink().starts().given(Failed(PID, "HG-207", "bad", needs_person=True), DIES)
    sink.waits(PERSONS_PAUSE_MS).given(Started(8), Ended(8, "HG-108", "killed"))
    assert (sink.alive.code, sink.alive.needs_person) == ("HG-108", False)


def test_ten_good_minutes_make_the_next_pause_the_first_again() -> None:
    sink = Sink()
    for _ in range(5):
        sink.starts().given(DIES)
        sink.now_ms = sink.alive.due_ms
    sink.runs()
    sink.now_ms += GOOD_MS
    sink.given(Turned(PID), DIES)
    assert sink.alive.due_ms == sink.now_ms + FIRST_PAUSE_MS


def test_a_process_that_makes_no_turn_is_killed_once() -> None:
    sink = Sink().runs().waits(SILENT_MS_MAX - 1)
    assert sink.actions == ()
    assert sink.waits(1).actions == (Kill(PID),)
    assert sink.waits(1).actions == ()
    sink.given(DIES)
    assert sink.alive.code == "HG-110"


def test_while_the_worker_itself_stood_still_nobody_hung() -> None:
    sink = Sink().runs()
    sink.now_ms += 2 * SILENT_MS_MAX
    assert sink.given(Passed(away_ms=2 * SILENT_MS_MAX)).actions == ()
    assert sink.waits(SILENT_MS_MAX).actions == (Kill(PID),)


def test_fleet_12_a_start_may_take_longer_but_holds_its_place_only_for_a_moment() -> None:
    sink = Sink().starts()
    assert sink.alive.counts_as_starting(sink.now_ms + HOLDS_START_MS - 1)
    assert not sink.alive.counts_as_starting(sink.now_ms + HOLDS_START_MS)
    assert sink.waits(OPENING_MS_MAX - 1).actions == ()
    assert sink.waits(1).actions == (Kill(PID),)


def test_each_start_that_fails_is_an_error_with_a_later_next_try() -> None:
    sink, pauses_ms = Sink(), list[int]()
    for _ in range(3):
        sink.given(Passed(may_start=True))
        assert sink.actions == (Start(),)
        sink.given(Unstarted("HG-126", "no task is left"))
        assert (sink.alive.state, sink.alive.text) == (LifeState.ERROR, "no task is left")
        pauses_ms.append(sink.alive.due_ms - sink.now_ms)
        sink.now_ms = sink.alive.due_ms
    assert pauses_ms == [1_000, 2_000, 4_000]
    assert sink.alive.restarts == 0, "no process has ended"


@pytest.mark.parametrize(
    ("meanwhile", "state"), [(Wanted("one", STOPPED), LifeState.STOPPED), (Unwanted(), None)]
)
def test_a_start_that_fails_when_nobody_wants_it_any_more_is_no_error(
    meanwhile: Given, state: LifeState | None
) -> None:
    sink = Sink().waits(0).given(meanwhile, Unstarted("HG-126", "no task is left"))
    assert (sink.life and sink.life.state) is state


def test_what_takes_too_much_is_killed_and_told_by_that_reason() -> None:
    sink = Sink().runs().given(TakesTooMuch(PID, "HG-109", "too much"))
    assert sink.actions == (Kill(PID),)
    sink.given(DIES)
    assert (sink.alive.state, sink.alive.code) == (LifeState.ERROR, "HG-109")


def test_a_sink_that_is_no_longer_wanted_leaves_in_order_and_is_killed_if_it_stays() -> None:
    sink = Sink().runs().given(Unwanted())
    assert sink.actions == (AskToLeave(PID),)
    assert sink.given(Unwanted()).actions == ()
    assert sink.waits(LEAVING_MS_MAX).actions == (Kill(PID),)
    sink.given(DIES)
    assert sink.life is None


def test_one_that_is_wanted_again_while_it_leaves_starts_anew() -> None:
    sink = Sink().runs().given(Unwanted(), Wanted("two"), Ended(PID, "HG-111", "in order"))
    assert (sink.alive.state, sink.alive.code) == (LifeState.IDLE, "")
    sink.starts(8)


def test_a_process_that_was_on_its_way_when_nobody_wanted_it_any_more_is_asked_to_leave() -> None:
    sink = Sink().given(Passed(may_start=True), Unwanted())
    assert sink.given(Started(PID)).actions == (AskToLeave(PID),)


def test_a_stop_that_is_desired_costs_no_process_and_a_start_begins_anew() -> None:
    stop, start = (Wanted("one", state, number=n) for n, state in enumerate((STOPPED, RUNNING)))
    sink = Sink().runs().given(stop)
    assert sink.actions == (AskToLeave(PID),)
    sink.given(Ended(PID, "HG-111", "in order"))
    assert (sink.alive.state, sink.alive.has_process) == (LifeState.STOPPED, False)
    assert sink.waits(1).actions == ()
    sink.given(start).starts(8)


def test_a_stop_that_is_desired_before_the_process_is_there_asks_it_to_leave() -> None:
    sink = Sink().given(Passed(may_start=True), Wanted("one", STOPPED))
    assert sink.actions == ()
    assert sink.given(Started(PID)).actions == (AskToLeave(PID),)


def test_a_stop_ends_the_tries_of_what_is_in_error() -> None:
    sink = Sink().starts().given(DIES, Wanted("one", STOPPED))
    assert sink.alive.state is LifeState.STOPPED
    assert sink.waits(PAUSE_MS_MAX).actions == ()


def test_a_restart_that_is_desired_leaves_in_order_and_comes_again_at_once() -> None:
    sink = Sink().runs().given(Wanted("one", RUNNING, restarts=1))
    assert sink.actions == (AskToLeave(PID),)
    sink.given(Ended(PID, "HG-111", "in order")).starts(8).given(Wanted("one", RUNNING, restarts=1))
    assert sink.actions == ()


@pytest.mark.parametrize("is_started", [True, False])
@pytest.mark.parametrize(("before_mib", "mib"), [(0, 1_500), (1_500, 4_096), (1_500, 0)])
def test_fleet_13_a_sink_that_is_promised_other_memory_leaves_and_is_started_anew(
    *, before_mib: int, mib: int, is_started: bool
) -> None:
    """Its process would start, or go on with, a JVM that the worker does not count."""
    before, changed = (Wanted("one", RUNNING, jvm_mib=each) for each in (before_mib, mib))
    sink = Sink().given(before)
    if is_started:
        sink.runs().given(changed)
    else:
        sink.given(Passed(may_start=True), changed, Started(PID))
    assert sink.actions == (AskToLeave(PID),)
    sink.given(Ended(PID, "HG-111", "in order")).starts(8).given(changed)
    assert sink.actions == ()


def test_any_new_spec_is_a_new_try_at_once() -> None:
    sink = Sink().given(Wanted("one", RUNNING, number=1)).starts()
    sink.given(Failed(PID, "HG-207", "bad", needs_person=True), DIES)
    sink.given(Wanted("one", RUNNING, number=2)).starts(8)


@pytest.mark.parametrize(
    ("desired", "seen", "request_"),
    [
        ("paused", LifeState.RUNNING, Request.PAUSE),
        ("running", LifeState.PAUSED, Request.RESUME),
        ("running", LifeState.STOPPED, Request.START),
        ("paused", LifeState.STOPPED, Request.START),
    ],
)
def test_a_table_that_disagrees_with_the_spec_is_asked_now_and_then(
    desired: str, seen: LifeState, request_: Request
) -> None:
    sink = Sink().given(Wanted("one", DesiredState(desired))).runs().given(Turned(PID, seen))
    assert sink.waits(DISAGREES_MS - 1).actions == ()
    assert sink.waits(1).actions == (Ask(request_),)
    assert sink.waits(ASKED_AGAIN_MS - 1).actions == ()
    assert sink.waits(1).actions == (Ask(request_),)


def test_a_folder_lets_the_table_say_whether_it_is_paused() -> None:
    for seen in (LifeState.RUNNING, LifeState.PAUSED, LifeState.STOPPED):
        assert Sink().runs().given(Turned(PID, seen)).waits(60_000).actions == ()


def test_a_reader_calls_lost_what_nobody_has_told_of() -> None:
    assert state_or_lost(LifeState.RUNNING, 0, LOST_AFTER_MS - 1) is LifeState.RUNNING
    assert state_or_lost(LifeState.RUNNING, 0, LOST_AFTER_MS) is LifeState.LOST


def test_the_picture_shows_exactly_the_table() -> None:
    page = (ROOT / "docs/guides/workers.md").read_text()
    drawn = re.findall(r"^ +(\w+) --> (\w+): (.+)$", page, re.MULTILINE)
    shown = {
        (before, event, after) for before, after, events in drawn for event in events.split("; ")
    }
    table = {
        (before.value, event.value, after.value) for (before, event), after in TRANSITIONS.items()
    }
    assert shown == table


@pytest.mark.parametrize("state", [each for each in LifeState if each is not LifeState.LOST])
def test_every_state_is_left(state: LifeState) -> None:
    assert {after for (before, _), after in TRANSITIONS.items() if before is state} - {state}


OfProcess = Turned | Failed | TakesTooMuch | Ended
PIDS = st.sampled_from([PID, 8])
INPUTS = st.one_of(
    st.sampled_from(
        [
            Wanted("one"),
            Wanted("two"),
            Wanted("two", STOPPED),
            Wanted("two", jvm_mib=1_500),
            Unwanted(),
            Passed(),
            Passed(may_start=True),
        ]
    ),
    st.builds(Turned, PIDS, st.sampled_from([LifeState.RUNNING, LifeState.PAUSED])),
    st.builds(Failed, PIDS, st.just("HG-207"), st.just("bad"), st.booleans()),
    st.builds(TakesTooMuch, PIDS, st.just("HG-109"), st.just("much")),
    st.builds(Ended, PIDS, st.just("HG-108"), st.just("killed"), st.floats(-1, 1)),
)


@given(st.lists(st.tuples(INPUTS, st.integers(0, 400_000)), max_size=60))
def test_in_any_order_there_is_one_process_at_most_and_every_error_has_a_next_try(
    inputs: list[tuple[Given, int]],
) -> None:
    sink, processes, pid, asked = Sink(), set[int](), 100, 0
    for each, later_ms in inputs:
        sink.now_ms += later_ms
        answer: Given = each
        if isinstance(each, OfProcess) and processes:  # what is said of the process that there is
            answer = replace(each, pid=min(processes))
        if isinstance(answer, Ended):
            processes.discard(answer.pid)
        sink.given(answer)
        asked += sink.actions.count(Start())
        if asked and later_ms % 4 == 2:
            asked -= 1
            if sink.life is not None:
                sink.given(Unstarted("HG-126", "no task is left"))
        if asked and later_ms % 2:
            asked, pid = asked - 1, pid + 1
            processes.add(pid)
            if sink.life is not None:
                sink.given(Started(pid))
        assert len(processes) + asked <= 1
        if sink.life is None:
            assert not processes
            return
        assert sink.alive.has_process == bool(processes)
        if sink.alive.state is LifeState.ERROR:
            assert sink.alive.code
            assert sink.alive.due_ms <= sink.now_ms + 1.2 * PAUSE_MS_MAX
