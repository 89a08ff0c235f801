"""Starts behind Iceberg's real sink, ended at a random moment of its life: each record is once.

A seed says how the connector ends and when, what a person asks for, and whether it comes back:
``HEADGATE_SEEDS=7`` is one of them, ``HEADGATE_SEEDS=1-40`` are forty.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from integration.operations.connector_scene import PARTITIONS, Scene
from support.connect_worker import RELEASES

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(900)]

FIRST, _, LAST = os.environ.get("HEADGATE_SEEDS", "1-4").partition("-")
ENDS = ("killed", "killed, started again", "paused, woken", "stopped", "stopped, resumed")
INTERVAL_S = 2.0
CONCLUDED = re.compile(r"stale offsets|othing to commit|ompleted? .*commit.* to table|FAILED")
"""What the connector says when it has tried to commit, whatever came of it."""


@contextmanager
def records_all_the_time(scene: Scene, chance: random.Random) -> Iterator[None]:
    """Records come a few at a time, until a little after the connector has ended."""
    done = threading.Event()
    dice = random.Random(chance.random())

    def produce() -> None:
        while not done.wait(dice.random() / 2):
            scene.produce(dice.choice([0, 1, 7, 60]))

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST or FIRST) + 1))
def test_a_start_at_any_moment_leaves_each_record_once(
    tmp_path: Path, bootstrap: str, topic_factory: Callable[..., str], seed: int
) -> None:
    chance = random.Random(seed)
    release = RELEASES[seed % 2]
    end = ENDS[seed // 2 % len(ENDS)]
    adopts, routes, held = (chance.random() < share for share in (0.5, 0.3, 0.4))
    topic, control = topic_factory(PARTITIONS), topic_factory(chance.randint(1, 3))
    tables = ("a", "b") if routes else ()
    scene = Scene(tmp_path, bootstrap, topic, control, release, *tables)
    begun = time.monotonic()
    told = f"seed {seed}: {release}, {end}{', catalog held' * held}{', routes' * routes}"
    told += f", {'adopt' if adopts else 'reread'}"
    try:
        rows = _live(scene, chance, end, held=held)
        options = ["--adopt"] if adopts else []
        done = scene.take_over("--yes", *options)
        if "HG-288" in done.output and "--adopt adds" in done.output:
            told += ", adopted after all"
            options = ["--adopt"]
            done = scene.take_over("--yes", *options)
        if "nothing says where it begins" in done.output:
            told += ", began"
            began = [f"--began={topic}/{partition}=0" for partition in range(PARTITIONS)]
            done = scene.take_over("--yes", *options, *began)
        assert done.exit_code == 0, done.output
        outstanding = sum(map(int, re.findall(r"outstanding: (\d+) rows", done.output)))
        scene.produce(30)
        _come_back(scene, end)
        scene.run_to_the_end()
        scene.require_each_once()
        told += f": exact, {rows} rows before, {outstanding} outstanding"
    except BaseException as error:
        told += f": {error!r:.800}"
        raise
    finally:
        scene.worker.kill()
        told += f", {sum(scene.sent)} in the end, {time.monotonic() - begun:.0f} s"
        print(told, flush=True)
        if report := os.environ.get("HEADGATE_REPORT"):
            with Path(report).open("a") as file:
                file.write(told + "\n")


def _live(scene: Scene, chance: random.Random, end: str, *, held: bool) -> int:
    """Let the connector commit, and end it at a random moment; return the rows before.

    ``held``: nothing can be committed in the last seconds, so that something is under way.
    """
    scene.worker.start()
    scene.worker.create(scene.config)
    with records_all_the_time(scene, chance), ExitStack() as catalog:
        wanted = 1
        for _ in range(chance.randint(1, 4)):
            scene.wait_until(lambda wanted=wanted: scene.rows() >= wanted, "its rows")
            wanted = scene.rows() + 1
        if held and not end.startswith("stopped"):  # in order it ends with a commit
            catalog.enter_context(scene.catalog_held())
        time.sleep((chance.random() * 2 + held) * INTERVAL_S)  # the moment
        rows = scene.rows()
        if end.startswith("killed"):
            scene.worker.kill()
        elif end.startswith("paused"):
            scene.worker.pause_process()
        else:
            scene.worker.stop_connector()
    return rows


def _come_back(scene: Scene, end: str) -> None:
    """Let the connector do all that it would do beside the sink."""
    before = len(scene.worker.read_log())
    if end == "paused, woken":
        scene.worker.wake_process()
    elif end == "killed, started again":
        scene.worker.start()
    elif end == "stopped, resumed":
        scene.worker.resume_connector()
    else:
        return
    until = time.monotonic() + 60
    while time.monotonic() < until and not CONCLUDED.search(scene.worker.read_log()[before:]):
        scene.produce(3)
        time.sleep(0.5)
    time.sleep(2 * INTERVAL_S)  # another commit, of whatever it has read since
    scene.worker.kill()
