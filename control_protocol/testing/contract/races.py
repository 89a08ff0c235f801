"""Tests two processes that commit at one moment, each in a thread: the table lets one of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Barrier

from headgate.control_protocol.ports import CommitAttempt, Landed, SinkTable, Unknown
from headgate.control_protocol.testing.contract.world import World, record

ROUNDS = 6
_WAIT_S_MAX = 60
_TRIES_MAX = 20
_TURNS_EVERY_S = 1e-6
"""Threads of Python take turns far more often than they do by themselves."""


class RaceContract:
    """Comparing and setting is one step. The tests take a fixture ``world``, a ``World``."""

    def test_of_two_that_commit_at_the_same_moment_one_lands(self, world: World) -> None:
        """The first round is one of claims, and those behind it bring files."""
        won = []
        for number in range(ROUNDS):
            epochs = (2 * number + 1, 2 * number + 2)
            files = [(world.write_file(epoch),) if number else () for epoch in epochs]
            tables = [world.open() for _ in epochs]
            attempts = [
                CommitAttempt(table.read(), record(epoch, number, 3 * number), brought)
                for table, epoch, brought in zip(tables, epochs, files, strict=True)
            ]
            landed = _commit_all_concurrently(tables, attempts)
            assert landed.count(True) == 1, f"round {number}: {landed.count(True)} of 2 landed"
            winner = landed.index(True)
            assert attempts[winner].record.is_same_commit(world.open().read().record)
            won += [epochs[winner]] if number else []
        assert world.visible_file_numbers() == won


def _commit_all_concurrently(
    tables: Sequence[SinkTable], attempts: Sequence[CommitAttempt]
) -> list[bool]:
    """Make all attempts at once; return of each whether it landed."""
    ready = Barrier(len(tables))

    def commit_with_others(table: SinkTable, attempt: CommitAttempt) -> bool:
        ready.wait(_WAIT_S_MAX)
        return _commit_and_check_landed(table, attempt)

    with _frequent_thread_switches(), ThreadPoolExecutor(len(tables)) as racers:
        return list(racers.map(commit_with_others, tables, attempts))


def _commit_and_check_landed(table: SinkTable, attempt: CommitAttempt) -> bool:
    """Commit as a coordinator does, which reads the table while the outcome is not known."""
    base = attempt.base
    for _ in range(_TRIES_MAX):
        outcome = table.commit(attempt)
        if not isinstance(outcome, Unknown):
            return isinstance(outcome, Landed)
        view = table.read()
        if attempt.record.is_same_commit(view.record):
            return True
        if (view.uuid, view.tag, view.head) != (base.uuid, base.tag, base.head):
            return False
        attempt = replace(attempt, base=view)
    raise AssertionError(f"the outcome stays unknown: {outcome}")


@contextmanager
def _frequent_thread_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURNS_EVERY_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
