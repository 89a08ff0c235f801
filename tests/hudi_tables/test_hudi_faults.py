"""Faults at the worst moments of a commit to a Hudi table; then archival, which shows damage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hudi_tables.world import ARCHIVED_SOON, HudiWorld, rows
from hudi_tables.zombie import BEFORE, INSIDE, Zombie
from hudi_tables.zookeeper import ZooKeeper, zookeeper

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.ports import Landed, Refused, TableView, Unknown
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.hudi.append_table import HudiSinkTable
from headgate.tables.hudi.base_files import instant_of_file
from headgate.tables.hudi.write_client import HudiJava
from headgate.tables.hudi.write_configuration import TYPE

hudi = pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

pytestmark = pytest.mark.timeout(1_200)

SESSION_MS = 4_000
BOTH = pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
PARTITION = TopicPartition("trips", 0)


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def kind() -> str:
    """The table's type, unless a test is about both."""
    return "COPY_ON_WRITE"


@pytest.fixture
def world(tmp_path: Path, spark: Any, server: ZooKeeper, kind: str) -> HudiWorld:
    properties = {**ARCHIVED_SOON, TYPE: kind}
    return HudiWorld(tmp_path, spark, server.lock(SESSION_MS), properties=properties)


@pytest.fixture
def rises(world: HudiWorld, tmp_path: Path, bundle: Path) -> Iterator[Callable[..., Zombie]]:
    """Zombies over the same table; the first claim of the sink has landed before."""
    claim_table(world.open())
    found: list[Zombie] = []

    def risen(where: str = INSIDE) -> Zombie:
        found.append(Zombie(tmp_path, bundle, world.wanted.properties, 1, where))
        return found[-1]

    yield risen
    for zombie in found:
        zombie.kill()


@pytest.mark.parametrize("forget", [False, True])
def test_a_lock_provider_that_is_killed_in_a_commit_costs_no_row(
    world: HudiWorld, server: ZooKeeper, monkeypatch: pytest.MonkeyPatch, forget: bool
) -> None:
    """``forget``: it comes back without its locks, and an heir claims while the first commits."""
    table = world.open()
    view, file = claim_table(table), world.write_file(1)

    def restarted() -> None:
        server.kill(forget=forget)
        server.start()
        if forget:
            claim_table(world.open(), epoch=2)

    inside(monkeypatch, restarted)
    outcome = commit(table, view, record(1, 1, 3), file)
    assert not (forget and isinstance(outcome, Landed)), outcome
    lives_on(world, 3)


@BOTH
def test_a_jvm_that_is_killed_inside_of_the_lock_is_followed_by_another(
    world: HudiWorld, rises: Callable[..., Zombie]
) -> None:
    """H7: the same instant is gone on with, once the dead JVM's session has ended."""
    zombie = rises()
    zombie.await_stop()
    zombie.kill_java()
    first, again = zombie.outcomes()
    assert first.startswith("Unknown"), first
    assert again.startswith("Landed"), again
    assert world.open().read().record == record(1, 1, 3)
    lives_on(world, 2)


@BOTH
def test_an_heir_takes_over_from_a_process_that_is_killed_inside_of_the_lock(
    world: HudiWorld, rises: Callable[..., Zombie]
) -> None:
    zombie = rises()
    zombie.await_stop()
    zombie.kill()
    lives_on(world, 2)


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("where", [INSIDE, BEFORE])
def test_a_process_that_was_frozen_for_longer_than_its_lease_is_refused(
    world: HudiWorld, rises: Callable[..., Zombie], where: str, *, archived: bool
) -> None:
    """``archived``: it wakes up when all is archived that was there when it fell asleep."""
    zombie = rises(where)
    zombie.await_stop()
    zombie.freeze()
    if archived:
        lives_on(world, 2)
    else:
        eventually_claimed(world.open(), 2)
    zombie.thaw()
    told = zombie.outcomes()
    assert not any(outcome.startswith("Landed") for outcome in told), told
    assert told[-1].startswith("Refused"), told
    lives_on(world, 3)


@BOTH
@pytest.mark.parametrize("heir", [False, True])
def test_storage_that_fails_between_data_and_timeline_costs_no_row(
    world: HudiWorld, monkeypatch: pytest.MonkeyPatch, heir: bool
) -> None:
    """The files are there, and the metadata table may know them: the timeline does not.

    ``heir``: another process claims before this one tries again.
    """
    table = world.open()
    view, file = claim_table(table), world.write_file(1)
    with failing_timeline(world, monkeypatch):
        assert isinstance(commit(table, view, record(1, 1, 3), file), Unknown)
    assert table.read() == view
    if heir:
        claim_table(world.open(), epoch=2)
    again = commit(table, view, record(1, 1, 3), file)
    assert isinstance(again, Refused if heir else Landed), again
    lives_on(world, 3)


# ------------------------------------------------------------------------------------- afterwards


def lives_on(world: HudiWorld, epoch: int) -> None:
    """An heir claims, brings what the fault has held up unless it has landed, and commits until
    all of that is archived: every row is there once, by Hudi's Spark reader and by hudi-rs."""
    table = world.open()
    first, view = table.new_token(), eventually_claimed(table, epoch)
    assert view.record is not None
    for number in range(view.record.offsets[PARTITION] // 3 + 1, 30):
        file = write(world, table, number)
        view = require_landed(commit(table, view, record(epoch, number, 3 * number), file))
        java = HudiJava(world.place, world.place.read_config_ensuring_uuid().schema)
        if java.is_older_than_active_timeline(java.load_meta_client(), instant_of_file(first)):
            break
    assert java.is_older_than_active_timeline(java.load_meta_client(), instant_of_file(first))
    expected = dict.fromkeys(range(1, number + 1), 3)
    assert numbers(world) == expected
    assert numbers_by_rust(world) == expected
    assert not java.read_ghost_instants(java.load_meta_client())


def eventually_claimed(table: HudiSinkTable, epoch: int) -> TableView:
    """Once the lock is free; nobody else wants it."""
    for _ in range(10):
        outcome = commit(table, table.read(), moved_on(table.read(), epoch))
        if isinstance(outcome, Landed):
            return outcome.view
    raise AssertionError(outcome)


def moved_on(view: TableView, epoch: int) -> CommitRecord:
    """A claim takes over the offsets."""
    assert view.record is not None
    return replace(record(epoch, 0, view.record.offsets[PARTITION]), records=0)


def write(world: HudiWorld, table: HudiSinkTable, number: int) -> WrittenFile:
    return world.write(rows(number), table.new_token())[0]


def numbers(world: HudiWorld) -> Counter[int]:
    return Counter(row[0] for row in world.read().select("number").collect())


def numbers_by_rust(world: HudiWorld) -> Counter[int]:
    """As hudi-rs reads them."""
    found = hudi.HudiTableBuilder.from_base_uri(str(world.folder)).build().read()
    return Counter(n for batch in found for n in batch.column("number").to_pylist())


@contextmanager
def failing_timeline(world: HudiWorld, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """From within the next commit's lock on there is no timeline to write to; then it is back."""
    timeline = world.folder / ".hoodie" / "timeline"
    away = timeline.with_name("away")

    def fails() -> None:
        timeline.rename(away)
        timeline.touch()

    with monkeypatch.context() as patched:
        inside(patched, fails)
        yield
    timeline.unlink()
    away.rename(timeline)


def inside(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Within the next commit's lock, behind its look at the table."""
    commits, waiting = HudiJava.commit, [happens]

    def raced(java: HudiJava, instant: str, files: Any, told: Any, check: Any) -> None:
        due = [waiting.pop()] if waiting else []

        def checked() -> None:
            check()
            for each in due:
                each()

        commits(java, instant, files, told, checked)

    monkeypatch.setattr(HudiJava, "commit", raced)
