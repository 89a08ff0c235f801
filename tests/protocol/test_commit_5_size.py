"""COMMIT-5: END comes before its time when the participants hold enough, all together."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.values import ALICE, BOB, P0, gain, status

from headgate.control_protocol.events import Presence, PresenceKind, StartCommit
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import CoordinatorSettings

RECORDS = replace(SETTINGS, commit_records=100)
BYTES = replace(SETTINGS, commit_bytes=1_000)


def holds(records: int, octets: int = 0) -> Presence:
    return replace(gain(kind=PresenceKind.ALIVE), buffered_records=records, buffered_bytes=octets)


def at_work(settings: CoordinatorSettings) -> Coordinator:
    return Coordinator.at(Phase.OPEN, settings)


def test_what_two_hold_together_ends_a_transaction() -> None:
    coordinator = at_work(RECORDS)
    coordinator.hears(holds(60), ALICE)
    coordinator.waits(1)
    assert coordinator.phase is Phase.OPEN
    coordinator.hears(holds(40), BOB)
    coordinator.waits(1)

    assert coordinator.phase is Phase.PREPARING


def test_bytes_are_a_limit_of_their_own() -> None:
    coordinator = at_work(BYTES)
    coordinator.hears(holds(10_000, 999), ALICE)
    coordinator.waits(1)
    assert coordinator.phase is Phase.OPEN
    coordinator.hears(holds(10_000, 1_000), ALICE)
    coordinator.waits(1)

    assert coordinator.phase is Phase.PREPARING


def test_the_newest_word_of_each_counts_and_only_of_this_epoch() -> None:
    coordinator = at_work(RECORDS)
    coordinator.hears(holds(90), ALICE)
    coordinator.hears(holds(10), ALICE)
    coordinator.hears(holds(80), BOB)
    coordinator.hears(holds(99), BOB, epoch=EPOCH - 1)
    coordinator.waits(1)

    assert coordinator.phase is Phase.OPEN


def test_what_a_status_announces_is_held_no_more() -> None:
    coordinator = at_work(RECORDS)
    coordinator.hears(holds(90), ALICE)
    coordinator.hears(status(1, {P0: (0, 5)}), ALICE, transaction=1)
    coordinator.hears(holds(20), BOB)
    coordinator.waits(1)

    assert coordinator.phase is Phase.OPEN


def test_a_new_transaction_begins_with_nothing() -> None:
    """Whoever died with what it held does not end one transaction after the other."""
    coordinator = at_work(RECORDS)
    coordinator.hears(holds(100), ALICE)
    coordinator.waits(1)
    coordinator.described()
    coordinator.hears_itself()

    assert coordinator.term.collection.buffered == {}


def test_without_a_limit_nothing_is_kept_and_nothing_ends_early() -> None:
    coordinator = at_work(SETTINGS)
    coordinator.hears(holds(10**9, 10**12), ALICE)
    coordinator.waits(1)

    assert coordinator.phase is Phase.OPEN
    assert coordinator.term.collection.buffered == {}


def test_start_says_the_limits() -> None:
    coordinator = Coordinator.at(Phase.STARTING, replace(RECORDS, commit_bytes=7))
    (start,) = [event for event in coordinator.said if isinstance(event, StartCommit)]

    assert (start.limits.commit_records, start.limits.commit_bytes) == (100, 7)
