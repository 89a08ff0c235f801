"""Faults at the worst moments of an upsert, and of a delivery; then archival, which shows
damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hudi_tables.test_hudi_faults import (
    PARTITION,
    SESSION_MS,
    eventually_claimed,
    inside,
    numbers,
    numbers_by_rust,
)
from hudi_tables.world import ARCHIVED_SOON, KINDS, HudiWorld
from hudi_tables.zombie import BEFORE, INSIDE, Zombie
from hudi_tables.zookeeper import ZooKeeper, zookeeper

from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.ports import Landed, Staging
from headgate.control_protocol.testing.contract.world import claim_table, commit, record
from headgate.tables.hudi.commits import HudiCommits
from headgate.tables.hudi.write_client import HudiJava
from headgate.tables.staged_file_lists import StagedFileLists

pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

pytestmark = pytest.mark.timeout(1_200)

Risen = Callable[[str], tuple[Zombie, Mapping[int, WrittenFile]]]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(params=["keyed", "secondary", "keyed secondary table"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(tmp_path: Path, spark: Any, server: ZooKeeper, kind: str) -> HudiWorld:
    lock = server.lock(SESSION_MS)
    return HudiWorld(tmp_path, spark, lock, properties=ARCHIVED_SOON, **KINDS[kind])


@pytest.fixture
def rises(world: HudiWorld, tmp_path: Path, bundle: Path, kind: str) -> Iterator[Risen]:
    """Zombies over the same table, with the files that they bring, which others may bring too."""
    started(world)
    found: list[Zombie] = []

    def risen(where: str) -> tuple[Zombie, Mapping[int, WrittenFile]]:
        file = world.write_file(1)
        path = staged(world, file) if world.place.follows else ""
        found.append(Zombie(tmp_path, bundle, world.wanted.properties, 1, where, kind, path))
        return found[-1], {1: file} if path else {}

    yield risen
    for zombie in found:
        zombie.kill()


@pytest.mark.parametrize("where", [INSIDE, BEFORE])
def test_a_process_that_slept_beyond_its_lease_in_an_upsert_or_delivery_is_refused(
    world: HudiWorld, rises: Risen, where: str
) -> None:
    """It wakes up when all is archived that was there when it fell asleep."""
    zombie, files = rises(where)
    zombie.await_stop()
    zombie.freeze()
    upto = lives_on(world, 2, files)
    zombie.thaw()
    told = zombie.outcomes()
    assert not any(outcome.startswith("Landed") for outcome in told), told
    lives_on(world, 3, begin=upto + 1)


def test_who_is_killed_in_an_upsert_or_delivery_is_followed_by_another(
    world: HudiWorld, rises: Risen
) -> None:
    zombie, files = rises(INSIDE)
    zombie.await_stop()
    zombie.kill()
    lives_on(world, 2, files)


def test_a_lock_provider_that_forgets_its_locks_in_an_upsert_or_delivery_costs_no_row(
    world: HudiWorld, server: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back without its locks, and an heir takes over while the first commits."""
    started(world)
    table, file = world.open(), world.write_file(1)
    view = table.read()

    def restarted() -> None:
        server.kill(forget=True)
        server.start()
        assert lands(world, world.open(), 2, 1, file) or not world.place.follows

    inside(monkeypatch, restarted)
    outcome = commit(table, view, record(1, 1, 3), file)
    assert not isinstance(outcome, Landed), outcome
    lives_on(world, 3, {1: file})


def started(world: HudiWorld) -> None:
    """Whose commits decide has claimed the table; one that follows is claimed by nobody."""
    if not world.place.follows:
        claim_table(world.open())


def staged(world: HudiWorld, file: WrittenFile) -> str:
    """What names the file until somebody delivers to it."""
    transaction = TransactionId(Epoch(1), TransactionNumber(1))
    draft = Staging(world.open().read(), transaction, Sender("member", "i"), (file,), since_ms=1)
    (pending_commit,) = StagedFileLists(
        {}, world.wanted.location, SinkName("sink")
    ).stage_pending_commits(draft)
    return pending_commit.manifest


def lives_on(
    world: HudiWorld, epoch: int, files: Mapping[int, WrittenFile] | None = None, begin: int = 1
) -> int:
    """Others bring what the fault has held up, unless it has landed, and go on until all of that
    is archived; returns up to which number. Every row is there once, by Hudi's Spark reader and by
    hudi-rs."""
    table, java = (
        world.open(),
        HudiJava(world.place, world.place.read_config_ensuring_uuid().schema),
    )
    if not world.place.follows:
        eventually_claimed(table, epoch)
    first = java.reserve_instant()
    for number in range(begin, begin + 30):
        file = (files or {}).get(number) or world.write_file(number)
        assert any(lands(world, table, epoch, number, file) for _ in range(10)), number
        if java.is_older_than_active_timeline(java.load_meta_client(), first):
            break
    assert java.is_older_than_active_timeline(java.load_meta_client(), first)
    expected = dict.fromkeys(range(1, number + 1), 3)
    assert numbers(world) == expected
    assert numbers_by_rust(world) == expected
    assert not java.read_ghost_instants(java.load_meta_client())
    return number


def lands(world: HudiWorld, table: HudiCommits, epoch: int, number: int, file: WrittenFile) -> bool:
    """Commit what it brings, unless that is there; an heir of a table that decides claims it."""
    view = table.read()
    if view.record and view.record.offsets[PARTITION] >= 3 * number:
        return True
    if not world.place.follows and view.record and view.record.transaction.epoch < epoch:
        eventually_claimed(table, epoch)
        return False
    return isinstance(commit(table, view, record(epoch, number, 3 * number), file), Landed)
