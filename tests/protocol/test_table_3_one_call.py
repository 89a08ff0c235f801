"""TABLE-3: a commit is one catalog call; that it requires what was read is the adapters' contract.

``tests/contract/test_sink_table.py`` holds every adapter to it. Here: a commit is asked for as one
value with files, record and base together, and no second one is asked for before its outcome.
"""

from __future__ import annotations

from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.values import ALICE, BOB, P0, P1, offsets, status

from headgate.coordinator.inputs_and_actions import CommitTable
from headgate.coordinator.phases import Phase


def test_files_and_offsets_are_one_call() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    for sender, claims in ((ALICE, {P0: (10, 15)}), (BOB, {P1: (20, 22)})):
        coordinator.hears(status(1, claims, written_in=(EPOCH, 1)), sender, transaction=1)
    coordinator.waits(1)

    attempt = coordinator.attempt
    assert sum(file.records for file in attempt.files) == attempt.record.records == 7
    assert attempt.record.offsets == offsets(15, 22)


def test_f10_no_second_call_before_the_outcome_of_the_first() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    both = status(1, {P0: (10, 15), P1: (20, 22)}, written_in=(EPOCH, 1))
    coordinator.hears(both, ALICE, transaction=1)
    coordinator.waits(1)
    for _ in range(5):
        more = status(2, {P0: (15, 16)}, written_in=(EPOCH, 2))
        coordinator.hears(more, ALICE, transaction=2)
        coordinator.waits(SETTINGS.commit_interval_ms)
        assert not coordinator.wants(CommitTable)
