"""Who follows one commit of a single table through the coordinator reads eight modules."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from protocol.coordinating import EPOCH, Coordinator
from protocol.values import ALICE, P0, P1, status

import headgate.coordinator as coordinator
from headgate.coordinator.phases import Phase

FOLDER = Path(coordinator.__path__[0]).resolve()
ON_THE_WAY = {
    "file_admission",
    "machine",
    "phase_steps",
    "recovery",
    "state",
}


def test_from_leadership_to_open_six_modules_are_entered() -> None:
    leading = Coordinator()

    assert entered(lambda: leading.until(Phase.OPEN)) == {*ON_THE_WAY, "epoch_claim"}


def test_a_commit_of_one_table_enters_eight() -> None:
    leading = Coordinator.at(Phase.OPEN)

    def commits() -> None:
        leading.until(Phase.COLLECTING)
        answer = status(1, {P0: (10, 15), P1: (20, 22)}, written_in=(EPOCH, 1))
        leading.hears(answer, ALICE, transaction=1)
        leading.waits(0)
        leading.until(Phase.OPEN)

    assert entered(commits) == {
        *ON_THE_WAY,
        "secondary_delivery",
        "status_validation",
        "table_checks",
    }


def entered(done: Callable[[], None]) -> set[str]:
    """The modules of the coordinator in which a function is called meanwhile."""
    modules: set[str] = set()

    def called(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.resolve().parent == FOLDER:
            modules.add(path.stem)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        done()
    finally:
        sys.setprofile(before)
    return modules
