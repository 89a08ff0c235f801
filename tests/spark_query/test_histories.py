"""Histories of queries, in which anything may fail, lose and double nothing; mutants show."""

from __future__ import annotations

from pathlib import Path

import pytest
from spark_query.histories import play
from spark_query.mutants import MUTANTS, is_noticed


@pytest.mark.parametrize("seed", range(1, 9))
def test_query_1_the_table_decides_whatever_happens_to_checkpoints(
    tmp_path: Path, seed: int
) -> None:
    play(seed, tmp_path)


@pytest.mark.parametrize("seed", range(1, 9))
def test_query_21_a_keyed_table_is_the_fold_of_its_records_whatever_happens(
    tmp_path: Path, seed: int
) -> None:
    play(seed, tmp_path, keyed=True)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(tmp_path: Path, name: str) -> None:
    assert is_noticed(name, MUTANTS[name][1], tmp_path)
