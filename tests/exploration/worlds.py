"""Defines the worlds to explore: how small each is, and what may go wrong in it.

Every fault of a world may strike as often as said, at every moment. ``SMALL`` ones are explored by
the default tests, ``LARGE`` ones by ``make explore``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from exploration.small_table import Place
from exploration.small_world import Bounds

from headgate.coordinator.settings import TimeoutPolicy

ABORT = TimeoutPolicy.ABORT


def alone(*records: int, slow: bool = False, **faults: int) -> Bounds:
    """One participant with all partitions."""
    return Bounds(
        records=records,
        owners=(0,) * len(records),
        participants=1,
        faults=_named(faults),
        slow=frozenset({0}) if slow else frozenset(),
        joined=True,
    )


def pair(policy: TimeoutPolicy = TimeoutPolicy.COMMIT_ADMISSIBLE, **faults: int) -> Bounds:
    """Two participants with a partition of one record each."""
    return Bounds(faults=_named(faults), policy=policy, joined=True)


def _named(faults: Mapping[str, int]) -> Mapping[str, int]:
    return {name.replace("_", " "): count for name, count in faults.items()}


def followed(*records: int, tables: int = 1, **faults: int) -> Bounds:
    """One participant; all but the last record of the first partition go into secondary tables."""
    bad = frozenset((0, offset) for offset in range(max(1, records[0] - 1)))
    names = tuple(f"lake.f{number}" for number in range(tables))
    return replace(alone(*records, **faults), bad=bad, secondaries=names)


def paused(*records: int, **faults: int) -> Bounds:
    """One participant, and an operator; a transaction brings one record."""
    return replace(alone(*records, **faults), batches_max=1)


def parted(*records: int, **faults: int) -> Bounds:
    """One participant, whose statuses travel in two parts."""
    return replace(alone(*records, **faults), parts=True)


def evolving(*records: int, new: tuple[Place, ...] = ((0, 1),), **faults: int) -> Bounds:
    """One participant; some records need a column that the table does not have."""
    return replace(alone(*records, **faults), new=frozenset(new))


def changed(*records: int, **faults: int) -> Bounds:
    """One participant; the table has a key, and the second record deletes its row."""
    return replace(alone(*records, **faults), deletes=frozenset({(0, 1)}))


def timed(*records: int, **faults: int) -> Bounds:
    """One participant; a transaction brings one record, partitions without news are idle soon."""
    return replace(alone(*records, **faults), timed=True, batches_max=1)


SMALL: Mapping[str, Bounds] = {
    "beginning": Bounds(),
    "beginning-nothing-wrong": Bounds(time_outs=False, clean=True),
    "unknown-outcomes": alone(2, outcome_unknown=2),
    "foreign-commit": alone(2, outcome_unknown=1, foreign_commit=1),
    "coordinator-dies": alone(2, outcome_unknown=1, coordinator_dies=1),
    "zombie": alone(2, failover=1),
    "append-lost": alone(2, append_lost=2),
    "append-doubted": alone(2, append_doubted=1, append_doubled=1),
    "event-doubled": alone(2, event_doubled=1),
    "log-lost": alone(1, log_lost=1),
    "batch-fails": alone(2, slow=True, batch_fails=1),
    "move-nothing-wrong": Bounds(faults={"move": 1}, time_outs=False, clean=True, joined=True),
    "move-of-all": Bounds(records=(1,), owners=(0,), faults={"move": 1}, joined=True),
    "participant-dies": Bounds(faults={"participant dies": 1}, time_outs=False, joined=True),
    "pause": paused(2, pause=1, pause_again=1),
    "parts": parted(1, append_torn=1, append_turned=1),
    "parts-nothing-wrong": replace(parted(1, append_turned=2), time_outs=False, clean=True),
    "idleness": timed(2, 1, end_silent=2),
    "secondary": followed(2, coordinator_dies=1),
    "secondary-unknown-outcomes": followed(1, outcome_unknown=2),
    "two-secondaries": followed(2, tables=2, coordinator_dies=1),
    "new-column": evolving(2, outcome_unknown=1, append_lost=1),
    "new-column-coordinator-dies": evolving(2, coordinator_dies=1),
    "changes": changed(2, outcome_unknown=1, foreign_commit=1),
    "changes-coordinator-dies": changed(2, coordinator_dies=1),
}

MOVE_ABRUPT = Bounds(faults={"move": 1}, time_outs=False, abrupt=True, joined=True)

LARGE: Mapping[str, Bounds] = {
    "beginning-abort": Bounds(policy=ABORT),
    "answer-lost-and-asked-again": alone(1, append_lost=1, append_doubled=1),
    "move-abrupt": MOVE_ABRUPT,
    "secondary-move-abrupt": replace(
        MOVE_ABRUPT, records=(1,), owners=(0,), bad=frozenset({(0, 0)}), secondaries=("lake.f0",)
    ),
    "zombie-unknown-outcome": alone(1, failover=1, outcome_unknown=1),
    "zombie-and-doubt": alone(1, failover=1, append_doubted=1, append_lost=1),
    "coordinator-dies-log-lost": alone(1, coordinator_dies=1, log_lost=1),
    "pair-coordinator-dies": pair(coordinator_dies=1, outcome_unknown=1),
    "pair-zombie": pair(failover=1),
    "pair-append-lost": pair(append_lost=1),
    "pair-event-doubled": pair(event_doubled=1),
    "pair-log-lost": pair(log_lost=1),
    "slow-participant": Bounds(slow=frozenset({1})),
    "slow-participant-abort": Bounds(slow=frozenset({1}), policy=ABORT),
    "move": pair(move=1),
    "move-abort": pair(ABORT, move=1),
    "move-twice-nothing-wrong": Bounds(
        faults={"move": 2}, time_outs=False, clean=True, joined=True
    ),
    "move-slow-nothing-wrong": Bounds(
        faults={"move": 1}, time_outs=False, clean=True, joined=True, slow=frozenset({0})
    ),
    "move-and-death": Bounds(
        faults={"move": 1, "participant dies": 1}, time_outs=False, joined=True
    ),
    "move-and-zombie": Bounds(faults={"move": 1, "failover": 1}, time_outs=False, joined=True),
    "three-records-two-participants": Bounds(
        records=(2, 1), batch_records_max=1, slow=frozenset({0}), time_outs=False, joined=True
    ),
    "pause-coordinator-dies": paused(2, pause=1, pause_again=1, coordinator_dies=1),
    "parts-coordinator-dies": parted(1, append_torn=1, append_turned=1, coordinator_dies=1),
    "parts-event-doubled": parted(1, append_torn=1, append_turned=1, event_doubled=1),
    "idleness-coordinator-dies": timed(2, 1, end_silent=2, coordinator_dies=1),
    "secondary-dies-unknown": followed(2, coordinator_dies=1, outcome_unknown=2),
    "secondary-append-lost": followed(2, append_lost=1, outcome_unknown=1),
    "secondary-zombie": followed(1, failover=1, outcome_unknown=1),
    "two-secondaries-of-three-records": followed(
        3, tables=2, coordinator_dies=1, outcome_unknown=1
    ),
    "two-secondaries-zombie": followed(2, tables=2, failover=1),
    "new-column-dies-unknown": evolving(2, coordinator_dies=1, outcome_unknown=2),
    "new-column-zombie": evolving(2, failover=1, outcome_unknown=1),
    "new-column-of-two": replace(pair(outcome_unknown=1), new=frozenset({(0, 0), (1, 0)})),
    "changes-zombie": changed(3, failover=1, foreign_commit=1),
    "changes-unknown-outcomes": changed(3, outcome_unknown=2, foreign_commit=1, batch_fails=1),
    "new-column-event-doubled": evolving(2, event_doubled=1, append_lost=1),
}
