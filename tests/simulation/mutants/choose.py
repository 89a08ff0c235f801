"""Chooses which seeds notice the mutants: ``python tests/simulation/mutants/choose.py [NAME]``.

To be run when the simulation has changed, so that other things happen under the same seeds. Those
chosen before are kept where they still notice. Of several seeds the quickest is taken, and a
verdict of the checkers before an assertion of the product's own.
"""

from __future__ import annotations

import argparse
import gc
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from simulation.ages import AGED
from simulation.climate import FOR_EVER_MS, Climate, Weather, drawn, looks_round
from simulation.columns import has_some
from simulation.forger import ONE_SEED_IN, WITH_KEY, WITHOUT_KEY
from simulation.keys import Keys
from simulation.mutants import MUTANTS, expiring, forging, keyed_following, marking, wedging
from simulation.mutants.mutant import Mutant
from simulation.mutants.notice import Notice, noticed, notices, written
from simulation.mutants.worlds import STATES_ROUGHLY, WORLDS
from simulation.payday import ROUTED_KEYS
from simulation.quarantine import has_one
from simulation.run import play
from simulation.trouble import has_trouble
from simulation.wedges import WEDGED_FROM, wedge_of
from support.verdicts import Kind, Violation

ENOUGH = 3

LIKELY: dict[str, Callable[[Climate], bool]] = {
    "topic-ids-ignored": lambda c: c.upheaval == "recreate topic",
    "above-the-table-only": lambda c: c.rates.lie > 0,
    "same-epoch-same-coordinator": lambda c: c.upheaval == "recreate table",
    "uuid-not-required": lambda c: c.upheaval == "recreate table",
    "rolled-back-is-fine": lambda c: c.upheaval == "roll back",
    "parts-count": lambda c: c.part_bytes is not None,
    "head-not-required": lambda c: c.rates.commit > 0.2,
    "claims-at-once": lambda c: c.split,
    "never-superseded": lambda c: c.split or c.rates.stall > 0.01,
    "never-claims-again": lambda c: c.split or c.rates.stall > 0.01,
    "leads-by-an-edge": lambda c: c.split or c.rates.stall > 0.01,
    "fenced-goes-on": lambda c: c.split or c.rates.stall > 0.01,
    "obeys-older": lambda c: c.split or c.rates.stall > 0.01,
    "files-of-any-age": lambda c: c.coordinators.claim_age_max_ms < FOR_EVER_MS,
    "commits-of-any-age": lambda c: c.coordinators.claim_age_max_ms < FOR_EVER_MS,
    "old-epochs-count": lambda c: c.weather is Weather.WILD,
    "failure-unsaid": lambda c: c.rates.batch > 0,
    "delivers-from-memory": lambda c: c.rates.lie > 0 and c.upheaval is None,
    "decision-forgets-pending-commits": lambda c: c.rates.commit > 0.2,
    "expires-unnamed": lambda c: c.rates.commit > 0.2,
    "unknown-answer-believed": lambda c: c.rates.commit > 0.2,
    "newest-pending-commit-first": lambda c: c.rates.commit > 0.2,
    "delivered-by-equality": lambda c: c.rates.commit > 0.2,
    "secondaries-of-the-past-unclaimed": lambda c: c.upheaval in ("recreate table", "roll back"),
    "start-says-nothing-of-it": lambda c: c.upheaval in ("recreate table", "roll back"),
    "quarantine-not-asked": lambda c: c.upheaval in ("recreate table", "roll back"),
    "decided-anew": lambda c: c.upheaval in ("recreate table", "roll back"),
    **dict.fromkeys(
        ("kept-over-a-refusal", "rebased-blindly", "index-ahead-of-its-head"),
        lambda c: c.rates.commit > 0.2,
    ),
    "of-any-age": lambda c: c.coordinators.claim_age_max_ms < FOR_EVER_MS,
    "only-the-head-counts": lambda c: c.coordinators.claim_age_max_ms < FOR_EVER_MS,
    "expires-what-was-rolled-back": lambda c: c.upheaval == "roll back",
    "only-gains-of-this-epoch": lambda c: c.weather is Weather.CALM and c.elections,
}
"""Climates in which it delivers to look for these."""

OF_LOOK_ROUNDS = (
    "never-looks-round",
    "moved-since-it-was-read",
    "looks-at-the-primary-table-only",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="how long to look, per mutant")
    parser.add_argument("--worlds", action="store_true", help="explore when no seed notices")
    options = parser.parse_args()
    logging.disable()
    for name in options.names or list(MUTANTS):
        mutant, known = MUTANTS[name], notices().get(name)
        if known and noticed(mutant, known) == known.kind and not options.names:
            continue
        found = _seed(mutant, options.first, options.seconds)
        if options.worlds and (found is None or found.kind not in set(Kind)):
            found = _world(mutant) or found
        print(f"{mutant.rule:4} {name}: {found or 'not noticed'}", flush=True)
        if found:
            written({**notices(), name: found})


def _world(mutant: Mutant) -> Notice | None:
    for name in sorted(WORLDS, key=lambda name: STATES_ROUGHLY.get(name, 0)):
        kind = noticed(mutant, Notice("", world=name))
        if kind in set(Kind):
            return Notice(str(kind), world=name)
    return None


def _seed(mutant: Mutant, first: int, seconds: float) -> Notice | None:
    until = time.monotonic() + seconds
    found: list[tuple[bool, float, Notice]] = []
    for seed in _seeds(mutant, first):
        if time.monotonic() > until or sum(not crashed for crashed, _, _ in found) == ENOUGH:
            break
        began = time.monotonic()
        try:
            with mutant.planted():
                play(seed, real=mutant.real, keyed=mutant.keyed, stamped=mutant.stamped)
        except Violation as violation:
            notice = _by(mutant, str(violation.kind), seed)
            found.append((False, time.monotonic() - began, notice))
        except Exception as error:  # noqa: BLE001 - the product's own assertions notice too
            notice = _by(mutant, type(error).__name__, seed)
            found.append((True, time.monotonic() - began, notice))
        if seed % 10 == 0:
            gc.collect()
    return min(found, key=lambda one: one[:2])[2] if found else None


def _grows(keys: Keys) -> bool:
    return keys.grows or keys.growth_ms is not None


def _by(mutant: Mutant, kind: str, seed: int) -> Notice:
    in_ = {"real": mutant.real, "keyed": mutant.keyed, "stamped": mutant.stamped}
    return Notice(kind, seed=seed, **{name: True for name, asked in in_.items() if asked})


def _seeds(mutant: Mutant, first: int) -> Iterator[int]:
    likely = LIKELY.get(mutant.name, lambda _: True)
    if mutant in wedging.FAMILY:
        seeds = count(max(first, WEDGED_FROM))
        return (s for s in seeds if wedge_of(s, drawn(random.Random(s)), plain=True))
    if mutant in keyed_following.FAMILY:
        first = max(first, ROUTED_KEYS[0])
    if mutant in (*expiring.FAMILY, *marking.FAMILY):
        return (s for s in AGED if s >= first and likely(drawn(random.Random(s))))
    seeds = (s for s in range(first, 10**6) if likely(drawn(random.Random(s))))
    if mutant.name in OF_LOOK_ROUNDS:
        seeds = filter(looks_round, seeds)
    if mutant in keyed_following.FAMILY:
        return (s for s in seeds if s in ROUTED_KEYS)
    if mutant.keyed:
        made = ((s, Keys(s, drawn(random.Random(s)))) for s in seeds)
        return (s for s, keys in made if (_grows(keys) if mutant.rule == "KEY-8" else keys.busy))
    if mutant.rule[0] == "S":
        return filter(has_some, seeds)
    if mutant in forging.FAMILY:
        forger = WITH_KEY if mutant.rule == "LOG-4" else WITHOUT_KEY
        seeds = (s for s in seeds if s % ONE_SEED_IN == forger)
    if mutant.rule[0] == "I":
        return filter(has_trouble, seeds)
    return filter(has_one, seeds) if mutant.rule[0] in "DQR" else seeds


if __name__ == "__main__":
    main()
