"""Maintenance of a sink of many tables: a real ledger knows them, and each gets its turn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from integration.readers import read_with_duckdb
from many_iceberg_tables import ADDED, ASIDE, KEYED, KEYS, ManyTables
from pyiceberg.table.update import SetLocationUpdate

from headgate.config.sink_settings import SinkSettings
from headgate.operations.cli.main import main
from headgate.runtime.maintenance import scheduler
from headgate.runtime.maintenance.scheduler import Maintenance, find_table_locations
from headgate.runtime.maintenance.table_maintenance import Done
from headgate.tables.iceberg.commit_mutex import CommitLock, CommitLocks
from headgate.tables.iceberg.maintenance import compaction_plan

WITHIN_S = 120
FROZEN = "db.frozen"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ManyTables]:
    made = ManyTables(tmp_path, "orders", "returns", "frozen", more="orphans = true\n")
    made.sink.begin_life()
    made.commits(6)
    yield made
    made.close()


def numbers(shop: ManyTables, name: str) -> list[int]:
    """The offsets of a table's rows, as another reader finds them."""
    location = shop.catalog.load_table(name).metadata_location
    return sorted(read_with_duckdb(location)["offset"].to_pylist())


def maintain(shop: ManyTables, *more: str) -> tuple[int, dict[str, Done]]:
    said = CliRunner().invoke(main, ["maintain", str(shop.file), "--json", *more])
    assert said.exit_code in (0, 3), said.output
    return said.exit_code, {each["table"]: Done(**each) for each in json.loads(said.output)}


def test_every_table_that_the_ledger_filled_is_maintained_keyed_or_not(shop: ManyTables) -> None:
    before = {name: numbers(shop, name) for name in (KEYED, ADDED, ASIDE)}

    code, done = maintain(shop)

    assert code == 0
    assert done.keys() == {KEYED, ADDED, ASIDE}  # the file says that the frozen one is not
    assert all(each.compacted_files >= 5 for each in done.values()), done
    assert {name: shop.files(name) for name in (KEYED, ADDED, FROZEN)} == {
        KEYED: 1,
        ADDED: 1,
        FROZEN: 6,
    }
    assert {name: numbers(shop, name) for name in before} == before
    assert len(before[KEYED]) == KEYS


def test_one_of_the_tables_is_maintained_alone(shop: ManyTables) -> None:
    code, done = maintain(shop, "--table", ADDED)
    assert (code, done.keys()) == (0, {ADDED})
    assert (shop.files(ADDED), shop.files(ASIDE)) == (1, 6)


def unreadable(shop: ManyTables, name: str) -> None:
    """Its newest metadata file is gone: the catalog knows the table, and nobody can load it."""
    location = shop.catalog.load_table(name).metadata_location
    Path(location.removeprefix("file://")).unlink()


def test_a_table_that_cannot_be_read_stops_no_other_and_the_command_exits_with_3(
    shop: ManyTables,
) -> None:
    unreadable(shop, KEYED)

    code, done = maintain(shop)

    assert code == 3
    assert "cannot be read" in done[KEYED].failed
    assert (done[ADDED].compacted_files, done[ASIDE].compacted_files) == (6, 6)
    assert done[ADDED].left == [
        f"did not look for orphans: files may be those of a table that cannot be read: {KEYED}"
    ]
    told = CliRunner().invoke(main, ["maintain", str(shop.file)])
    assert told.exit_code == 3
    assert f"failed: HG-401 table {KEYED} cannot be read" in told.output


def test_a_table_without_the_tag_of_the_sink_is_left_alone(shop: ManyTables) -> None:
    table = shop.catalog.load_table(ADDED)
    with table.manage_snapshots() as managed:
        managed.remove_tag("headgate-shop")

    _, done = maintain(shop, "--only", "compact")

    assert done[ADDED].left == ["did not compact: the table has no tag of this sink"]
    assert done[ADDED].compacted_files == 0
    assert len(list(Path(table.location().removeprefix("file://")).rglob("*.parquet"))) == 6


def suspend(shop: ManyTables, name: str) -> None:
    table = shop.catalog.load_table(name)
    first = table.metadata.snapshots[1].snapshot_id
    table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    shop.sink.produce(10)
    shop.sink.run_until(lambda: name in shop.sink.reasons_of_suspended_tables())


def test_no_orphan_is_looked_for_beside_a_table_that_is_not_maintained(shop: ManyTables) -> None:
    """Its live files are in the folder of the sink, too."""
    there = shop.catalog.load_table(ADDED).location()
    moved = (SetLocationUpdate(location=there),)
    shop.catalog.commit_table(shop.catalog.load_table(FROZEN), (), moved)

    _, done = maintain(shop, "--only", "orphans")

    assert done.keys() == {KEYED, ADDED, ASIDE}
    (left,) = done[ADDED].left
    assert left.endswith(f"{ADDED} shares its location with another table of the sink: {there}")

    unreadable(shop, FROZEN)
    code, done = maintain(shop, "--only", "orphans")
    assert code == 0
    assert done.keys() == {KEYED, ADDED, ASIDE}
    assert FROZEN in done[KEYED].left[0]


def test_the_background_knows_where_tables_are_that_get_no_turn(
    shop: ManyTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspend(shop, ADDED)
    seen = dict[str, tuple[str, ...]]()
    monkeypatch.setattr(
        scheduler.Round, "remove_orphans", lambda one: seen.update({one.table: one.beside})
    )
    maintenance = Maintenance(often(shop.settings), shop.catalog, CommitLocks())
    try:
        until(lambda: len(seen) == 2, "nobody looks")
    finally:
        maintenance.close()
    assert seen.keys() == {KEYED, ASIDE}
    assert {shop.catalog.load_table(name).location() for name in (ADDED, FROZEN)} <= set(
        seen[KEYED]
    )


def test_a_suspended_table_is_left_as_it_is(shop: ManyTables) -> None:
    suspend(shop, ADDED)
    before = shop.catalog.load_table(ADDED).metadata_location

    code, done = maintain(shop)

    assert code == 0
    assert "it is suspended: HG-201" in done[ADDED].left[0]
    assert shop.catalog.load_table(ADDED).metadata_location == before
    assert done[KEYED].compacted_files >= 5


def until(said: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + WITHIN_S
    while not said():
        assert time.monotonic() < until_s, what
        time.sleep(0.02)


def test_the_background_gives_each_table_one_commit_of_work_and_then_its_next_turn(
    shop: ManyTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.commits(6)
    monkeypatch.setattr(compaction_plan, "_portions_within_bytes", lambda portions, _: portions[:1])
    unreadable(shop, ASIDE)
    turns = list[tuple[Done, bool]]()
    maintenance = Maintenance(
        often(shop.settings, target_file_bytes=small_bytes(shop)),
        shop.catalog,
        CommitLocks(),
        lambda *told: turns.append(told),
    )
    try:
        until(lambda: small_files_of(turns, ADDED) >= 12, "files are many")
    finally:
        maintenance.close()

    landed = [done.table for done, _ in turns if done.compacted_files]
    assert landed.count(ADDED) > 1, "one commit of the test does not hold all"
    assert KEYED in landed[: landed.index(ADDED) + 2], "each has its turn before the second one"
    assert {done.table for done, failed in turns if failed} == {ASIDE}
    assert numbers(shop, ADDED) == [n for n in range(120) if n % 10 != 7]


def small_files_of(turns: list[tuple[Done, bool]], table: str) -> int:
    return sum(done.compacted_files for done, _ in turns if done.table == table)


def small_bytes(shop: ManyTables) -> int:
    """Three files become one."""
    files = shop.catalog.load_table(ADDED).scan().plan_files()
    return 3 * min(task.file.file_size_in_bytes for task in files)


def often(settings: SinkSettings, **more: int) -> SinkSettings:
    wanted = replace(settings.maintenance, compact=True, interval_ms=1000, **more)
    return replace(settings, maintenance=wanted)


def test_orphans_are_looked_for_in_some_tables_of_each_round_and_in_all_of_them_in_time(
    shop: ManyTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "ORPHANS_AT_ONCE", 1)
    looked = list[str]()
    monkeypatch.setattr(
        scheduler.Round, "remove_orphans", lambda one: looked.append(one.table), raising=True
    )
    maintenance = Maintenance(often(shop.settings), shop.catalog, CommitLocks())
    try:
        until(lambda: len(looked) >= 6, "nobody looks")
    finally:
        maintenance.close()
    assert set(looked[:3]) == set(looked[3:6]) == {KEYED, ADDED, ASIDE}


def test_a_table_without_commits_is_not_waited_for_and_a_fresh_commit_is_a_good_moment() -> None:
    gate = CommitLock(time.monotonic() - 2 * WITHIN_S)
    gate.wait_for_commit_unless_recent(WITHIN_S)
    gate.note_landing()
    gate.wait_for_commit_unless_recent(WITHIN_S, WITHIN_S)


def test_a_table_that_is_gone_has_no_place(shop: ManyTables) -> None:
    shop.catalog.drop_table(ADDED)
    places = find_table_locations(shop.catalog, [ADDED, KEYED])
    assert (places.locations.keys(), places.unread) == ({KEYED}, {})
