"""Seeds over a Hudi table whose lock is a lease (rules H of docs/table-formats/hudi.md).

The adapter is the real one. Damage shows in what readers find once all is archived; a sink that
stops by name (HG-255) is right where somebody has landed without the lock, and only there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from simulation.leased_hudi import KEPT_MAX, Failed, LeasedHudi, LeasedJava, Moment
from simulation.leased_world import PARTITION, SINK, LeasedWorld, Process
from support.verdicts import Violation

from headgate.control_protocol.errors import HudiForked
from headgate.control_protocol.ports import Lineage
from headgate.tables.hudi import lost_lock_detection
from headgate.tables.hudi.append_table import HudiSinkTable
from headgate.tables.hudi.base_files import NOTE, NOTED, instant_of_file
from headgate.tables.hudi.reserved_instants import Reservations, StoredCommit
from headgate.tables.hudi.write_client import Instant
from headgate.testing.node import Killed

SEEDS = 20
STRUCK = (
    "stopped",
    "lease expired",
    *("kill at behind the hook", "kill at metadata written", "fail at metadata written"),
    *("stall at behind the hook", "stall at metadata written", "stall at behind the last look"),
    *("stall at rolling back", "kill at rolling back", "stall at rollback"),
)
"""What must really happen, each at least once."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def played(seed: int, folder: Path) -> Counter[str]:
    world = LeasedWorld(seed, folder / str(seed) / "trips")
    world.play()
    return world.struck


@pytest.mark.wide
def test_every_row_is_there_once_though_the_lock_is_a_lease(tmp_path: Path) -> None:
    struck: Counter[str] = Counter()
    for seed in range(SEEDS):
        struck += played(seed, tmp_path)
    assert struck["landed"] > 20 * SEEDS
    assert set(STRUCK) - struck.keys() == set()


def test_who_slept_while_the_table_was_opened_does_not_open_it_again(tmp_path: Path) -> None:
    """Its first commit was condemned meanwhile: completing it looked like a fork (H4, H9)."""
    assert played(91000175, tmp_path)["landed"]


@pytest.mark.parametrize("seed", [10439, 11659, 11790])
def test_a_fork_of_which_one_branch_is_archived_at_once_stops_the_sink(
    seed: int, tmp_path: Path
) -> None:
    """A claim slept within the lock; the coordinator before it committed an instant of long ago."""
    assert played(seed, tmp_path)["stopped"]


def test_a_leased_seed_has_one_course(tmp_path: Path) -> None:
    assert played(3, tmp_path / "one") == played(3, tmp_path / "other")


def test_a_commit_that_is_archived_as_soon_as_it_is_complete_is_known(
    tmp_path: Path,
) -> None:
    """Its instant was reserved before all that others have committed; its writer dies then."""
    world, writer, heir = calm(tmp_path)
    for _ in range(KEPT_MAX):
        commit_foreign(world.hudi)
    at(writer, "archived", killed)
    writer.turn()  # it is refused, for the table has moved on
    writer.turn()
    assert writer.dead
    assert not any(each.metadata for each in done(world.hudi))
    heir.turn()
    assert world.struck["landed"] == 2
    found = HudiSinkTable(world.place, SINK, java=heir.java).read().record
    assert found is not None
    assert Counter(world.hudi.rows()) == Counter(range(found.offsets[PARTITION]))
    assert found.offsets[PARTITION] > 0


def test_what_rises_again_stops_the_sink(tmp_path: Path) -> None:
    """A claim has rolled it back and did not land, while its writer slept behind Hudi's last look:
    no commit came between."""
    world, writer, heir = calm(tmp_path)

    def taken_over() -> None:
        world.hudi.holder = None
        at(heir, "register", failing)
        heir.turn()

    at(writer, "behind the last look", taken_over)
    writer.turn()
    assert world.hudi.landed_late
    assert world.stopped is not None
    with pytest.raises(HudiForked, match="was rolled back, and is complete"):
        HudiSinkTable(world.place, SINK, java=heir.java).read()


@pytest.mark.parametrize("dies", [False, True], ids=["the writer", "its heir"])
def test_what_rises_again_and_is_archived_at_once_stops_the_sink(
    tmp_path: Path, *, dies: bool
) -> None:
    """The timeline does not show it: the archive is asked, by its writer and by who claims next."""
    world, writer, heir = calm(tmp_path)
    instant = instant_of_file(writer.stamp)
    for _ in range(KEPT_MAX):
        commit_foreign(world.hudi)
    writer.turn()  # it is refused, for the table has moved on
    condemn = Reservations(world.place, SINK).forbid_completion
    at(writer, "behind the last look", lambda: condemn(instant))
    if dies:
        at(writer, "archived", killed)
    writer.turn()
    assert instant in world.hudi.archived
    if dies:
        assert world.stopped is None
        heir.turn()
    assert "was rolled back, and is complete" in str(world.stopped)


@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies before it has kept it"])
@pytest.mark.parametrize(
    "where", ["hook", "behind the hook", "metadata written", "behind the last look"]
)
def test_a_claim_that_slept_in_the_lock_does_not_hide_what_was_archived_meanwhile(
    tmp_path: Path, where: str, *, dies: bool
) -> None:
    """Rows of a commit that the claim does not know would be written again (H9, H10)."""
    world, writer, heir = calm(tmp_path)
    instant = instant_of_file(writer.stamp)
    for _ in range(KEPT_MAX):
        commit_foreign(world.hudi)
    writer._view = None  # it reads the table again, and has written nothing yet

    def lost() -> None:
        world.hudi.holder = None
        if dies:
            at(writer, "archived", killed)
        writer.turn()
        assert instant in world.hudi.archived
        world.hudi.holder = None

    if where == "hook":
        at_hook(heir, lost)
    else:
        at(heir, where, lost)
    heir.turn()
    assert len(world.hudi.landed_late) == 1
    assert f"and not {instant}, which came between" in str(world.stopped)
    with pytest.raises(HudiForked):
        HudiSinkTable(world.place, SINK, java=Process(world).java).read()

    (late,) = world.hudi.landed_late  # 'A fork': the claim is taken back alone
    LeasedJava(world.hudi, Process(world), world.place, "")._roll_back(late)
    world.stopped, last = None, Process(world)
    for _ in range(3):
        last.turn()
    view = HudiSinkTable(world.place, SINK, java=last.java).read()
    assert view.lineage is Lineage.CONTAINS_TAG
    assert view.record is not None
    assert view.record.transaction.number == 2
    assert Counter(world.hudi.rows()) == Counter(range(view.record.offsets[PARTITION]))


@pytest.mark.parametrize("where", ["timeline", "locked"])
def test_what_others_condemn_before_or_within_the_lock_is_never_complete(
    tmp_path: Path, where: str
) -> None:
    world, writer, _ = calm(tmp_path)
    instant = instant_of_file(writer.stamp)
    at(writer, where, lambda: Reservations(world.place, SINK).forbid_completion(instant))
    writer.turn()
    assert world.stopped is None
    assert world.struck["landed"] == 1
    moment = world.hudi.timeline.get(instant)
    assert moment is None if where == "timeline" else moment and not moment.done
    for _ in range(3):
        writer.turn()
    assert world.struck["landed"] > 1
    found = HudiSinkTable(world.place, SINK, java=writer.java).read().record
    assert found is not None
    assert Counter(world.hudi.rows()) == Counter(range(found.offsets[PARTITION]))


def test_late_files_go_with_the_next_commit_and_committed_ones_stay(tmp_path: Path) -> None:
    """A marker tells of one that was begun in time, a note of one whose marker is gone (H5)."""
    world, writer, _ = calm(tmp_path)
    instant, buried = instant_of_file(writer.stamp), world.hudi.tick()
    writer.turn()
    Reservations(world.place, SINK).forbid_completion(buried)
    committed = [each for each in world.hudi.folder.glob("*.parquet") if instant in each.name]
    marked, coming = (world.hudi.folder / f"late{n}_{instant}.parquet" for n in range(2))
    noted = world.hudi.folder / f"late2_{instant}.parquet"
    risen = world.hudi.folder / f"late3_{buried}.parquet"
    for file in (marked, noted, risen):
        file.write_text("[99]")
    world.hudi.markers(instant).mkdir(parents=True, exist_ok=True)
    for file in (marked, coming):
        (world.hudi.markers(instant) / f"{file.name}.marker.CREATE").touch()
    notes = world.hudi.folder / NOTED
    notes.mkdir(parents=True, exist_ok=True)
    for file in (*committed, noted, risen):
        (notes / f"{file.name}{NOTE}").write_text(file.name)
    writer.turn()
    assert not any(file.exists() for file in (marked, noted, risen))
    assert committed
    assert all(file.exists() for file in committed)
    assert world.hudi.begun(instant) == [coming.name]  # its file may still appear
    assert not list(notes.iterdir())


def calm(folder: Path) -> tuple[LeasedWorld, Process, Process]:
    """A world in which nothing happens by itself; the first process has claimed."""
    world = LeasedWorld(0, folder / "trips")
    world.calm = True
    writer = Process(world)
    while not writer.claimed:
        writer.turn()
    return world, writer, Process(world)


def at(process: Process, where: str, happens: Callable[[], object]) -> None:
    """When the process comes there, once."""
    strike, waiting = process.strike, [happens]

    def struck(now: str) -> None:
        strike(now)
        if now == where and waiting:
            waiting.pop()()

    process.strike = struck  # type: ignore[method-assign]


def at_hook(process: Process, happens: Callable[[], object]) -> None:
    """When the process has compared the table within the lock, and before it says what comes."""
    kept = process._table._reservations
    announce = kept.announce_commit

    def announced(coming: StoredCommit) -> None:
        happens()
        announce(coming)

    kept.announce_commit = announced  # type: ignore[method-assign]


def killed() -> None:
    raise Killed


def failing() -> None:
    raise Failed("it cannot be written")


def commit_foreign(hudi: LeasedHudi) -> None:
    instant = hudi.tick()
    done = Instant(instant, int(hudi.tick()), "INSERT", replaces=False, metadata={})
    hudi.timeline[instant] = Moment(done=done)
    hudi.metadata.append((instant, ()))


def done(hudi: LeasedHudi) -> list[Instant]:
    return [moment.done for moment in hudi.timeline.values() if moment.done]


def of_timeline_only(
    table: HudiSinkTable, ours: list[Instant], _landed: list[StoredCommit]
) -> None:
    REQUIRE_UNFORKED(table, ours, [])


REQUIRE_UNFORKED = HudiSinkTable._require_unforked


def nothing(*_: Any, **__: Any) -> None: ...


def nobody(*_: Any, **__: Any) -> frozenset[str]:
    return frozenset()


MUTANTS: dict[str, tuple[object, str, Callable[..., Any], int]] = {
    "H2 the hook looks at nothing": (HudiSinkTable, "_check_before_commit", nothing, 9),
    "H3 nothing is rolled back": (HudiSinkTable, "_unfinished_instants", nobody, 2),
    "H3 what is rolled back is not condemned": (Reservations, "forbid_completion", nothing, 17),
    "H8 ghosts are not looked for": (LeasedJava, "read_ghost_instants", nobody, 17),
    "H9 what rose again stops nobody": (
        lost_lock_detection,
        "require_no_resurrected_instants",
        nothing,
        33,
    ),
    "H9 no commit names the one before": (lost_lock_detection, "require_unforked", nothing, 44),
    "H9 what was archived at once is no branch": (
        HudiSinkTable,
        "_require_unforked",
        of_timeline_only,
        10439,
    ),
    "H10 what is archived is taken for a ghost": (
        LeasedJava,
        "archived_completion_time",
        nothing,
        4,
    ),
}
"""What is falsified, and a seed that notices it."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, falsified, seed = MUTANTS[name]
    monkeypatch.setattr(where, what, falsified)
    with pytest.raises(Violation):
        played(seed, tmp_path)
