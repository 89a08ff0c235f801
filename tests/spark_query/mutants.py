"""Switches one rule of a Spark query off at a time: the histories must notice.

As a script it says which seeds notice which mutant.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from spark_query.histories import play

from headgate.control_protocol.errors import BatchGap
from headgate.control_protocol.ports import Landed
from headgate.control_protocol.spark_batch_decision import Done, Take, decide_batch, record_of_batch
from headgate.data_plane.spark.query_rows import RowsWriter
from headgate.spark import batches, query_batch_commits
from headgate.spark.query_batch_commits import QueryTable


def take_again(*given: Any, **named: Any) -> Done | Take:
    """QUERY-4: a batch that the table has is taken again."""
    said = decide_batch(*given, **named)
    return Take() if isinstance(said, Done) else said


def not_trimmed(*given: Any, **named: Any) -> Done | Take:
    """QUERY-6: a batch that straddles is taken whole."""
    said = decide_batch(*given, **named)
    return Take() if isinstance(said, Take) else said


def over_gaps(record: Any, batch: Any, *, stateful: bool = False) -> Done | Take:
    """QUERY-7: records between are left out."""
    try:
        return decide_batch(record, batch, stateful=stateful)
    except BatchGap:
        if stateful or record is None:
            raise
        return Take()


def going_back(before: Any, batch: Any, *given: Any, **named: Any) -> Any:
    """QUERY-8: what is stored is the batch's end."""
    made = record_of_batch(before, batch, *given, **named)
    return replace(made, offsets=made.offsets.with_offsets(batch.end))


def by_number_alone(record: Any, batch: Any, *, stateful: bool = False) -> Done | Take:
    """QUERY-9: a stateful query's batch is placed by its number, wherever its offsets begin."""
    return decide_batch(record, replace(batch, by_number=batch.by_number or stateful))


def not_decided_again(self: QueryTable, planned: Any, written: Any) -> Any:
    """QUERY-12: what did not land is committed on whatever is there."""
    now = planned.now
    for _ in range(50):
        attempt = self._build_attempt(now, planned.proposed, written)
        if isinstance(self._table.commit(attempt), Landed) and not attempt.record.is_claim:
            return attempt.record
        now = self.read_and_require_resumable()
    raise AssertionError("it never landed")


def keeping_deleted(_: RowsWriter, batch: Any) -> tuple[Any, Any]:
    """QUERY-21: a row that deletes its key stays as a row."""
    return batch, batch.slice(0, 0)


def _decides(instead: Callable[..., Any]) -> AbstractContextManager[Any]:
    return patch.object(query_batch_commits, "decide_batch", instead)


MUTANTS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], int]] = {
    "keyed: QUERY-12 without deciding again": (
        lambda: patch.object(QueryTable, "commit", not_decided_again),
        7,
    ),
    "keyed: QUERY-21 without deletes": (
        lambda: patch.object(RowsWriter, "_split_kept_and_deleted", keeping_deleted),
        1,
    ),
    "QUERY-4 off": (lambda: _decides(take_again), 1),
    "QUERY-6 without trimming": (lambda: _decides(not_trimmed), 2),
    "QUERY-7 off": (lambda: _decides(over_gaps), 9),
    "QUERY-8 off": (lambda: patch.object(query_batch_commits, "record_of_batch", going_back), 2),
    "QUERY-9 without computing what is done": (
        lambda: patch.object(batches, "compute_and_discard_rows", lambda _: None),
        4,
    ),
    "QUERY-9 by the number alone": (lambda: _decides(by_number_alone), 24),
    "QUERY-12 without deciding again": (
        lambda: patch.object(QueryTable, "commit", not_decided_again),
        5,
    ),
}
"""Each with a seed that notices it, some in the history of a keyed table."""


def is_noticed(name: str, seed: int, folder: Path) -> bool:
    """Return whether the history of this seed ends in an error or a wrong table."""
    mutate, _ = MUTANTS[name]
    try:
        with mutate():
            play(seed, folder, keyed=name.startswith("keyed"))
    except AssertionError:
        return True
    return False


def main(seeds: int, of: str = "") -> None:
    for name in (name for name in MUTANTS if of in name):
        found = []
        for seed in range(1, seeds + 1):
            with tempfile.TemporaryDirectory() as folder:
                if is_noticed(name, seed, Path(folder)):
                    found.append(seed)
                    if len(found) == 3:
                        break
        print(f"{name}: noticed by the seeds {found}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
