"""What a mutant is, and how it is planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from support.participant_states import without_checks

from headgate.coordinator import machine

Place = tuple[object, str]
"""A module or class, and the name in it."""

Planted = tuple[object, str, Any]


IN_SILENCE: Planted = (machine, "act_on_repeated_refusals", lambda *_: None)
"""Statuses are refused as often as they come (RANGE-3)."""


@dataclass(frozen=True)
class Mutant:
    """``rule`` is falsified by the ``patches``, in the way ``what`` says.

    They are made anew whenever it is planted: what they remember is one world's.
    """

    name: str
    rule: str
    what: str
    patches: Callable[[], tuple[Planted, ...]]
    real: bool = False
    """It is in the real table adapter, and shows only in worlds that have it."""
    keyed: bool = False
    """It shows only in worlds whose table has a key."""
    stamped: bool = False
    """It shows only in worlds whose table stamps its files."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        patches = self.patches()
        before = [(where, name, getattr(where, name)) for where, name, _ in patches]
        for where, name, falsified in patches:
            setattr(where, name, falsified)
        try:
            with without_checks():
                yield
        finally:
            for where, name, right in reversed(before):
                setattr(where, name, right)


class Family(list[Mutant]):
    """Mutants of rules that belong together, each made by one of the decorators."""

    def __init__(self, *, real: bool = False, keyed: bool = False, stamped: bool = False) -> None:
        super().__init__()
        self._in = {"real": real, "keyed": keyed, "stamped": stamped}

    def replaces(
        self, rule: str, *places: Place, unhealed: bool = False
    ) -> Callable[[Callable[..., Any]], None]:
        """The function stands in at all places; it is given the right one in front.

        Its name is the mutant's, its docstring says what is wrong with it. ``unhealed``: without
        RANGE-3, whose new epoch mends what it does, so that nobody would notice.
        """

        def plant(falsified: Callable[..., Any]) -> None:
            def made() -> tuple[Planted, ...]:
                planted = tuple((*place, _given(falsified, place)) for place in places)
                return (*planted, IN_SILENCE) if unhealed else planted

            self._add(rule, falsified, made)

        return plant

    def patches(self, rule: str) -> Callable[[Callable[[], tuple[Planted, ...]]], None]:
        """Several places, each with something else: the function says which."""

        def plant(made: Callable[[], tuple[Planted, ...]]) -> None:
            self._add(rule, made, made)

        return plant

    def _add(
        self, rule: str, named: Callable[..., Any], patches: Callable[[], tuple[Planted, ...]]
    ) -> None:
        assert named.__doc__, f"{named.__name__} does not say what it falsifies"
        name = named.__name__.strip("_").replace("_", "-")
        self.append(Mutant(name, rule, named.__doc__.rstrip("."), patches, **self._in))


def _given(falsified: Callable[..., Any], place: Place) -> Callable[..., Any]:
    right = getattr(*place)
    return lambda *args, **named: falsified(right, *args, **named)
