"""Run seeds: ``python tests/simulation/run.py --seeds 1000 [--first 1] [--processes 2]``.

Replay one, with its whole transcript: ``--seed 7``. With ``--leased``, seeds are those of
coordinators of a Hudi table whose lock is a lease, over the real adapter.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[1]))

from simulation.climate import drawn
from simulation.course import Course
from simulation.forger import part_bytes
from simulation.leased_world import LeasedWorld
from simulation.quick import carried, heard_anew, quick_copies
from simulation.real_port import determined
from simulation.wedges import impatient
from simulation.world import World

SEEDS_AT_ONCE = 100
REAL_EVERY = 20
KEYED_EVERY = 12
STAMPED_EVERY = 11
SEEDS_BETWEEN_COLLECTIONS = 10


def play(
    seed: int,
    *,
    whole: bool = False,
    real: bool = False,
    keyed: bool = False,
    stamped: bool = False,
) -> World:
    """One seed, whole; whatever goes wrong carries the command that replays it.

    Its garbage is left to who plays many: collecting it on the way costs more than the seed.
    """
    gc.disable()
    heard_anew()
    try:
        with quick_copies(), carried(_part_bytes(seed)):
            world = World(seed, real=real, keyed=keyed, stamped=stamped)
            try:
                with impatient(world), determined(world) if real else nullcontext():
                    Course(world).run()
                    for whole_table in world.wholes:
                        whole_table.end()
            except Exception as error:
                how = " --real" * real + " --keyed" * keyed + " --stamped" * stamped
                error.add_note(f"replay: python tests/simulation/run.py --seed {seed}{how}")
                error.add_note(world.transcript(60))
                raise
            finally:
                if whole:
                    print(world.climate, world.transcript(), sep="\n")
            return world
    finally:
        gc.enable()


def _part_bytes(seed: int) -> int | None:
    import random

    return part_bytes(seed, drawn(random.Random(seed)).part_bytes)


def play_leased(seed: int, *, whole: bool = False) -> LeasedWorld:
    """As ``play``: a Hudi table whose lock is a lease."""
    with TemporaryDirectory() as folder:
        world = LeasedWorld(seed, Path(folder) / "trips")
        try:
            world.play()
        except Exception as error:
            error.add_note(f"replay: python tests/simulation/run.py --seed {seed} --leased")
            error.add_note(world.transcript(60))
            raise
        finally:
            if whole:
                print(world.transcript())
        return world


Pieces = Sequence[range]


@dataclass
class Tally:
    """How many seeds, commits and turns; which errors stopped sinks that should; what struck."""

    counts: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    """Per seed that failed, all there is to say about it."""

    def add(self, other: Tally) -> None:
        self.counts += other.counts
        self.struck += other.struck
        self.failed += other.failed


Tallies = Iterable[Tally]


def played(
    seeds: Iterable[int],
    real: frozenset[int] = frozenset(),
    keyed: frozenset[int] = frozenset(),
    stamped: frozenset[int] = frozenset(),
) -> Tally:
    tally = Tally()
    for seed in seeds:
        try:
            world = play(seed, real=seed in real, keyed=seed in keyed, stamped=seed in stamped)
        except Exception as error:  # noqa: BLE001 - the others go on, and all are told
            tally.failed.append("".join(traceback.format_exception(error)))
            continue
        tally.counts.update(seeds=1, commits=world.oracle.commits, turns=world.turns)
        tally.counts.update({node.stopped_by.code for node in world.nodes if node.stopped_by})
        tally.struck += world.struck
        if seed % SEEDS_BETWEEN_COLLECTIONS == 0:
            gc.collect()
    return tally


def played_leased(seeds: Iterable[int]) -> Tally:
    tally = Tally()
    for seed in seeds:
        try:
            world = play_leased(seed)
        except Exception as error:  # noqa: BLE001 - as above
            tally.failed.append("".join(traceback.format_exception(error)))
            continue
        tally.counts.update(seeds=1, commits=world.struck["landed"])
        tally.counts.update([world.stopped.code] if world.stopped else [])
        tally.struck += world.struck
    return tally


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    every = {"help": "of the seeds one in so many; 0: none", "type": int}
    parser.add_argument("--real", action="store_true", help="over the real table adapter")
    parser.add_argument("--real-every", default=REAL_EVERY, **every)
    parser.add_argument("--keyed", action="store_true", help="the table has a key")
    parser.add_argument("--keyed-every", default=KEYED_EVERY, **every)
    parser.add_argument("--stamped", action="store_true", help="the table stamps its files")
    parser.add_argument("--stamped-every", default=STAMPED_EVERY, **every)
    parser.add_argument("--leased", action="store_true", help="Hudi's lock is a lease")
    return parser.parse_args()


def replay(options: argparse.Namespace) -> None:
    if options.leased:
        play_leased(options.seed, whole=True)
        return
    real, keyed, stamped = options.real, options.keyed, options.stamped
    play(options.seed, whole=True, real=real, keyed=keyed, stamped=stamped)


def tallies(pool: ProcessPoolExecutor, options: argparse.Namespace, pieces: Pieces) -> Tallies:
    if options.leased:
        return pool.map(played_leased, pieces)
    if options.stamped:
        none = some_of(pieces, 0)
        return pool.map(played, pieces, none, none, some_of(pieces, 1))
    real = some_of(pieces, 1 if options.real else options.real_every)
    keyed = some_of(pieces, 1 if options.keyed else options.keyed_every)
    stamped = [
        seeds - real_ones - keyed_ones
        for seeds, real_ones, keyed_ones in zip(
            some_of(pieces, options.stamped_every), real, keyed, strict=True
        )
    ]
    return pool.map(played, pieces, real, keyed, stamped)


def some_of(pieces: Pieces, every: int) -> list[frozenset[int]]:
    """Of the seeds of each piece one in so many."""
    return [frozenset(s for s in piece if every and s % every == 0) for piece in pieces]


def main() -> int:
    options = asked()
    logging.disable()
    if options.seed is not None:
        replay(options)
        return 0
    began = time.monotonic()
    end = options.first + options.seeds
    pieces = [
        range(begin, min(begin + SEEDS_AT_ONCE, end))
        for begin in range(options.first, end, SEEDS_AT_ONCE)
    ]
    whole = Tally()
    with ProcessPoolExecutor(options.processes, initializer=logging.disable) as pool:
        screen = Console(stderr=True)
        for tally in track(
            tallies(pool, options, pieces),
            "seeds",
            len(pieces),
            console=screen,
            disable=not screen.is_terminal,
        ):
            print(*tally.failed, sep="\n", end="", flush=True)
            whole.add(tally)
    minutes = (time.monotonic() - began) / 60
    print(
        "struck:",
        *(f"  {times:8} {what}" for what, times in sorted(whole.struck.items())),
        sep="\n",
    )
    print(f"{len(whole.failed) or 'no'} violations; {dict(whole.counts)}")
    print(f"{options.seeds / minutes:.0f} seeds a minute in {options.processes} process(es)")
    return 1 if whole.failed else 0


if __name__ == "__main__":
    sys.exit(main())
