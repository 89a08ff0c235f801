"""Rows that moved, against a dictionary that knows where each of them went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from headgate.tables.iceberg.maintenance.compaction_commit import MovedRows, Source

Row = tuple[int, int]


@st.composite
def _rewritings(draw: st.DrawFn) -> tuple[MovedRows, Mapping[Row, Row], list[set[int]]]:
    """What was rewritten, where each row went (file and position), and who is dead in the end."""
    sizes = draw(st.lists(st.integers(0, 12), max_size=5))
    first = [draw(st.sets(st.integers(0, n - 1))) if n else set() for n in sizes]
    later = [draw(st.sets(st.integers(0, n - 1))) if n else set() for n in sizes]
    alive = [(f, p) for f, n in enumerate(sizes) for p in range(n) if p not in first[f]]
    order = draw(st.none() | st.permutations(range(len(alive))))
    cuts = sorted(draw(st.sets(st.integers(1, len(alive) - 1)))) if len(alive) > 1 else []
    bounds = [0, *cuts, len(alive)] if alive else [0]
    rows = [end - begin for begin, end in pairwise(bounds)]
    slots = [(f, p) for f, n in enumerate(rows) for p in range(n)]
    went = {row: slots[n if order is None else order[n]] for n, row in enumerate(alive)}
    moved = MovedRows(
        tuple(Source(f"old-{f}", n, BitMap64(first[f])) for f, n in enumerate(sizes)),
        tuple((f"new-{f}", n) for f, n in enumerate(rows)),
        None if order is None else np.array(order, np.int64),
    )
    return moved, went, [one | two for one, two in zip(first, later, strict=True)]


@given(_rewritings())
def test_whoever_died_meanwhile_is_dead_where_its_row_went(
    rewriting: tuple[MovedRows, Mapping[Row, Row], Sequence[set[int]]],
) -> None:
    moved, went, dead = rewriting

    found = moved.newly_dead_positions(lambda path: BitMap64(dead[int(path.removeprefix("old-"))]))

    assert found is not None
    expected = {there for (f, p), there in went.items() if p in dead[f]}
    assert {
        (int(path.removeprefix("new-")), place) for path, bits in found.items() for place in bits
    } == expected
    assert all(found.values()), "files in which nobody died have no delete file"


def test_a_row_that_lives_again_was_left_out() -> None:
    moved = MovedRows((Source("old", 3, BitMap64([1])),), (("new", 2),))

    assert moved.newly_dead_positions(lambda _: BitMap64([0])) is None


@pytest.mark.parametrize("files", [(), (("new", 0),)])
def test_of_dead_rows_nothing_went_anywhere(files: tuple[tuple[str, int], ...]) -> None:
    moved = MovedRows((Source("old", 2, BitMap64([0, 1])),), files)

    assert moved.newly_dead_positions(lambda _: BitMap64([0, 1])) == {}
