"""FLEET-1 to FLEET-4: what stands on a fleet's topics, what of it counts, what is shown of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fleet_records import EXAMPLES, FILE

from headgate.control_protocol.identifiers import SinkName, TopicId
from headgate.control_protocol.message_encoding import Skipped, SkipReason
from headgate.control_protocol.signatures import Keys
from headgate.runtime.fleet.fleet_records import (
    CommandWire,
    ObservedSink,
    ObservedWorker,
    Removal,
    SinkSpec,
    decode_observed,
    encode_observed,
    key_of_participant,
    sink_of_key,
    state_topic_key_of,
)
from headgate.runtime.fleet.fleet_view import (
    STALE_MS,
    CommandRecord,
    Drift,
    FleetRecords,
    FleetView,
    ObservedRecord,
    build_fleet_view,
    find_shared_worker_names,
    find_stale_state_keys,
    outdated_specs,
)
from headgate.runtime.fleet.sink_life import DesiredState, LifeState

PLAIN = CommandWire()
SIGNED = CommandWire(Keys(("k" * 32,)), TopicId("topic-1"))
FORGER = CommandWire(Keys(("f" * 32,)), TopicId("topic-1"))


def spec(key: str = "trips", slot: int = 5, number: int = 1, **changes: Any) -> SinkSpec:
    return SinkSpec(key=key, slot=slot, number=number, file=FILE, **changes)


def reason(found: object) -> SkipReason:
    assert isinstance(found, Skipped)
    return found.reason


def refolded(wire: CommandWire, *records: tuple[int, str, bytes | None]) -> FleetRecords:
    """Take records in this order, as a reader with this wire does; offsets count per slot."""
    folded, ends = FleetRecords(), dict[int, int]()
    for slot, key, message in records:
        offset = ends.get(slot, 0)
        ends[slot] = offset + 1
        folded.take_record(CommandRecord(key, slot, offset, 0, wire.decode(key, slot, message)))
    return folded


def told(value: ObservedSink | ObservedWorker, time_ms: int, offset: int = 0) -> ObservedRecord:
    return ObservedRecord(state_topic_key_of(value), offset, time_ms, value)


def seen(state: LifeState = LifeState.RUNNING, **changes: Any) -> ObservedSink:
    values = {"key": "trips", "slot": 5, "worker": "w0", "incarnation": "a", "state": state}
    return ObservedSink(**{"revision": spec().revision, **values, **changes})


def folded(now_ms: int, specs: list[SinkSpec], observed: list[ObservedRecord]) -> FleetView:
    records = FleetRecords()
    for offset, each in enumerate(specs):
        records.take_record(CommandRecord(each.key, each.slot, offset, 0, each))
    for record in observed:
        records.take_record(record)
    return build_fleet_view(records, now_ms)


@pytest.mark.parametrize("wire", [PLAIN, SIGNED])
def test_fleet_5_who_made_a_change_sees_when_it_is_read(wire: CommandWire) -> None:
    first = refolded(wire, (5, "trips", wire.encode(spec())))
    removal = Removal(key="trips", slot=5, number=2)
    for change in (spec(number=2), removal):
        assert not first.has_taken(change)
        read = refolded(wire, (5, "trips", wire.encode(spec())), (5, "trips", wire.encode(change)))
        assert read.has_taken(change)


# -------------------------------------------------------------------------------------- FLEET-1


@pytest.mark.parametrize("wire", [PLAIN, SIGNED])
def test_fleet_1_a_spec_comes_back_as_it_went(wire: CommandWire) -> None:
    sent = EXAMPLES["wish"]
    assert isinstance(sent, SinkSpec)
    assert wire.decode(sent.key, sent.slot, wire.encode(sent)) == sent


@pytest.mark.parametrize("wire", [PLAIN, SIGNED])
def test_fleet_1_a_spec_at_another_place_is_refused(wire: CommandWire) -> None:
    message = PLAIN.encode(spec()) if not wire.keys else wire.encode(spec())
    assert reason(wire.decode("trips", 6, message)) is SkipReason.OTHER_SINK
    expected = SkipReason.WRONGLY_SIGNED if wire.keys else SkipReason.OTHER_SINK
    assert reason(wire.decode("riders", 5, message)) is expected


def test_fleet_1_a_state_is_no_spec_and_a_spec_no_state() -> None:
    observed = encode_observed(seen())
    assert reason(PLAIN.decode("trips", 5, observed)) is SkipReason.NOT_OURS
    message = PLAIN.encode(spec())
    assert message is not None
    assert reason(decode_observed("sink/5/trips", message)) is SkipReason.NOT_OURS
    assert reason(decode_observed("sink/6/trips", observed)) is SkipReason.OTHER_SINK
    assert decode_observed("sink/5/trips", observed) == seen()


@given(st.binary(max_size=200))
def test_fleet_1_foreign_bytes_are_passed_over(message: bytes) -> None:
    for wire in (PLAIN, SIGNED):
        assert isinstance(wire.decode("trips", 5, message), Skipped)
    assert isinstance(decode_observed("sink/5/trips", message), Skipped)


@given(st.data())
def test_fleet_1_no_byte_of_a_signed_spec_can_be_changed(data: st.DataObject) -> None:
    message = SIGNED.encode(spec())
    assert message is not None
    at = data.draw(st.integers(0, len(message) - 1))
    changed = (
        message[:at] + bytes([message[at] ^ data.draw(st.integers(1, 255))]) + message[at + 1 :]
    )
    assert isinstance(SIGNED.decode("trips", 5, changed), Skipped)


def test_fleet_1_a_participants_key_names_its_sink() -> None:
    sink = SinkName("trips")
    keys = [key_of_participant(sink, number) for number in (1, 2, 3)]
    assert keys == ["trips", "trips#2", "trips#3"]
    assert {sink_of_key(key) for key in keys} == {sink}


# -------------------------------------------------------------------------------------- FLEET-2


def test_fleet_2_the_later_offset_counts_whatever_clocks_say() -> None:
    ahead = spec(state=DesiredState.RUNNING, time_ms=9_999_999_999_999, number=1)
    later = spec(state=DesiredState.PAUSED, time_ms=1, number=2)
    records = refolded(PLAIN, (5, "trips", PLAIN.encode(ahead)), (5, "trips", PLAIN.encode(later)))
    assert build_fleet_view(records, 0).sinks["trips"].spec == later


def test_fleet_2_of_two_slots_the_higher_number_counts_in_any_order_of_partitions() -> None:
    older, newer = spec(slot=5, number=3, time_ms=99), spec(slot=2, number=4)
    for order in ([older, newer], [newer, older]):
        records = FleetRecords()
        for each in order:
            records.take_record(CommandRecord("trips", each.slot, 0, 0, each))
        assert build_fleet_view(records, 0).sinks["trips"].spec == newer
        assert dict(outdated_specs(records)) == {(5, "trips"): older}
        assert records.highest_number == 4


def test_fleet_2_a_removal_takes_the_spec_of_its_own_slot_only() -> None:
    moved = [
        (2, "trips", PLAIN.encode(spec(slot=2, number=2))),
        (5, "trips", PLAIN.encode(spec(slot=5, number=1))),
        (5, "trips", None),
    ]
    records = refolded(PLAIN, *moved)
    assert build_fleet_view(records, 0).sinks["trips"].slot == 2
    assert not outdated_specs(records)


# -------------------------------------------------------------------------------------- FLEET-3


def test_fleet_3_a_forged_spec_is_named_and_the_genuine_one_counts() -> None:
    genuine = spec(number=7)
    for forged in (PLAIN.encode(spec(number=8)), FORGER.encode(spec(number=8)), None):
        records = refolded(SIGNED, (5, "trips", SIGNED.encode(genuine)), (5, "trips", forged))
        (found,) = build_fleet_view(records, 0).sinks.values()
        assert found.spec == genuine
        assert "5@1 is not followed" in found.refused
        assert "sign" in found.refused
        assert found.needs_attention
        assert records.highest_number == 7


def test_fleet_3_a_forged_spec_alone_is_named_and_starts_nothing() -> None:
    records = refolded(SIGNED, (5, "trips", PLAIN.encode(spec())))
    (found,) = build_fleet_view(records, 0).sinks.values()
    assert found.spec is None
    assert "not signed" in found.refused
    assert not records.specs


def test_fleet_3_a_signed_removal_is_believed_and_a_forgery_behind_it_named() -> None:
    removal = SIGNED.encode(Removal(key="trips", slot=5, number=8))
    assert removal is not None
    assert PLAIN.encode(Removal(key="trips", slot=5, number=8)) is None
    records = refolded(SIGNED, (5, "trips", SIGNED.encode(spec())), (5, "trips", removal))
    assert not build_fleet_view(records, 0).sinks
    assert records.highest_number == 8
    again = refolded(SIGNED, (5, "trips", removal), (5, "trips", None))
    assert not build_fleet_view(again, 0).sinks, "a tombstone behind a removal says nothing new"


def test_fleet_3_a_genuine_spec_is_for_its_topic_and_key_only() -> None:
    message = SIGNED.encode(spec())
    other = replace(SIGNED, topic_id=TopicId("topic-2"))
    assert reason(other.decode("trips", 5, message)) is SkipReason.WRONGLY_SIGNED
    assert reason(PLAIN.decode("trips", 5, message)) is SkipReason.SIGNED
    rotated = replace(SIGNED, keys=Keys(("n" * 32, "k" * 32)))
    assert rotated.decode("trips", 5, message) == spec()


# -------------------------------------------------------------------------------------- FLEET-4


def test_fleet_4_wanted_stands_beside_observed() -> None:
    fleet = folded(
        10_000,
        [spec()],
        [told(seen(for_ms=400), 9_000), told(worker(), 9_500)],
    )
    found = fleet.sinks["trips"]
    assert (found.state, found.drift, found.worker) == (LifeState.RUNNING, Drift.NONE, "w0")
    assert (found.since_ms, found.told_ms) == (8_600, 9_500)
    assert not fleet.workers["w0"].lost


def worker(
    name: str = "w0", incarnation: str = "a", slots: tuple[int, ...] = (5,)
) -> ObservedWorker:
    return ObservedWorker(worker=name, incarnation=incarnation, slots=slots)


@pytest.mark.parametrize(
    ("wanted", "observed", "drift"),
    [
        (spec(), seen(revision="another"), Drift.FILE),
        (spec(), seen(LifeState.IDLE, revision=""), Drift.NONE),
        (spec(), seen(LifeState.PAUSED), Drift.STATE),
        (spec(state=DesiredState.PAUSED), seen(), Drift.STATE),
        (spec(state=DesiredState.PAUSED), seen(LifeState.PAUSED), Drift.NONE),
        (spec(state=DesiredState.STOPPED), seen(), Drift.STATE),
        (spec(state=DesiredState.STOPPED), seen(LifeState.STOPPING), Drift.NONE),
        (spec(), seen(LifeState.ERROR, revision=""), Drift.NONE),
        (None, seen(), Drift.UNWANTED),
    ],
)
def test_fleet_4_drift(wanted: SinkSpec | None, observed: ObservedSink, drift: Drift) -> None:
    fleet = folded(0, [wanted] if wanted else [], [told(observed, 0)])
    assert fleet.sinks["trips"].drift is drift


def test_fleet_4_what_nobody_tells_any_longer_is_lost() -> None:
    observed = [told(seen(), 1_000), told(worker(), 20_000)]
    assert folded(49_999, [spec()], observed).sinks["trips"].state is LifeState.RUNNING
    gone = folded(50_000, [spec()], observed)
    assert gone.sinks["trips"].state is LifeState.LOST
    assert gone.workers["w0"].lost
    assert gone.slot_owners == {}


def test_fleet_4_the_sign_of_life_of_a_later_start_does_not_speak_for_an_earlier_one() -> None:
    observed = [told(seen(), 1_000), told(worker(incarnation="b"), 40_000)]
    assert folded(40_000, [spec()], observed).sinks["trips"].state is LifeState.LOST


def test_fleet_4_a_spec_that_nobody_takes_up_is_idle_and_then_lost() -> None:
    assert folded(29_999, [spec()], []).sinks["trips"].state is LifeState.IDLE
    assert folded(30_000, [spec()], []).sinks["trips"].state is LifeState.LOST
    stopped = spec(state=DesiredState.STOPPED)
    assert folded(30_000, [stopped], []).sinks["trips"].state is LifeState.STOPPED


def test_fleet_4_the_next_try_is_a_time_of_the_broker() -> None:
    failed = seen(LifeState.ERROR, code="HG-207", text="t", tries=4, next_try_in_ms=8_000)
    found = folded(2_000, [spec()], [told(failed, 1_000)]).sinks["trips"]
    assert (found.next_try_ms, found.error_code, found.needs_attention) == (9_000, "HG-207", True)


def test_fleet_4_a_sink_that_moves_is_told_of_from_both_slots() -> None:
    leaving = seen(LifeState.STOPPING, slot=2, worker="w1")
    arriving = seen(LifeState.STARTING)
    fleet = folded(0, [spec()], [told(leaving, 0, offset=9), told(arriving, 0, offset=1)])
    found = fleet.sinks["trips"]
    assert (found.state, found.elsewhere) == (LifeState.STARTING, (leaving,))
    records = FleetRecords()
    for record in (told(leaving, 0), told(arriving, 0), ObservedRecord("sink/2/trips", 9, 0, None)):
        records.take_record(record)
    assert list(records.observed) == ["sink/5/trips"], "who is left takes back its own word only"


@pytest.mark.parametrize(
    ("wanted", "slots", "is_stale"),
    [
        ([], (5,), False),
        ([], (6,), True),
        ([spec(slot=6)], (6,), True),
        ([spec()], (6,), False),
    ],
)
def test_fleet_4_what_a_worker_told_of_a_slot_that_it_gave_away_is_taken_back(
    wanted: list[SinkSpec], slots: tuple[int, ...], *, is_stale: bool
) -> None:
    """Its sign of life says nothing of it, and who has the slot says nothing of an unwanted sink.
    The sink was removed, or moved, while its slot changed hands."""
    records = FleetRecords()
    for at, each in enumerate(wanted):
        records.take_record(CommandRecord(each.key, each.slot, at, 0, each))
    for record in (told(seen(LifeState.STOPPING), 0), told(worker(slots=slots), STALE_MS)):
        records.take_record(record)
    assert not find_stale_state_keys(records, build_fleet_view(records, 0), STALE_MS - 1)
    found = find_stale_state_keys(records, build_fleet_view(records, STALE_MS), STALE_MS)
    assert found == (["sink/5/trips"] if is_stale else [])


@pytest.mark.parametrize(
    ("incarnations", "at_ms", "found"),
    [
        ("abcd", 3, []),
        ("aabb", 3, []),
        ("abab", 3, ["w0"]),
        ("abca", 3, ["w0"]),
        ("abab", 3 + STALE_MS, []),
    ],
)
def test_fleet_4_two_workers_of_one_name_tell_in_turn_and_one_that_starts_again_does_not(
    incarnations: str, at_ms: int, found: list[str]
) -> None:
    records = FleetRecords()
    for time_ms, each in enumerate(incarnations):
        records.take_record(told(worker(incarnation=each), time_ms))
    assert find_shared_worker_names(records, at_ms) == found


@given(st.permutations([0, 1, 2, 3]))
def test_fleet_4_the_order_of_partitions_makes_no_difference(order: list[int]) -> None:
    some = [
        spec(key=key, slot=slot, number=n)
        for n, (key, slot) in enumerate([("a", 0), ("b", 1), ("a", 2), ("c", 3)])
    ]
    records, expected = FleetRecords(), FleetRecords()
    for at in order:
        records.take_record(CommandRecord(some[at].key, some[at].slot, 0, 0, some[at]))
    for each in some:
        expected.take_record(CommandRecord(each.key, each.slot, 0, 0, each))
    assert build_fleet_view(records, 0) == build_fleet_view(expected, 0)
