"""What breaks the shipped contract does not pass it, and each of its tests can fail."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Barrier

import pytest
from contract import broken_fake, broken_keys, broken_readers, broken_small
from contract.broken import MUTANTS, NOTICED, own_tests, run
from contract.test_folder_table import FolderWorld
from support import folder_kind

from headgate.control_protocol.testing import contract
from headgate.control_protocol.testing.contract import CoreContract

WAIT_S_MAX = 30
PLANTED_BY = (broken_small, broken_keys, broken_fake, broken_readers)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_target_does_not_pass(name: str) -> None:
    mutant = MUTANTS[name]
    run(mutant.test)
    with mutant.plant(), pytest.raises(NOTICED):
        run(mutant.test)


@pytest.mark.parametrize("shipped", contract.__all__)
def test_each_shipped_test_fails_for_some_broken_target(shipped: str) -> None:
    survived = set(own_tests(shipped))
    for mutant in MUTANTS.values():
        if mutant.contract == shipped:
            with mutant.plant():
                survived -= {test for test in survived if not passes(test)}
    assert survived == set()


def passes(test: str) -> bool:
    try:
        run(test)
    except NOTICED:
        return False
    return True


@pytest.mark.parametrize("shipped", contract.__all__)
def test_the_page_for_authors_says_what_each_shipped_contract_is_for(shipped: str) -> None:
    assert f"`{shipped}`" in folder_kind.PAGE


class TwoSteps(FolderWorld):
    """It looks whether a version is there, and puts it then; in between others have their turn."""

    _turn = Barrier(2)

    def _link(self, draft: Path, version: Path) -> None:
        if version.exists():
            raise FileExistsError
        self._turn.wait(WAIT_S_MAX)
        shutil.copy(draft, version)


def test_a_target_that_compares_and_sets_in_two_steps_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwoSteps(tmp_path, folder_kind.install(tmp_path, monkeypatch))
    with pytest.raises(AssertionError, match="2 of 2 landed"):
        CoreContract().test_of_two_that_commit_at_the_same_moment_one_lands(world)
