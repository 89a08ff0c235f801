"""FLEET-7, FLEET-9: which specs a worker follows while slots come, go and are lost."""

from __future__ import annotations

from typing import Any

from support.fleet_records import FILE

from headgate.control_protocol.message_encoding import Skipped, SkipReason
from headgate.runtime.fleet.fleet_records import Drain, FleetCommand, Removal, SinkSpec
from headgate.runtime.fleet.fleet_view import CommandRecord
from headgate.runtime.fleet.followed_specs import RETAINED_MS, FollowedSlots


def spec(key: str, slot: int, number: int = 1, **changes: Any) -> SinkSpec:
    return SinkSpec(key=key, slot=slot, number=number, file=FILE, **changes)


def record(
    value: FleetCommand | Skipped, key: str = "", slot: int = 0, offset: int = 0
) -> CommandRecord:
    if isinstance(value, Skipped):
        return CommandRecord(key, slot, offset, 0, value)
    return CommandRecord(value.key, value.slot, offset, 0, value)


def following(*specs: SinkSpec, slots: frozenset[int] = frozenset({0, 1})) -> FollowedSlots:
    followed = FollowedSlots()
    followed.on_gained(slots, 0)
    for each in specs:
        followed.on_record(record(each))
    for slot in slots:
        followed.on_slot_read(slot)
    return followed


def test_fleet_7_a_slot_counts_once_it_is_read_to_its_end() -> None:
    followed = FollowedSlots()
    followed.on_gained(frozenset({0}), 0)
    followed.on_record(record(spec("a", 0)))
    assert not followed.followed_specs(), "a later record may stop it"
    assert not followed.owned_and_read_slots
    followed.on_record(record(Removal(key="a", slot=0, number=2)))
    followed.on_record(record(spec("b", 0, 3)))
    followed.on_slot_read(0)
    assert [*followed.followed_specs()] == ["b"]
    assert followed.owned_and_read_slots == {0}
    followed.on_record(record(spec("c", 0, 4)))
    assert [*followed.followed_specs()] == ["b", "c"]


def test_fleet_7_a_move_between_own_slots_keeps_the_sink() -> None:
    followed = following(spec("a", 0))
    followed.on_record(record(spec("a", 1, 2)))
    followed.on_record(record(Removal(key="a", slot=0, number=2)))
    assert followed.followed_specs() == {"a": spec("a", 1, 2)}


def test_fleet_7_a_refused_record_leaves_the_spec_before_it() -> None:
    followed = following(spec("a", 0))
    followed.on_record(record(Skipped(SkipReason.UNSIGNED), "a", 0, 7))
    followed.on_record(record(Skipped(SkipReason.UNSIGNED), "x", 1, 8))
    assert [*followed.followed_specs()] == ["a"]
    assert {each.key for each in followed.refused_records()} == {"a", "x"}


def test_fleet_7_a_late_record_of_a_slot_that_was_given_up_says_nothing() -> None:
    followed = following(spec("a", 0))
    followed.on_revoked(frozenset({0}))
    followed.on_record(record(spec("a", 0, 2)))
    assert not followed.followed_specs()


def test_fleet_9_a_session_that_expires_stops_nothing_until_the_group_has_answered() -> None:
    followed = following(spec("a", 0), spec("b", 1))
    followed.on_lost(frozenset({0, 1}))
    followed.on_tick(10**9)
    assert [*followed.followed_specs()] == ["a", "b"]
    assert not followed.owned_and_read_slots
    followed.on_gained(frozenset({0}), 10**9)
    assert [*followed.followed_specs()] == ["a", "b"], "while it is read, too"
    followed.on_record(record(spec("a", 0)))
    followed.on_slot_read(0)
    followed.on_tick(10**9 + RETAINED_MS - 1)
    assert [*followed.followed_specs()] == ["a", "b"]
    followed.on_tick(10**9 + RETAINED_MS)
    assert [*followed.followed_specs()] == ["a"]


def test_fleet_9_a_slot_that_comes_back_in_the_second_step_is_kept() -> None:
    followed = following(spec("a", 0), spec("b", 1))
    followed.on_lost(frozenset({0, 1}))
    followed.on_gained(frozenset({0}), 0)
    followed.on_gained(frozenset({1}), RETAINED_MS - 1)
    followed.on_record(record(spec("b", 1)))
    followed.on_slot_read(1)
    followed.on_tick(10 * RETAINED_MS)
    assert [*followed.followed_specs()] == ["a", "b"], (
        "slot 0 is being read again, and counts as before"
    )


def test_fleet_9_specs_of_a_topic_that_is_gone_are_followed_until_another_speaks() -> None:
    followed = following(spec("a", 0), spec("b", 0), spec("c", 1))
    followed.on_topic_gone()
    assert [*followed.followed_specs()] == ["a", "b", "c"]
    followed.on_lost()  # as each seat begins
    followed.release_orphan_specs(frozenset({"a"}))
    followed.on_gained(frozenset({0}), 0)
    followed.release_orphan_specs(frozenset({"a"}))
    followed.on_record(record(spec("a", 0, 1, restarts=5)))
    assert [*followed.followed_specs()] == ["a", "b", "c"], "while it is read, too"
    followed.on_slot_read(0)
    assert followed.followed_specs()["a"].restarts == 5
    followed.on_gained(frozenset({1}), 0)
    followed.on_record(record(Removal(key="c", slot=1, number=2)))
    assert {*followed.followed_specs()} == {"a", "b", "c"}
    followed.on_slot_read(1)
    assert {*followed.followed_specs()} == {"a", "b"}, "a removal speaks of its key as well"
    followed.release_orphan_specs(frozenset({"b"}))
    assert {*followed.followed_specs()} == {"a"}
    followed.on_record(record(Removal(key="a", slot=0, number=2)))
    assert not followed.followed_specs(), "the spec of the former topic does not rise again"


def test_fleet_10_a_drain_is_of_one_start_of_one_worker() -> None:
    followed = following()
    assert not followed.is_drain_requested("w0", "one")
    followed.on_record(record(Drain(worker="w0", incarnation="one", slot=0, number=1)))
    assert followed.is_drain_requested("w0", "one")
    assert not followed.is_drain_requested("w0", "two")
    assert not followed.is_drain_requested("w1", "one")
