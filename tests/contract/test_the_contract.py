"""What breaks the shipped contract does not pass it."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Barrier

import folder_kind
import pytest
from contract.test_folder_table import FolderWorld

from headgate.control_protocol.testing.contract import CoreContract

WAIT_S_MAX = 30


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
