"""RANGE-3: no status is refused for ever in silence: tables are read afresh, then it ends by
name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from protocol.coordinating import SETTINGS, Coordinator
from protocol.suspension import ASIDE, ORDERS, UUID, ledgers, table
from protocol.values import (
    ALICE,
    BOB,
    COORDINATOR,
    LOCATION,
    P0,
    P1,
    SINK,
    data_file,
    status,
    topics,
)

from headgate.control_protocol.errors import StatusRefused
from headgate.control_protocol.events import TableStatus, WriteStatus, WrittenRange
from headgate.control_protocol.identifiers import Sender, TopicPartition
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import LogLine
from headgate.control_protocol.offsets import OffsetRange
from headgate.coordinator.phases import Phase
from headgate.coordinator.repeated_refusals import PASSING_MS_MIN
from headgate.coordinator.settings import CoordinatorSettings

CALMLY = replace(SETTINGS, claim_age_max_ms=10 * PASSING_MS_MIN)


class Wedged(Coordinator):
    """Somebody answers each of its ENDs with a status that is refused whole."""

    number = 0

    def is_answered(
        self,
        answer: Callable[[], WriteStatus],
        sender: Sender = ALICE,
        first: Callable[[], WriteStatus] | None = None,
    ) -> list[LogLine]:
        """Return what people were told from this END to the next open transaction, or the end.

        ``first``: what Bob answers before.
        """
        self.until(Phase.COLLECTING)
        self.number += 1
        if first is not None:
            said = replace(first(), status_number=self.number)
            self.hears(
                said, BOB, epoch=self.term.epoch, transaction=self.term.previous_transaction_number
            )
        self.hears(
            replace(answer(), status_number=self.number),
            sender,
            epoch=self.term.epoch,
            transaction=self.term.previous_transaction_number,
        )
        self.waits(SETTINGS.commit_timeout_ms)
        told = []
        while self.phase not in (Phase.OPEN, Phase.RECOVERING, Phase.STOPPED):
            self.goes_on()
            told += [tell for tell in self.all(LogLine) if tell.event is LogEvent.STATUS_REFUSED]
        return told

    def folder(self) -> str:
        epoch, number = self.term.epoch, self.term.previous_transaction_number
        return f"headgate/{SINK}/{epoch}-{COORDINATOR.incarnation}/{number}"

    def claims(self) -> dict[TopicPartition, WrittenRange]:
        begin, idle = self.term.progress.offsets[P0], self.term.progress.offsets[P1]
        return {
            P0: WrittenRange(OffsetRange(begin, begin + 3), 3),
            P1: WrittenRange(OffsetRange(idle, idle)),
        }

    def with_file(self, path: str, rows: int = 3) -> WriteStatus:
        return WriteStatus(0, self.claims(), (TableStatus("lake.trips", (data_file(path, rows),)),))

    def misfiled(self) -> WriteStatus:
        return self.with_file(f"{LOCATION}/elsewhere/{self.number}.parquet")

    def miscounted(self) -> WriteStatus:
        return self.with_file(f"{LOCATION}/data/{self.folder()}/{self.number}.parquet", 2)

    def right(self) -> WriteStatus:
        return self.with_file(f"{LOCATION}/data/{self.folder()}/{self.number}.parquet")


def test_after_three_equal_refusals_all_tables_are_read_afresh_in_a_new_epoch() -> None:
    made = Wedged()
    assert not made.is_answered(made.misfiled)
    assert not made.is_answered(made.misfiled)
    epoch = made.term.epoch
    (told,) = made.is_answered(made.misfiled)

    assert made.phase is Phase.RECOVERING
    assert told.lasts
    assert told.text.startswith(f"HG-216 {ALICE} is refused 3 times in a row, and nothing of {P0}")
    assert "outside the prefixes" in told.text
    made.until(Phase.OPEN)
    assert made.term.epoch == epoch + 1


def test_after_three_more_the_sink_stops_by_name() -> None:
    made = Wedged()
    for _ in range(6):
        made.is_answered(made.misfiled)

    assert type(made.error) is StatusRefused
    assert made.error.message.startswith(f"{ALICE} is refused 6 times in a row")
    assert str(P0) in made.error.message
    assert "outside the prefixes" in made.error.message


def test_another_reason_begins_another_count() -> None:
    made = Wedged()
    for _ in range(5):
        assert not made.is_answered(made.misfiled) or made.phase is Phase.RECOVERING
    assert not made.is_answered(made.miscounted)
    assert made.phase is Phase.OPEN


@pytest.mark.parametrize("sender", [ALICE, BOB])
def test_whoever_gets_on_with_the_partition_begins_it_anew(sender: Sender) -> None:
    """A zombie, or a liar, is refused while others do its work: that harms nobody."""
    made = Wedged()
    for _ in range(4):
        made.is_answered(made.misfiled)
        assert not made.is_answered(made.misfiled)
        made.is_answered(made.right, sender)
        assert made.phase is Phase.OPEN


def test_who_else_is_refused_beside_it_does_not_hide_it() -> None:
    made = Wedged()
    for number in range(3):
        made.until(Phase.COLLECTING)
        for sender in (ALICE, BOB) if number % 2 else (BOB, ALICE):
            said = replace(made.misfiled(), status_number=number + 1)
            closing = made.term.previous_transaction_number
            made.hears(said, sender, epoch=made.term.epoch, transaction=closing)
        made.waits(SETTINGS.commit_timeout_ms)
        assert made.phase is Phase.SETTLING
        made.goes_on()
    assert made.phase is Phase.RECOVERING


def test_silence_and_unknown_say_nothing_of_it() -> None:
    made = Wedged()
    for _ in range(2):
        made.is_answered(made.misfiled)
    made.is_answered(lambda: status(0, {}, unknown={P0, P1}))
    assert made.is_answered(made.misfiled)
    assert made.phase is Phase.RECOVERING


def test_partitions_that_nobody_reads_are_not_counted() -> None:
    made = Wedged()
    strange = {TopicPartition("invented", n): (0, 1) for n in range(10)}
    made.is_answered(lambda: status(0, strange, files=()))
    assert not made.state.refused


def of_orders(made: Wedged, *, below: str = f"s3://{ORDERS}/data") -> WriteStatus:
    file = data_file(f"{below}/{made.folder()}/{made.number}.parquet", 3)
    return WriteStatus(0, made.claims(), (TableStatus(ORDERS, (file,), UUID, 2),))


def ledger(settings: CoordinatorSettings = SETTINGS) -> Wedged:
    made = Wedged(ledgers().table, settings)
    made.follow(*ledgers().secondaries.values())
    made.state = replace(made.state, identity=replace(made.state.identity, routed=True))
    return made


def test_a_routed_table_that_alone_is_at_fault_is_suspended_and_the_others_go_on() -> None:
    made = ledger()
    made.secondaries[ORDERS] = table()
    for _ in range(6):
        made.is_answered(lambda: of_orders(made, below="s3://elsewhere"))

    assert made.phase is Phase.OPEN
    assert made.term.suspensions.suspended[ORDERS].why.startswith(
        f"HG-216 {ALICE} is refused 6 times in a row"
    )
    assert not made.state.refused
    made.until(Phase.COLLECTING)
    made.waits(SETTINGS.commit_timeout_ms)
    assert made.attempt.record.suspended, "so that a new coordinator knows"


def test_what_is_wrong_with_a_table_that_start_names_stops_the_sink() -> None:
    """Without its quarantine it may not go on (SUSPEND-4)."""
    made = ledger()

    def aside() -> WriteStatus:
        file = data_file(f"s3://nowhere/{made.number}.parquet", 3)
        claims = {**made.claims(), P0: replace(made.claims()[P0], records=0, quarantined=3)}
        return WriteStatus(0, claims, (TableStatus(ASIDE, (file,)),))

    for _ in range(6):
        made.is_answered(aside)
    assert type(made.error) is StatusRefused


def test_a_table_that_cannot_be_read_is_suspended_only_after_minutes() -> None:
    """SUSPEND-3: mostly it can be read soon; all others wait for as long, and people know why."""
    made = ledger(CALMLY)
    began_ms = made.now_ms
    made.until(Phase.COLLECTING)
    while ORDERS not in made.term.suspensions.suspended:
        made.is_answered(lambda: of_orders(made))
        made.until(Phase.OPEN)
    assert made.now_ms - began_ms >= PASSING_MS_MIN
    assert "cannot be read now" in made.term.suspensions.suspended[ORDERS].why


def test_who_reads_beside_a_zombie_stops_the_sink_only_after_minutes_and_both_are_named() -> None:
    """The group ended its session: mostly it notices before six short intervals are over."""
    made = Wedged(settings=CALMLY, sources=topics((0, 100_000), (0, 1_000)))
    began_ms = made.now_ms

    def zombie() -> WriteStatus:
        right = made.right()
        return replace(right, written={P0: right.written[P0]})

    while made.phase is not Phase.STOPPED:
        made.is_answered(made.right, first=zombie)
    assert made.now_ms - began_ms >= PASSING_MS_MIN
    assert type(made.error) is StatusRefused
    assert made.error.message.startswith(f"{ALICE} is refused")
    assert f"since {BOB} reads it, too" in made.error.message
