"""A fork, and the way out that docs/table-formats/hudi.md describes: by Hudi's own restore."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hudi_tables.sinks import ids_by_spark
from hudi_tables.test_hudi_sink import started
from hudi_tables.world import ARCHIVED_SOON, HudiWorld, rows

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import encode_record, sink_in_summary
from headgate.control_protocol.errors import HudiForked
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import Lineage
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.operations.cli.main import main
from headgate.tables.hudi.append_table import HudiSinkTable
from headgate.tables.hudi.base_files import instant_of_file
from headgate.tables.hudi.lost_lock_detection import previous_completion_time_key
from headgate.tables.hudi.reserved_instants import Reservations
from headgate.tables.hudi.table_properties import HudiLocation
from headgate.tables.hudi.write_client import HudiJava
from headgate.tables.hudi.write_configuration import TYPE

hudi = pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def make(tmp_path: Path, spark: Any, lock: dict[str, str]) -> Callable[..., HudiWorld]:
    return lambda kind, **more: HudiWorld(tmp_path, spark, lock, properties={TYPE: kind, **more})


def test_a_fork_is_taken_back_behind_the_predecessor_of_both_commits(
    make: Callable[[str], HudiWorld],
) -> None:
    """The records of both are written again, once."""
    world = make("COPY_ON_WRITE")
    table = world.open()
    view = claim_table(table)
    late = world.write(rows(1), HudiSinkTable(world.place, SinkName("sink")).new_token())[0]
    require_landed(commit(table, view, record(1, 1, 3), world.write_file(1)))
    completed_late(world.place, late, record(1, 1, 3), view.tag)
    with pytest.raises(HudiForked, match=instant_of_file(late.path)):
        world.open().read()

    restored(world.spark, world.place, view.tag)
    heir = world.open()
    seen = heir.read()
    assert (seen.lineage, seen.branch_record) == (Lineage.ROLLED_BACK, record(1, 0))
    view = claim_table(heir, epoch=2)
    view = require_landed(
        commit(heir, view, record(2, 1, 3), world.write(rows(1), heir.new_token())[0])
    )
    goes_on(world, heir, record(2, 2, 6))


def test_a_commit_that_rose_again_is_taken_back_alone(
    make: Callable[[str], HudiWorld],
) -> None:
    """What the sink has committed before the late commit stays, and it goes on from there."""
    world = make("MERGE_ON_READ")
    zombie = world.open()
    base, late = claim_table(zombie), world.write_file(1)
    world.lose_next_answer(landed=False)
    commit(zombie, base, record(1, 1, 3), late)
    heir = world.open()
    view = claim_table(heir, epoch=2)
    view = require_landed(
        commit(heir, view, record(2, 1, 3), world.write(rows(1), heir.new_token())[0])
    )
    completed_late(world.place, late, record(1, 1, 3), base.tag)
    with pytest.raises(HudiForked, match="was rolled back, and is complete"):
        world.open().read()

    restored(world.spark, world.place, view.tag)
    heir = world.open()
    assert heir.read().lineage is Lineage.CONTAINS_TAG
    claim_table(heir, epoch=3)
    goes_on(world, heir, record(3, 1, 6))


def test_a_late_claim_is_taken_back_alone_where_the_other_commit_is_archived(
    make: Callable[..., HudiWorld],
) -> None:
    """A restore to the commit before the claim, whoever made that, leaves what is archived."""
    world = make("COPY_ON_WRITE", **ARCHIVED_SOON)
    table = world.open()
    view, file = claim_table(table), world.write_file(1)
    require_landed(commit(table, view, record(1, 1, 3), file))
    java, foreign = (
        HudiJava(world.place, world.place.read_config_ensuring_uuid().schema),
        range(7, 20),
    )
    for number in foreign:
        world.append_foreign(number)
        if java.is_older_than_active_timeline(java.load_meta_client(), instant_of_file(file.path)):
            break
    before = next(java.completed_commits(java.load_meta_client())).completed
    claim = java.reserve_instant()
    java.begin_instant(java.load_meta_client(), claim)
    told = {
        **encode_record(record(2, 0)),
        previous_completion_time_key(SinkName("sink")): str(view.tag),
    }
    java.commit(claim, (), told, lambda: None)
    java.close()
    with pytest.raises(HudiForked, match=f"commit {claim} .* and not {instant_of_file(file.path)}"):
        world.open().read()

    restored(world.spark, world.place, before)
    heir = world.open()
    seen = heir.read()
    assert (seen.lineage, seen.record) == (Lineage.CONTAINS_TAG, record(1, 1, 3))
    require_landed(commit(heir, seen, record(3, 0, 3)))
    require_landed(
        commit(heir, heir.read(), record(3, 1, 6), world.write_marked_file(heir.new_token(), 2))
    )
    assert world.visible_file_numbers() == [1, 2, *range(7, number + 1)]


def test_a_forked_sink_is_restored_and_follows_its_table(
    tmp_path: Path, bundle: Path, spark: Any, lock: dict[str, str]
) -> None:
    """The recipe of docs/table-formats/hudi.md, step by step."""
    with started(tmp_path, bundle, lock) as sink:
        sink.produce(300)
        process = sink.start()
        sink.waits_for(300)
        process.terminate()
        assert process.wait(120) == 0, sink.said()[-4000:]
        (wanted,) = sink.wanted()
        predecessor = fork(HudiLocation.from_spec(wanted))
        assert sink.start().wait(200) == 1, sink.said()[-4000:]
        assert "HG-255" in sink.said()

        restored(spark, HudiLocation.from_spec(wanted), predecessor)
        assert sink.ids() == Counter()
        told, coordinator = sink.file.read_text(), "[coordinator]\n"
        assert coordinator in told
        follows = f'{coordinator}on_rollback = "follow-table"\n'
        sink.file.write_text(told.replace(coordinator, follows))
        process = sink.start()
        sink.produce(60)
        sink.wait(lambda: sink.ids() == Counter(range(360)), "all rows, once each")
        process.terminate()
        assert process.wait(120) == 0, sink.said()[-4000:]
        assert ids_by_spark(spark, wanted) == Counter(range(360))
        done = CliRunner().invoke(main, ["audit", str(sink.file)])
        assert done.exit_code == 0, done.output


# --------------------------------------------------------------------------------------- accidents


def completed_late(
    place: HudiLocation, file: WrittenFile, late: CommitRecord, continues: int | None
) -> None:
    """Complete a zombie's commit whose file is gone by then, without a look at the table."""
    java, instant = (
        HudiJava(place, place.read_config_ensuring_uuid().schema),
        instant_of_file(file.path),
    )
    java.begin_instant(java.load_meta_client(), instant)
    Path(file.path.removeprefix("file://")).unlink(missing_ok=True)
    told = {**encode_record(late), previous_completion_time_key(late.sink): str(continues)}
    java.commit(instant, (file,), told, lambda: None)
    java.close()


def fork(place: HudiLocation) -> int:
    """Let a zombie continue the sink's first commit; return when that was completed."""
    table = HudiSinkTable(place, SinkName("sink"))
    view, java = table.read(), HudiJava(place, place.read_config_ensuring_uuid().schema)
    assert view.record is not None
    first = [
        each
        for each in java.completed_commits(java.load_meta_client())
        if sink_in_summary(each.metadata)
    ][-1]
    name = f"gone-0_0-0-0_{instant_of_file(table.new_token())}.parquet"
    path = f"{place.location}/zone=a/{name}"
    completed_late(place, WrittenFile(path, 3, 1_000), view.record, first.completed)
    return first.completed


# ------------------------------------------------------------------------------------- the way out


def restored(spark: Any, place: HudiLocation, completed: int | None) -> None:
    """By Hudi's procedures, as docs/table-formats/hudi.md has it."""
    timeline = Path(place.location.removeprefix("file://")) / ".hoodie" / "timeline"
    (kept,) = timeline.glob(f"*_{completed}.*commit")
    requested = kept.name.partition("_")[0]
    policy = "hoodie.clean.failed.writes.policy"
    spark.sql(f"set {policy} = LAZY")
    for procedure, instant in (
        ("create_savepoint", "commit_time"),
        ("rollback_to_savepoint", "instant_time"),
        ("delete_savepoint", "instant_time"),
    ):
        told = f"path => '{place.base_path}', {instant} => '{requested}'"
        (done,) = spark.sql(f"call {procedure}({told})").collect()
        assert done[0], procedure
    spark.sql(f"reset {policy}")


def goes_on(world: HudiWorld, table: HudiSinkTable, next_record: CommitRecord) -> None:
    """Each row is there once, by Hudi's Spark reader and by hudi-rs, behind one commit more."""
    file = world.write(rows(2), table.new_token())[0]
    require_landed(commit(table, table.read(), next_record, file))
    assert world.visible_file_numbers() == [1, 2]
    found = hudi.HudiTableBuilder.from_base_uri(str(world.folder)).build().read()
    assert Counter(n for batch in found for n in batch.column("number").to_pylist()) == {1: 3, 2: 3}
    java = HudiJava(world.place, world.place.read_config_ensuring_uuid().schema)
    noted = Reservations(world.place, SinkName("sink")).reserved_instants()
    assert not java.read_ghost_instants(java.load_meta_client()) & noted
