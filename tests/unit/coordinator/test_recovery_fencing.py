"""What an attempt that did not simply land means: the table alone decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.values import COORDINATOR, RIVAL, offsets, record, view

from headgate.control_protocol.ports import CommitAttempt, Lineage, TableView
from headgate.coordinator.recovery import Resolution, judge_attempt

BASE = view(record(7, 4, offsets(10)), snapshot=100)
OURS = record(7, 5, offsets(15))
ATTEMPT = CommitAttempt(BASE, OURS)


@pytest.mark.parametrize(
    ("found", "resolution"),
    [
        (BASE, Resolution.AGAIN),
        (replace(BASE, head=777), Resolution.AGAIN),
        (view(OURS, snapshot=101), Resolution.LANDED),
        (view(OURS, snapshot=101, head=777), Resolution.LANDED),
        (view(record(7, 5, offsets(15), RIVAL), snapshot=101), Resolution.SUPERSEDED),
        (view(record(8, 0, offsets(10), RIVAL), snapshot=101), Resolution.SUPERSEDED),
        (view(record(6, 9, offsets(11), RIVAL), snapshot=101), Resolution.RECOVER),
        (view(record(7, 3, offsets(9), COORDINATOR), snapshot=99), Resolution.RECOVER),
        (replace(BASE, uuid="uuid-2"), Resolution.RECOVER),
        (replace(view(OURS, snapshot=101), uuid="uuid-2"), Resolution.RECOVER),
        (replace(BASE, lineage=Lineage.ROLLED_BACK), Resolution.RECOVER),
        (replace(BASE, lineage=Lineage.UNDECIDABLE), Resolution.RECOVER),
        (replace(BASE, tag=None, record=None, lineage=Lineage.TAG_MISSING), Resolution.RECOVER),
        (replace(BASE, tag=None, record=None, lineage=Lineage.FRESH), Resolution.RECOVER),
    ],
    ids=[
        "untouched",
        "foreign commit",
        "landed",
        "landed, foreign commit on top",
        "rival of our epoch",
        "rival of a higher epoch",
        "late call of a lower epoch",
        "our own older record",
        "another table",
        "another table with our record",
        "rolled back",
        "undecidable",
        "tag deleted",
        "tag and marker deleted",
    ],
)
def test_the_table_decides(found: TableView, resolution: Resolution) -> None:
    assert judge_attempt(ATTEMPT, found) is resolution


def test_a_first_claim_is_tried_again_on_a_table_that_is_still_fresh() -> None:
    fresh = CommitAttempt(view(None), record(1, 0, offsets(0)))

    assert judge_attempt(fresh, view(None, head=5)) is Resolution.AGAIN


def test_what_a_rollback_took_off_the_branch_did_not_stay_landed() -> None:
    """The next commit would build on a head without its rows, with offsets behind them."""
    found = replace(view(OURS, snapshot=101), lineage=Lineage.ROLLED_BACK)

    assert judge_attempt(ATTEMPT, found) is Resolution.RECOVER
