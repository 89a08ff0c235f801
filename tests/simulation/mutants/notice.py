"""Who notices a mutant: a seed of the simulation or a world of the exploration, and as what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from exploration.explore import MAXIMUM, explore
from simulation.mutants.mutant import Mutant
from simulation.mutants.worlds import PRODUCT_STATES_MAX, WORLDS
from simulation.run import play
from support.verdicts import Violation

FILE = Path(__file__).with_name("noticed.json")


@dataclass(frozen=True)
class Notice:
    """``kind`` is one of ``verdicts.Kind``, or the name of the product's own error."""

    kind: str
    seed: int | None = None
    world: str | None = None
    real: bool | None = None
    """The seed's world has the real table adapter."""
    keyed: bool | None = None
    """Its table has a key."""
    stamped: bool | None = None
    """Its table stamps its files."""


def notices() -> Mapping[str, Notice]:
    return {name: Notice(**found) for name, found in json.loads(FILE.read_text()).items()}


def written(all_: Mapping[str, Notice]) -> None:
    lines = {
        name: {key: value for key, value in asdict(found).items() if value is not None}
        for name, found in sorted(all_.items())
    }
    FILE.write_text(json.dumps(lines, indent=1) + "\n")


def noticed(mutant: Mutant | None, by: Notice) -> str | None:
    """As what it is noticed; ``None``: not at all. Without a mutant: the product as it is."""
    if mutant is None:
        return _found(by, PRODUCT_STATES_MAX)
    with mutant.planted():
        return _found(by, MAXIMUM)


def _found(by: Notice, states_max: int) -> str | None:
    try:
        if by.world is None:
            assert by.seed is not None
            where = {"real": by.real, "keyed": by.keyed, "stamped": by.stamped}
            play(by.seed, **{name: bool(asked) for name, asked in where.items()})
            return None
        finding = explore(WORLDS[by.world], states_max)
    except Violation as violation:
        return str(violation.kind)
    except Exception as error:  # noqa: BLE001 - the product's own assertions notice too
        return type(error).__name__
    return finding.kind or finding.problem
