"""Breaks targets that keep the shipped contract, one way at a time: its tests must notice.

``@broken(TEST, (WHERE, NAME))`` has a function stand in for a step of a target. It is given the
right one in front; its name is the mutant's, its docstring says what is wrong with the target.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from contract.fake_table_world import FakeWorld
from contract.small_folder import SmallFolderWorld, StampedWorld, evolving
from contract.small_target import SmallKeyedWorld, SmallWorld

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.testing import contract as shipped

NOTICED = (AssertionError, pytest.fail.Exception, HeadgateError)
"""What a test raises that does not pass; anything else is a mutant that breaks down by itself."""

WORLDS: Mapping[str, Callable[[], Any]] = {
    **dict.fromkeys(("RaceContract", "CoreContract", "SecondaryContract"), SmallWorld),
    "LedgerContract": SmallWorld,
    **dict.fromkeys(("KeyContract", "KeyedSecondaryContract"), SmallKeyedWorld),
    **dict.fromkeys(("OthersContract", "RollbackContract"), lambda: FakeWorld(Path())),
    **dict.fromkeys(("ExpiryContract", "TagContract"), lambda: FakeWorld(Path())),
    "BranchContract": lambda: FakeWorld(Path()),
    **dict.fromkeys(("ReaderContract", "OthersReaderContract"), SmallFolderWorld),
    "CommitTokenContract": StampedWorld,
    "EvolutionContract": evolving,
}
"""The target that each contract is broken with."""


@dataclass(frozen=True)
class Broken:
    """A target that is wrong in one way, and the test that must notice."""

    test: str
    """As ``CoreContract.test_an_untouched_table_is_fresh``."""
    what: str
    where: object
    name: str
    step: Callable[..., Any]

    @property
    def contract(self) -> str:
        return self.test.partition(".")[0]

    def plant(self) -> Any:
        return patch.object(self.where, self.name, self.step)


MUTANTS: dict[str, Broken] = {}


def broken(test: Callable[..., None], place: tuple[Any, str]) -> Callable[..., None]:
    where, name = place
    right = getattr(where, name)

    def plant(wrong: Callable[..., Any]) -> None:
        assert wrong.__doc__, f"{wrong.__name__} does not say what is wrong"
        mutant = wrong.__name__.replace("_", "-")
        assert mutant not in MUTANTS
        MUTANTS[mutant] = Broken(
            test.__qualname__,
            wrong.__doc__,
            where,
            name,
            lambda *args, **named: wrong(right, *args, **named),
        )

    return plant


def own_tests(contract: str) -> dict[str, Callable[..., None]]:
    """Return the contract's own tests, by their qualified names."""
    own = vars(getattr(shipped, contract))
    return {test.__qualname__: test for name, test in own.items() if name.startswith("test_")}


def run(test: str, contract: str = "") -> None:
    """Run a test of a contract as pytest does, with each of its parameters."""
    contract = contract or test.partition(".")[0]
    function = own_tests(test.partition(".")[0])[test]
    for named in _parameters(function):
        function(getattr(shipped, contract)(), WORLDS[contract](), **named)


def _parameters(test: Callable[..., None]) -> Iterator[dict[str, object]]:
    (mark,) = getattr(test, "pytestmark", None) or (None,)
    if mark is None:
        yield {}
        return
    name, values = mark.args
    assert name in inspect.signature(test).parameters
    yield from ({name: value} for value in values)
