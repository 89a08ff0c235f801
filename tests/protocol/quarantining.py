"""Drives a deployment with a quarantine: real machines, and every third record is bad."""

from __future__ import annotations

from scenarios.stage import COORDINATORS, Stage

from headgate.control_protocol.testing import FakeCatalog
from headgate.coordinator.settings import CoordinatorSettings


def at_work(settings: CoordinatorSettings = COORDINATORS) -> tuple[Stage, FakeCatalog]:
    """Alice leads, Bob helps, and what is there has been committed."""
    stage = Stage(settings=settings)
    stage.keep_bad_records()
    stage.produce(5, 4)
    stage.enter("alice", "bob")
    stage.settles()
    stage.until("ACK")
    assert stage.quarantine is not None
    return stage, stage.quarantine


def offsets_in(catalog: FakeCatalog) -> set[tuple[int, int]]:
    """Partition and offset of every row; none may come twice."""
    rows = [(row.partition, row.offset) for row in catalog.visible_rows()]
    assert len(set(rows)) == len(rows)
    return set(rows)


def exactly_once(stage: Stage) -> None:
    """All of the source is in the two tables, the bad ones in the quarantine and nowhere else."""
    assert stage.quarantine is not None
    assert (stage.lag(), stage.doubles()) == (0, 0)
    assert all(offset % 3 == 2 for _, offset in offsets_in(stage.quarantine))
    assert all(offset % 3 != 2 for _, offset in offsets_in(stage.catalog))
