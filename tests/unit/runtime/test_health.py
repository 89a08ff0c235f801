"""The condition of a sink, from what is heard of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.control_protocol.events import (
    AckCommit,
    EndCommit,
    Envelope,
    Event,
    Notice,
    NoticeKind,
    Presence,
    PresenceKind,
    StartCommit,
    TableStart,
    WriteStatus,
)
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Epoch,
    Sender,
    SinkName,
    TopicPartition,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.runtime.health import (
    EXIT_CODES,
    Condition,
    Facts,
    condition_from,
    describe_open_transaction,
    summarize_heard_events,
)

NOW = 1_000_000
SILENCE = 15_000
ALIVE = Presence(PresenceKind.ALIVE, frozenset(), {}, "writing")
WELL = Facts(reachable=True, epoch=3, paused=False, lag=5, alive=1, ended=False, error=None)
FAILS = WriteStatus(1, failure="No space left on device")
WRITES = WriteStatus(2)
POISON = Notice(NoticeKind.STOPPED, "HG-207", "orders/0, offset 7: not JSON")
ACK = AckCommit(ControlOffset(9), Offsets())
START = StartCommit(None, Offsets(), {}, (TableStart("t", "uuid", 0, 0, "folder"),))


def said(event: Event, seconds_ago: float, member: str = "one", epoch: int = 3) -> Envelope:
    return Envelope(
        SinkName("orders"),
        Epoch(epoch),
        TransactionNumber(1),
        Sender(member, "life"),
        1,
        NOW - int(seconds_ago * 1000),
        event,
    )


def condition(*envelopes: Envelope, facts: Facts = WELL) -> Condition:
    found = summarize_heard_events(envelopes, NOW, SILENCE)
    return condition_from(
        replace(facts, alive=len(found.alive), ended=found.ended, error=found.error)
    )


def test_a_transaction_is_open_until_it_is_settled() -> None:
    end, first, second = EndCommit(), said(START, 9), said(START, 4)
    second = replace(second, transaction=TransactionNumber(2))
    acked = said(ACK, 5)
    assert describe_open_transaction([]) is None
    assert describe_open_transaction([first]) == "3.1"
    assert describe_open_transaction([first, said(end, 6)]) == "3.1 (closing)"
    assert describe_open_transaction([first, said(end, 6), acked]) is None
    assert describe_open_transaction([first, said(end, 6), second, acked]) == "3.2"


def test_a_sink_that_works() -> None:
    assert condition(said(ALIVE, 1)) is Condition.RUNNING
    assert condition(said(ALIVE, 1), facts=replace(WELL, lag=0)) is Condition.IDLE
    assert condition(said(ALIVE, 1), facts=replace(WELL, paused=True)) is Condition.PAUSED
    assert condition(said(ALIVE, 1), facts=replace(WELL, epoch=0)) is Condition.STARTING


def test_nobody_was_ever_there() -> None:
    assert condition(facts=replace(WELL, epoch=0)) is Condition.NEVER_STARTED
    assert condition() is Condition.NOT_RUNNING


def test_members_of_the_group_that_nobody_hears_are_no_sink_that_stopped() -> None:
    """Their clock or their control topic is another: they work, or try to, and cannot say so."""
    there = replace(WELL, unheard=2)
    bye = said(Notice(NoticeKind.STOPPED), 60)
    assert condition(bye) is Condition.STOPPED
    assert condition(bye, facts=there) is Condition.NOT_HEARD
    assert condition(facts=replace(there, epoch=0)) is Condition.NOT_HEARD
    assert condition(said(ALIVE, 60), facts=there) is Condition.NOT_RUNNING
    assert condition(bye, facts=replace(there, stopped=True)) is Condition.STOPPED
    assert condition(said(ALIVE, 1), facts=there) is Condition.RUNNING
    assert EXIT_CODES[Condition.NOT_HEARD] == 1


def test_who_has_just_said_goodbye_is_not_looked_for_in_the_group() -> None:
    """The group may still know a process that is about to end."""
    bye = Notice(NoticeKind.STOPPED)
    assert not summarize_heard_events([said(bye, 1)], NOW, SILENCE).silent
    assert not summarize_heard_events([said(ALIVE, 60), said(bye, 14, "two")], NOW, SILENCE).silent
    assert summarize_heard_events([said(bye, 16), said(START, 1)], NOW, SILENCE).silent
    assert summarize_heard_events([], NOW, SILENCE).silent


def test_brokers_that_do_not_answer_leave_it_unknown() -> None:
    away = replace(WELL, reachable=False, epoch=0, lag=None)
    assert condition(facts=away) is Condition.UNKNOWN
    assert condition(facts=replace(away, epoch=3, paused=True)) is Condition.UNKNOWN


def test_batches_that_fail() -> None:
    found = summarize_heard_events([said(ALIVE, 1), said(FAILS, 0.5)], NOW, SILENCE)
    assert found.error is not None
    assert (found.error.code, found.error.past) == ("HG-403", False)
    assert "No space left on device" in found.error.text
    assert condition(said(FAILS, 2), said(ALIVE, 1)) is Condition.FAILING
    assert condition(said(FAILS, 2), said(ACK, 1.5), said(ALIVE, 1)) is Condition.FAILING


def test_a_batch_that_was_written_after_all_is_past() -> None:
    told = (said(FAILS, 9), said(WRITES, 5), said(ALIVE, 1))
    assert condition(*told) is Condition.RUNNING
    found = summarize_heard_events(told, NOW, SILENCE).error
    assert found is not None
    assert found.past
    left_to_others = (said(FAILS, 90, "gone"), said(ALIVE, 1))
    assert condition(*left_to_others) is Condition.RUNNING


def test_an_error_that_ended_the_process_is_shown_when_it_is_gone() -> None:
    told = (said(ALIVE, 9), said(POISON, 8, epoch=0))
    found = summarize_heard_events(told, NOW, SILENCE)
    assert found.alive == {}
    assert found.error is not None
    assert (found.error.code, found.error.text) == ("HG-207", POISON.text)
    assert condition(*told) is Condition.FAILED
    assert condition(*told, facts=replace(WELL, reachable=False)) is Condition.FAILED


def test_a_crash_loop_is_failing_until_something_settles() -> None:
    loop = (said(ALIVE, 9), said(POISON, 8, epoch=0), said(START, 2, "two"), said(ALIVE, 1, "two"))
    assert condition(*loop) is Condition.FAILING
    assert condition(*loop, said(replace(ACK, reason="time-out"), 0.5)) is Condition.FAILING
    assert condition(*loop, said(ACK, 0.5)) is Condition.RUNNING


def test_what_the_coordinator_tries_in_vain_is_shown_until_it_goes_on() -> None:
    tries = said(Notice(NoticeKind.ERROR, "HG-401", "HG-401 commit not confirmed"), 3)
    alive = said(ALIVE, 1)
    error = summarize_heard_events([said(START, 9), tries, alive], NOW, SILENCE).error
    assert error is not None
    assert (error.code, error.text, error.past) == ("HG-401", "commit not confirmed", False)
    assert condition(said(START, 9), tries, alive) is Condition.FAILING
    assert condition(tries, said(ACK, 2), alive) is Condition.RUNNING
    assert condition(tries, said(START, 2), alive) is Condition.RUNNING
    past = summarize_heard_events([tries, said(ACK, 2), alive], NOW, SILENCE).error
    assert past is not None
    assert past.past


def test_a_participant_that_is_refused_again_and_again_is_shown_until_a_transaction_is_whole() -> (
    None
):
    """The new epoch that reads all tables afresh mends nothing by itself."""
    refused = said(Notice(NoticeKind.ERROR, "HG-216", "HG-216 one is refused 3 times ..."), 9)
    alive = said(ALIVE, 1)
    assert condition(refused, said(START, 7), alive) is Condition.FAILING
    assert condition(refused, said(START, 7), said(ACK, 2), alive) is Condition.RUNNING


def test_h6_a_participant_that_starves_is_shown_until_a_transaction_is_whole() -> None:
    """Each transaction without it is settled, and the next begins: that mends nothing."""
    starves = said(Notice(NoticeKind.ERROR, "HG-407", "HG-407 one is slower than ..."), 9)
    without = (said(replace(ACK, reason="file of an earlier transaction"), 8), said(START, 7))
    alive = said(ALIVE, 1)
    error = summarize_heard_events([starves, *without, alive], NOW, SILENCE).error
    assert error is not None
    assert (error.code, error.past) == ("HG-407", False)
    assert condition(starves, *without, alive) is Condition.FAILING
    assert condition(starves, *without, said(ACK, 2), alive) is Condition.RUNNING


def test_an_end_in_order_and_one_without_a_word() -> None:
    bye = said(Notice(NoticeKind.STOPPED), 60, epoch=0)
    assert condition(said(ALIVE, 61), bye) is Condition.STOPPED
    assert condition(said(ALIVE, 60)) is Condition.NOT_RUNNING
    killed_meanwhile = (said(ALIVE, 61, "two"), said(ALIVE, 61), bye)
    assert condition(*killed_meanwhile) is Condition.NOT_RUNNING
    killed_long_before = (said(ALIVE, 200, "two"), said(ALIVE, 61), bye)
    assert condition(*killed_long_before) is Condition.STOPPED


def test_nothing_moves() -> None:
    stuck = replace(WELL, stalled=(TopicPartition("orders", 0),))
    assert condition(said(ALIVE, 1), facts=stuck) is Condition.STALLED
    never_led = replace(WELL, epoch=0, overdue=True)
    assert condition(said(ALIVE, 1), facts=never_led) is Condition.STALLED
    assert condition(said(ALIVE, 1), facts=replace(stuck, paused=True)) is Condition.PAUSED


@pytest.mark.parametrize("kind", Condition)
def test_only_what_is_well_exits_with_0(kind: Condition) -> None:
    wrong = {Condition.STALLED, Condition.FAILING, Condition.FAILED}
    wrong |= {Condition.NOT_RUNNING, Condition.NOT_HEARD}
    unknown = {Condition.UNKNOWN}
    assert EXIT_CODES[kind] == (1 if kind in wrong else 3 if kind in unknown else 0)


def test_a_person_who_asks_is_no_participant() -> None:
    asked = said(Notice(NoticeKind.ASKED, text="pause", actor="ann"), 1, "operator", epoch=0)
    assert summarize_heard_events([asked], NOW, SILENCE).ended is None
    bye = said(Notice(NoticeKind.STOPPED), 60, epoch=0)
    assert condition(said(ALIVE, 61), bye, asked) is Condition.STOPPED


def test_one_that_started_and_said_nothing_more_did_not_stop() -> None:
    bye = said(Notice(NoticeKind.STOPPED), 60, epoch=0)
    starts = said(Notice(NoticeKind.STARTED), 55, "two", epoch=0)
    assert condition(bye, starts) is Condition.NOT_RUNNING
    assert summarize_heard_events([starts], NOW, SILENCE).alive == {}


def test_an_error_says_when_it_is_tried_again() -> None:
    tries = said(Notice(NoticeKind.ERROR, "HG-401", "no answer", next_try_ms=4_000), 3)
    error = summarize_heard_events([tries, said(ALIVE, 1)], NOW, SILENCE).error
    assert error is not None
    assert error.next_try_ms == NOW + 1_000


def test_what_a_person_stopped_drains_and_is_stopped() -> None:
    wanted = replace(WELL, stopped=True)
    assert condition(said(ALIVE, 1), facts=wanted) is Condition.DRAINING
    assert condition(said(ALIVE, 60), facts=wanted) is Condition.STOPPED
    assert condition(said(ALIVE, 9), said(POISON, 8, epoch=0), facts=wanted) is Condition.STOPPED
    assert condition(facts=replace(wanted, reachable=False)) is Condition.UNKNOWN
