"""TOKEN-2: where a table stamps its files, those of a transaction land with that one, or not at
all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import SETTINGS, Coordinator
from protocol.values import ALICE, LOCATION, P0, P1, data_file, offsets, status

from headgate.control_protocol.commit_tokens import is_path_of_token
from headgate.control_protocol.events import AckCommit, StartCommit, WriteStatus
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import LogLine
from headgate.control_protocol.ports import Refused
from headgate.coordinator.inputs_and_actions import CommitAnswered, CommitTable, SourcesDescribed
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import CoordinatorSettings


class Stamping(Coordinator):
    """Its table gives a stamp whenever the sources are described."""

    stamps = 0

    @property
    def closing(self) -> int:
        """The transaction that ends, whose stamp has the same number."""
        assert self.state.term
        return self.state.term.previous_transaction_number

    def sources_described(self) -> SourcesDescribed:
        self.stamps += 1
        return SourcesDescribed(self.sources, self.start, stamp=stamp(self.stamps))


def stamp(number: int) -> str:
    return f"{LOCATION}/*_{number}.parquet"


def written(number: int, upto: int, stamped: int, *, begin: int = 10) -> WriteStatus:
    """Of P0 these rows in one file; of P1 nothing was there."""
    file = data_file(f"{LOCATION}/city=1/f{number}_0_{stamped}.parquet", upto - begin)
    return status(number, {P0: (begin, upto), P1: (20, 20)}, files=(file,))


def test_start_says_the_stamp_that_came_with_the_sources() -> None:
    coordinator = Stamping.at(Phase.STARTING)
    (start,) = coordinator.said
    assert isinstance(start, StartCommit)
    assert start.tables[0].file_prefix == stamp(1)

    coordinator.until(Phase.CLOSING)
    _, start = coordinator.said
    assert isinstance(start, StartCommit)
    assert start.tables[0].file_prefix == stamp(2)


def test_start_says_it_again_after_a_failed_append() -> None:
    coordinator = Stamping.at(Phase.CLOSING)
    before = coordinator.said
    coordinator.pending = None
    coordinator.waits(0)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    assert coordinator.said == before


def test_files_of_the_transaction_that_ends_are_in() -> None:
    coordinator = Stamping.at(Phase.COLLECTING)
    coordinator.hears(written(1, 15, stamped=1), ALICE, transaction=1)
    coordinator.waits(1)
    assert coordinator.attempt.record.offsets == offsets(15, 20)


@pytest.mark.parametrize("stamped", [2, 3])
def test_files_of_any_other_are_refused(stamped: int) -> None:
    coordinator = Stamping.at(Phase.COLLECTING)
    coordinator.hears(written(1, 15, stamped=stamped), ALICE, transaction=1)
    coordinator.waits(1)
    assert not coordinator.wants(CommitTable)
    assert "outside the prefixes" in settlement(coordinator).reason


@pytest.mark.parametrize("answers", [1, 2, 3])
def test_files_of_an_earlier_one_are_told_from_those_of_a_wrong_path(answers: int) -> None:
    """Whichever END the late answer names: a slow one covers several (ANSWER-1)."""
    coordinator = Stamping.at(Phase.COLLECTING)
    for _ in range(2):
        times_out(coordinator)
    late(coordinator, 1, stamped=1, answers=answers)
    assert not coordinator.wants(CommitTable)
    reason = settlement(coordinator).reason
    assert "file of an earlier transaction" in reason
    assert "outside the prefixes" not in reason
    assert not coordinator.told, "once may be a hiccup"


def test_h6_a_participant_that_is_late_again_and_again_is_named_with_what_to_raise() -> None:
    coordinator = Stamping.at(Phase.COLLECTING)
    told = []
    for number in range(1, 7):
        times_out(coordinator)
        late(coordinator, number, stamped=number, answers=number)
        said = [each for each in coordinator.actions if isinstance(each, LogLine)]
        told += [(number, each) for each in said if each.event is LogEvent.PARTICIPANT_ALWAYS_LATE]
    assert [number for number, _ in told] == [3, 6]
    for number, each in told:
        assert each.trouble
        assert each.lasts
        assert each.text.startswith(f"HG-407 {ALICE} is slower than a transaction: {number} times")
        assert "coordinator.commit_interval_ms (1000 now)" in each.text
        assert "commit_timeout_ms (500 now)" in each.text


def test_what_follows_a_stale_answer_begins_behind_it_and_begins_no_new_epoch() -> None:
    """RANGE-3: the late one has its name already, and those behind it are wrong because of it
    alone."""
    coordinator = Stamping.at(Phase.COLLECTING)
    epoch = coordinator.term.epoch
    for number in range(1, 5):
        times_out(coordinator)
        closing = coordinator.closing
        coordinator.hears(written(2 * number, 15, stamped=closing - 1), ALICE, transaction=closing)
        late(coordinator, 2 * number + 1, stamped=closing, answers=closing, begin=15)
        assert not coordinator.state.refused
    assert coordinator.term.epoch == epoch


def test_h6_whoever_is_in_time_begins_to_count_anew() -> None:
    coordinator = Stamping.at(Phase.COLLECTING)
    for number in (1, 2):
        times_out(coordinator)
        late(coordinator, number, stamped=number, answers=number)
    coordinator.until(Phase.OPEN)
    coordinator.until(Phase.COLLECTING)
    late(coordinator, 3, stamped=coordinator.closing, answers=coordinator.closing)  # it is not now
    assert coordinator.attempt.record.offsets == offsets(15, 20)
    for number in (4, 5):
        times_out(coordinator)
        late(coordinator, number, stamped=number, answers=number, begin=15)
        assert "earlier transaction" in settlement(coordinator).reason
        assert not coordinator.told


def test_a_stale_status_is_refused_and_its_ranges_are_written_again() -> None:
    coordinator = Stamping.at(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    coordinator.until(Phase.OPEN)
    coordinator.hears(written(1, 15, stamped=1), ALICE, transaction=1)
    coordinator.until(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    assert not coordinator.wants(CommitTable)
    assert settlement(coordinator).offsets == offsets(10, 20)

    coordinator.until(Phase.OPEN)
    coordinator.until(Phase.COLLECTING)
    coordinator.hears(written(2, 15, stamped=3), ALICE, transaction=3)
    coordinator.waits(1)
    assert coordinator.attempt.record.offsets == offsets(15, 20)


def test_a_stale_answer_makes_no_end_ready_so_the_answers_that_follow_are_in_time() -> None:
    coordinator = Stamping.at(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    coordinator.until(Phase.OPEN)
    coordinator.hears(written(1, 15, stamped=1), ALICE, transaction=1)
    for number in (2, 3, 4):
        coordinator.until(Phase.COLLECTING)
        coordinator.waits(1)
        assert coordinator.phase is Phase.COLLECTING, "ready by the answer to an earlier END"
        begin = coordinator.term.progress.offsets[P0]
        answer = written(number, begin + 5, stamped=coordinator.closing, begin=begin)
        coordinator.hears(answer, ALICE, transaction=coordinator.closing)
        coordinator.waits(1)
        assert coordinator.attempt.record.offsets == offsets(begin + 5, 20)
        coordinator.until(Phase.OPEN)


def test_stale_idle_and_unknown_make_no_end_ready_either() -> None:
    """They say as little of now as files do, and what they stand beside would be late forever."""
    coordinator = Stamping.at(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    coordinator.until(Phase.COLLECTING)
    coordinator.hears(status(1, {P0: (10, 10)}, unknown={P1}), ALICE, transaction=1)
    coordinator.waits(1)
    assert coordinator.phase is Phase.COLLECTING

    coordinator.hears(written(2, 15, stamped=2), ALICE, transaction=2)
    coordinator.waits(1)
    assert coordinator.attempt.record.offsets == offsets(15, 20)


def test_nobody_can_have_written_for_a_transaction_before_it_began() -> None:
    coordinator = Stamping.at(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    coordinator.until(Phase.OPEN)
    coordinator.until(Phase.COLLECTING)
    coordinator.hears(written(1, 15, stamped=2), ALICE, transaction=1)
    coordinator.waits(1)
    assert not coordinator.wants(CommitTable)


def test_the_same_files_are_tried_again_on_a_newer_head() -> None:
    coordinator = committing()
    files = coordinator.attempt.files
    coordinator.refused()
    coordinator.reads()
    assert coordinator.attempt.files == files


def test_files_that_waited_for_too_long_are_given_up() -> None:
    """As TOKEN-1 says of folders."""
    coordinator = committing(replace(SETTINGS, claim_age_max_ms=100_000))
    coordinator.unsure()
    coordinator.waits(100_001)
    coordinator.reads()
    assert coordinator.phase is Phase.RECOVERING


def test_files_refused_for_good_begin_a_new_epoch() -> None:
    """Others rolled back what was written: the ranges are written again, under another stamp."""
    coordinator = committing()
    coordinator.pending = None
    coordinator.given(CommitAnswered(Refused("the instant was rolled back", for_good=True)))
    assert coordinator.phase is Phase.RECOVERING
    assert coordinator.reads_primary
    assert "rolled back" in coordinator.told


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("/lake/trips/f_0-0-0_7.parquet", True),
        ("/lake/trips/city=1/f_0-0-0_7.parquet", True),
        ("/lake/trips/f_0-0-0_8.parquet", False),
        ("/lake/other/f_0-0-0_7.parquet", False),
        ("/lake/trips/../other/f_0-0-0_7.parquet", False),
        ("/lake/trips//f_7.parquet", False),
        ("/lake/trips/_7.parquet", False),
        ("/lake/trips/city=1/.._7.parquet", True),
    ],
)
def test_which_paths_belong_to_a_stamp(path: str, is_one: bool) -> None:
    assert is_path_of_token("/lake/trips/*_7.parquet", path) is is_one


def test_nothing_belongs_to_what_is_no_stamp() -> None:
    for no_stamp in ("", "*", "/lake/*", "/lake/trips"):
        assert not is_path_of_token(no_stamp, "/lake/trips/f_7.parquet")


def committing(settings: CoordinatorSettings = SETTINGS) -> Stamping:
    coordinator = Stamping(settings=settings)
    coordinator.until(Phase.COLLECTING)
    coordinator.hears(written(1, 15, stamped=1), ALICE, transaction=1)
    coordinator.waits(1)
    return coordinator


def times_out(coordinator: Stamping) -> None:
    """Nobody answers this END; the next one is said."""
    coordinator.until(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    coordinator.until(Phase.OPEN)
    coordinator.until(Phase.COLLECTING)


def late(
    coordinator: Stamping, number: int, *, stamped: int, answers: int, begin: int = 10
) -> None:
    """Alice answers with files of this stamp, and is judged at the time-out."""
    status = written(number, begin + 5, stamped=stamped, begin=begin)
    coordinator.hears(status, ALICE, transaction=answers)
    coordinator.waits(SETTINGS.commit_timeout_ms)


def settlement(coordinator: Coordinator) -> AckCommit:
    (said,) = coordinator.said
    assert isinstance(said, AckCommit)
    return said
