"""Hudi tables where Hudi differs from others: instants, markers, evictions, ghosts and forks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_tables.world import ARCHIVED_SOON, HudiWorld, rows

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.commit_record_codec import encode_record
from headgate.control_protocol.commit_tokens import is_path_of_token
from headgate.control_protocol.errors import HudiForked, TableUnfit
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import Landed, Lineage, Refused, Unknown
from headgate.control_protocol.table_history import History
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.operations.audit.files import check_row_count
from headgate.tables.hudi.append_table import HudiSinkTable
from headgate.tables.hudi.base_files import commit_token_of, instant_of_file
from headgate.tables.hudi.reserved_instants import Reservations
from headgate.tables.hudi.table_format import HudiFormat
from headgate.tables.hudi.table_properties import AUX
from headgate.tables.hudi.write_client import HudiJava

hudi = pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

MakeWorld = Callable[..., HudiWorld]
KEYED = Struct((Column("number", "long", required=False), Column("row", "long")))
RECORD_INDEXES = {
    "GLOBAL_RECORD_LEVEL_INDEX": {"hoodie.metadata.global.record.level.index.enable": "true"},
    "RECORD_LEVEL_INDEX": {"hoodie.metadata.record.level.index.enable": "true"},
}
"""Indexes that others upsert by, and what builds them."""
PARTITIONED = Struct((*KEYED.fields, Column("city", "string", required=False)))


@pytest.fixture
def make(tmp_path: Path, spark: Any, lock: dict[str, str]) -> MakeWorld:
    return lambda **wanted: HudiWorld(tmp_path, spark, lock, **wanted)


@pytest.fixture
def world(make: MakeWorld) -> HudiWorld:
    return make()


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("key", ["", "row"])
def test_what_is_committed_is_read_by_spark_and_by_hudi_rs(
    make: MakeWorld, kind: str, key: str
) -> None:
    """Partitioned; with a record key, and with keys of Hudi's own making."""
    named = {"hoodie.datasource.write.recordkey.field": key} if key else {}
    properties = {"hoodie.table.type": kind, **named}
    world = make(properties=properties, columns=PARTITIONED, partition_by=("city",))
    cities = ["Łódź", "a/b=c", None, "", "x y"]
    written = pa.table({"number": range(5), "row": range(5), "city": cities})
    table = world.open()
    stamp, view = table.new_token(), claim_table(table)
    files = world.write(written, stamp)
    assert all(is_path_of_token(stamp, file.path) for file in files)
    require_landed(commit(table, view, record(1, 1, 5), *files))

    found = world.read().select("number", "row", "city").collect()
    read = [city or None for city in cities]  # from the folder, which is one for both
    assert sorted(map(tuple, found)) == list(zip(range(5), range(5), read, strict=True))
    by_rust = pa.Table.from_batches(
        hudi.HudiTableBuilder.from_base_uri(str(world.folder)).build().read()
    )
    assert sorted(by_rust.column("number").to_pylist()) == list(range(5))
    keys = by_rust.column("_hoodie_record_key").to_pylist()
    assert len(set(keys)) == 5
    if key:
        assert sorted(keys) == list("01234")
    places = by_rust.column("_hoodie_partition_path").to_pylist()
    assert {"city=a%2Fb%3Dc", "city=__HIVE_DEFAULT_PARTITION__"} <= set(places)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("index", ["SIMPLE", *RECORD_INDEXES])
def test_an_upsert_of_others_finds_the_rows(make: MakeWorld, kind: str, index: str) -> None:
    """By Hudi's Spark writer, which looks for record keys in the files, or in an index of them.

    That index has to be named in the sink's settings, too.
    """
    key = {"hoodie.datasource.write.recordkey.field": "row"}
    kept = RECORD_INDEXES.get(index, {})
    world = make(properties={**key, **kept, "hoodie.table.type": kind}, columns=KEYED)
    options = {
        **world.place.settings,
        **key,
        "hoodie.index.type": index,
        "hoodie.table.name": "trips",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.upsert.shuffle.parallelism": "1",
    }

    def upsert(*told: tuple[int, int]) -> None:
        frame = world.spark.createDataFrame(list(told), "number long, row long")
        frame.write.format("hudi").options(**options).mode("append").save(str(world.folder))

    table = world.open()
    require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    upsert((9, 1), (9, 3))
    more = pa.table({"number": [2, 2], "row": [4, 5]})
    require_landed(
        commit(table, table.read(), record(1, 2, 5), *world.write(more, table.new_token()))
    )
    built = (world.folder / ".hoodie/hoodie.properties").read_text()
    assert ("record_index" in built) == bool(kept)
    upsert((8, 4), (8, 3))
    expected = [(0, 1), (1, 9), (2, 1), (3, 8), (4, 8), (5, 2)]
    assert rows_of(world.read()) == expected
    require_landed(commit(table, table.read(), record(1, 3, 5)))
    by_rust = hudi.HudiTableBuilder.from_base_uri(str(world.folder)).build().read()
    found = pa.Table.from_batches(by_rust).select(["row", "number"]).to_pylist()
    assert sorted((row["row"], row["number"]) for row in found) == expected


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_readers_that_skip_files_by_their_statistics_find_the_rows(
    make: MakeWorld, kind: str
) -> None:
    """Hudi takes the statistics of the sink's files from their footers."""
    columns = {"hoodie.metadata.index.column.stats.enable": "true"}
    world = make(properties={"hoodie.table.type": kind, **columns})
    table = world.open()
    view = claim_table(table)
    for number in (1, 2, 3):
        view = require_landed(
            commit(table, view, record(1, number, 3 * number), world.write_file(number))
        )
    world.append_foreign(7)
    assert "column_stats" in (world.folder / ".hoodie/hoodie.properties").read_text()
    skipping = {**columns, "hoodie.metadata.enable": "true", "hoodie.enable.data.skipping": "true"}
    for number, row in ((1, 0), (2, 2), (3, 1), (7, 2)):
        found = world.read(**skipping).where(f"number = {number} and row = {row}")
        assert rows_of(found) == [(row, number)]
        assert files_read(found) == 1
    assert rows_of(world.read(**skipping).where("number > 3")) == [(0, 7), (1, 7), (2, 7)]
    assert rows_of(world.read(**skipping).where("number > 7")) == []


def test_readers_by_time_find_each_commit_once(world: HudiWorld) -> None:
    """Hudi's incremental query."""
    table = world.open()
    view = claim_table(table)
    first = require_landed(commit(table, view, record(1, 1, 3), world.write_file(1)))
    require_landed(commit(table, first, record(1, 2, 6), world.write_file(2)))
    since = {"hoodie.datasource.query.type": "incremental"}
    since["hoodie.datasource.read.begin.instanttime"] = str(first.tag)
    assert {row[0] for row in world.read(**since).select("number").collect()} == {2}


def test_the_next_transaction_is_open_while_one_is_committed(world: HudiWorld) -> None:
    """COMMIT-1; and neither a claim nor an empty commit takes open files for abandoned ones."""
    table = world.open()
    first = table.new_token()
    one = world.write(rows(1), first)
    view = claim_table(table)
    second = table.new_token()
    two = world.write(rows(2), second)
    assert second > first
    view = require_landed(commit(table, view, record(1, 1, 3), *one))
    third = table.new_token()
    three = world.write(rows(3), third)
    view = require_landed(commit(table, view, record(1, 2, 3)))
    view = require_landed(commit(table, view, record(1, 3, 6), *two))
    require_landed(commit(table, view, record(1, 4, 9), *three))
    assert world.visible_file_numbers() == [1, 2, 3]


def test_files_of_a_refused_status_go_with_the_commit(world: HudiWorld) -> None:
    table = world.open()
    view = claim_table(table)
    good, refused = world.write_file(1), world.write_file(2)
    require_landed(commit(table, view, record(1, 1, 3), good))
    assert world.visible_file_numbers() == [1]
    assert not Path(refused.path.removeprefix("file://")).exists()
    assert world.data_files() == [good.path.rpartition("/")[2]]


def test_what_is_written_behind_its_commit_goes_with_the_next(world: HudiWorld) -> None:
    table = world.open()
    view = claim_table(table)
    good = world.write_file(1)
    view = require_landed(commit(table, view, record(1, 1, 3), good))
    late = world.write(rows(7), commit_token_of(world.place.location, instant_of_file(good.path)))[
        0
    ]
    require_landed(commit(table, view, record(1, 2, 6), world.write_file(2)))
    assert late.path.rpartition("/")[2] not in world.data_files()
    assert world.visible_file_numbers() == [1, 2]


def test_a_claim_rolls_back_what_the_sink_left_pending(world: HudiWorld) -> None:
    """H3: a coordinator that sleeps inside of Hudi's lock finds its instant gone, and its files."""
    zombie, heir = world.open(), world.open()
    stale, file = claim_table(zombie), world.write_file(1)
    world.lose_next_answer(landed=False)
    assert isinstance(commit(zombie, stale, record(1, 1, 3), file), Unknown)
    assert instant_of_file(file.path) in pending(world)

    claim_table(heir, epoch=2)
    assert not pending(world)
    assert world.data_files() == []
    assert isinstance(commit(zombie, stale, record(1, 1, 3), file), Refused)
    assert world.visible_file_numbers() == []


def test_who_moves_the_table_first_wins_inside_of_the_lock(world: HudiWorld) -> None:
    """The look before the call saw nothing of it; the same files land on the newer head."""
    table = racing(world, lambda: world.append_foreign(7))
    view, file = claim_table(world.open()), world.write_file(1)
    outcome = commit(table, view, record(1, 1, 3), file)
    assert isinstance(outcome, Refused), outcome
    assert not outcome.for_good
    require_landed(commit(table, table.read(), record(1, 1, 3), file))
    assert world.visible_file_numbers() == [1, 7]


def test_an_heir_that_claims_meanwhile_wins_inside_of_the_lock(world: HudiWorld) -> None:
    table = racing(world, lambda: claim_table(world.open(), epoch=2))
    view, file = claim_table(world.open()), world.write_file(1)
    assert not isinstance(commit(table, view, record(1, 1, 3), file), Landed)
    assert table.read().record == record(2, 0)
    assert world.visible_file_numbers() == []


def test_files_that_a_refused_claim_removed_are_refused_for_good(world: HudiWorld) -> None:
    """H3: a claim evicts before it lands, and may be refused then; the next transaction's files
    are gone."""
    table = world.open()
    view, file = claim_table(table), world.write_file(2)
    heir = racing(world, lambda: require_landed(commit(table, view, record(1, 1))))
    assert isinstance(commit(heir, heir.read(), record(2, 0)), Refused)
    assert world.data_files() == []
    view = table.read()
    outcome = commit(table, view, record(1, 2, 3), file)
    assert isinstance(outcome, Refused), outcome
    assert outcome.for_good
    assert world.visible_file_numbers() == []
    again = world.write(rows(2), table.new_token())[0]
    require_landed(commit(table, view, record(1, 2, 3), again))
    assert world.visible_file_numbers() == [2]


def test_an_eviction_leaves_a_commit_alone_that_was_completed_meanwhile(
    world: HudiWorld,
) -> None:
    """The timeline is read anew for each instant."""
    table = world.open()
    view, file = claim_table(table), world.write_file(1)
    require_landed(commit(table, view, record(1, 1, 3), file))
    java = HudiJava(world.place, world.place.read_config_ensuring_uuid().schema)
    java.remove_unfinished_instant(
        instant_of_file(file.path), lambda _: pytest.fail("it is complete")
    )
    assert world.visible_file_numbers() == [1]
    assert table.read().record == record(1, 1, 3)


def test_nobody_completes_what_a_claim_is_rolling_back(
    world: HudiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the claim's look and Hudi's own rollback, which looks before it locks."""
    table = world.open()
    view, file = claim_table(table), world.write_file(1)
    world.lose_next_answer(landed=False)
    assert isinstance(commit(table, view, record(1, 1, 3), file), Unknown)
    outcomes = []
    roll_back = HudiJava._roll_back

    def raced(java: HudiJava, instant: str) -> None:
        outcomes.append(commit(table, view, record(1, 1, 3), file))
        roll_back(java, instant)

    monkeypatch.setattr(HudiJava, "_roll_back", raced)
    heir = world.open()
    claim_table(heir, epoch=2)
    (outcome,) = outcomes
    assert isinstance(outcome, Refused), outcome
    assert outcome.for_good
    require_landed(
        commit(heir, heir.read(), record(2, 1, 3), world.write(rows(1), heir.new_token())[0])
    )
    assert world.visible_file_numbers() == [1]


def test_what_a_dying_claim_has_condemned_stays_so(
    world: HudiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan of a rollback may lie there, for anybody who cleans up to go on with."""
    table = world.open()
    view, file = claim_table(table), world.write_file(1)
    world.lose_next_answer(landed=False)
    assert isinstance(commit(table, view, record(1, 1, 3), file), Unknown)
    with monkeypatch.context() as dying:
        dying.setattr(HudiJava, "_roll_back", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        heir = world.open()
        assert isinstance(commit(heir, heir.read(), record(2, 0)), Unknown)
    outcome = commit(table, table.read(), record(1, 1, 3), file)
    assert isinstance(outcome, Refused), outcome
    assert outcome.for_good
    claim_table(world.open(), epoch=3)
    assert world.data_files() == []
    assert not pending(world)


def test_a_rollback_of_others_that_is_under_way_refuses_for_good(world: HudiWorld) -> None:
    """It is written into the timeline within Hudi's lock, and its files go outside of it."""
    table = world.open()
    view, file = claim_table(table), world.write_file(1)
    instant = instant_of_file(file.path)

    def plan() -> None:
        java = HudiJava(world.place, world.place.read_config_ensuring_uuid().schema)
        spark = java._open_or_reuse_write_client().getTableServiceClient()
        made = spark.createTable(
            java._open_or_reuse_write_client().getConfig(), java._storage_conf()
        )
        (begun,) = (
            i
            for i in made.getActiveTimeline().filterInflights().getInstants()
            if str(i.requestedTime()) == instant
        )
        made.scheduleRollback(
            java._open_or_reuse_write_client().getEngineContext(),
            java.reserve_instant(),
            begun,
            False,
            True,
            False,
        )

    outcome = commit(racing(world, plan), view, record(1, 1, 3), file)
    assert isinstance(outcome, Refused), outcome
    assert outcome.for_good
    assert world.visible_file_numbers() == []


def test_a_commit_that_rose_again_stops_the_sink(world: HudiWorld) -> None:
    """H9: it was condemned, and completed by somebody whom no lock held back."""
    table = world.open()
    view, file = claim_table(table), world.write_file(1)
    Reservations(world.place, SinkName("sink")).forbid_completion(instant_of_file(file.path))
    assert isinstance(commit(table, view, record(1, 1, 3), file), Refused)
    java = HudiJava(world.place, world.place.read_config_ensuring_uuid().schema)
    java.begin_instant(java.load_meta_client(), instant_of_file(file.path))
    java.commit(instant_of_file(file.path), (), encode_record(record(1, 1, 3)), lambda: None)
    with pytest.raises(HudiForked, match="was rolled back, and is complete"):
        table.read()


def test_columns_that_somebody_adds_stop_the_sink(world: HudiWorld) -> None:
    table = world.open()
    require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    options = {**world.place.settings, "hoodie.table.name": "trips"}
    options["hoodie.datasource.write.operation"] = "bulk_insert"
    frame = world.spark.createDataFrame([(9, 1, 5)], "number long, row long, more long")
    frame.write.format("hudi").options(**options).mode("append").save(str(world.folder))
    with pytest.raises(TableUnfit, match="column more is not what it was"):
        table.read()


def test_instants_are_of_utc(world: HudiWorld) -> None:
    """Local ones would come twice when clocks go back."""
    zone = world.spark._jvm.java.util.TimeZone
    before = zone.getDefault()
    zone.setDefault(zone.getTimeZone("Pacific/Kiritimati"))
    try:
        instant = instant_of_file(world.open().new_token())
    finally:
        zone.setDefault(before)
    made = datetime.strptime(instant[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - made) < timedelta(hours=1)


def test_files_that_others_rolled_back_are_refused_for_good(world: HudiWorld) -> None:
    """H7: an eager writer without a lock rolls back whatever is pending."""
    view, file = claim_table(world.open()), world.write_file(1)
    table = racing(world, lambda: world.append_foreign(7, lock=False))
    assert not isinstance(commit(table, view, record(1, 1, 3), file), Landed)
    view = table.read()
    outcome = commit(table, view, record(1, 1, 3), file)
    assert isinstance(outcome, Refused), outcome
    assert outcome.for_good
    require_landed(commit(table, view, record(1, 1, 3), world.write(rows(1), table.new_token())[0]))
    assert world.visible_file_numbers() == [1, 7]


def test_eager_writers_leave_reserved_instants_alone(world: HudiWorld) -> None:
    """H4: the timeline does not know of them before their commit."""
    table = world.open()
    claim_table(table)
    file = world.write_file(1)
    world.append_foreign(7, lock=False)
    require_landed(commit(table, table.read(), record(1, 1, 3), file))
    assert world.visible_file_numbers() == [1, 7]


def test_an_instant_that_the_archiver_has_passed_is_refused_for_good(
    make: MakeWorld,
) -> None:
    """Committed, it would be taken for one of long ago, and rows of others would go."""
    world = make(properties=ARCHIVED_SOON)
    old = world.write(rows(1), HudiSinkTable(world.place, SinkName("sink")).new_token())[0]
    table = world.open()
    view = claim_table(table)
    java = HudiJava(world.place, world.place.read_config_ensuring_uuid().schema)
    for number in range(1, 20):
        view = require_landed(commit(table, view, record(1, number, number)))
        if java.is_older_than_active_timeline(java.load_meta_client(), instant_of_file(old.path)):
            break
    outcome = commit(table, view, record(1, 30, 30), old)
    assert isinstance(outcome, Refused), outcome
    assert outcome.for_good
    assert world.data_files() == []
    assert table.read().lineage is Lineage.CONTAINS_TAG


def test_a_ghost_in_the_metadata_table_is_laid_by_the_next_claim(world: HudiWorld) -> None:
    """H8: a writer that outlived its lock wrote the metadata table, and was refused then."""
    table = world.open()
    view, file = claim_table(table), world.write_file(1)
    require_landed(commit(table, view, record(1, 1, 3), file))
    for path in world.timeline(f"{instant_of_file(file.path)}*"):
        path.unlink()
    java = HudiJava(world.place, world.place.read_config_ensuring_uuid().schema)
    assert java.read_ghost_instants(java.load_meta_client()) == {instant_of_file(file.path)}

    shutil.rmtree(world.folder / AUX / "sink" / "landed")
    claim_table(world.open(), epoch=2)
    assert not java.read_ghost_instants(java.load_meta_client())
    assert world.visible_file_numbers() == []


def test_a_ghost_that_others_have_compacted_goes_with_the_metadata_table(
    make: MakeWorld,
) -> None:
    """H8: Hudi rolls it back no more, and its pending rollback would hold up everybody."""
    world = make(properties=ARCHIVED_SOON)
    table = world.open()
    view, file = claim_table(table), world.write_file(1)
    require_landed(commit(table, view, record(1, 1, 3), file))
    for path in world.timeline(f"{instant_of_file(file.path)}*"):
        path.unlink()
    shutil.rmtree(world.folder / AUX / "sink" / "landed")
    world.append_foreign(7)
    world.append_foreign(8)
    java = HudiJava(world.place, world.place.read_config_ensuring_uuid().schema)
    assert java.read_ghost_instants(java.load_meta_client()) == {instant_of_file(file.path)}

    claim_table(world.open(), epoch=2)
    assert not java.read_ghost_instants(java.load_meta_client())
    for number in range(9, 30):
        world.append_foreign(number)
        if java.is_older_than_active_timeline(java.load_meta_client(), instant_of_file(file.path)):
            break
    assert java.is_older_than_active_timeline(java.load_meta_client(), instant_of_file(file.path))
    assert world.visible_file_numbers() == list(range(7, number + 1))


def test_a_fork_is_told_and_not_gone_on_with(world: HudiWorld) -> None:
    """H9: a zombie's commit landed between Hudi's last look and its completed file."""
    table = world.open()
    view = claim_table(table)
    stamp = HudiSinkTable(world.place, SinkName("sink")).new_token()
    require_landed(commit(table, view, record(1, 1, 3), world.write_file(1)))
    java, instant = (
        HudiJava(world.place, world.place.read_config_ensuring_uuid().schema),
        instant_of_file(stamp),
    )
    java.begin_instant(java.load_meta_client(), instant)
    told = {**encode_record(record(1, 1, 3)), "headgate-hudi.sink.follows": str(view.tag)}
    java.commit(instant, (), told, lambda: None)
    with pytest.raises(HudiForked, match=instant):
        table.read()


def test_a_restored_table_is_seen(world: HudiWorld) -> None:
    """H10: the timeline has forgotten the sink's newest commit, and the sink has not."""
    table = world.open()
    first = require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    require_landed(commit(table, first, record(1, 2, 6), world.write_file(2)))
    world.roll_back(first.head)
    view = world.open().read()
    assert view.lineage is Lineage.ROLLED_BACK
    assert view.record == record(1, 2, 6)
    assert view.branch_record == record(1, 1, 3)


def test_a_restore_is_seen_though_who_committed_died_before_it_could_keep_that(
    world: HudiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H10: whoever has read the commit since may have built upon it, as on a delivery."""
    table = world.open()
    first = require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    with monkeypatch.context() as dying:
        dying.setattr(Reservations, "store_landed_commit", lambda *_: None)
        require_landed(commit(table, first, record(1, 2, 6), world.write_file(2)))
    assert HudiFormat().reader(world.wanted, SinkName("sink")).history().tag
    kept = Reservations(world.place, SinkName("sink"))
    assert kept.read_stored_landed_commit().tag == first.tag, "who only looks writes nothing"
    read = world.open().read()
    assert kept.read_stored_landed_commit().tag == read.tag
    world.roll_back(first.head)
    assert world.open().read().lineage is Lineage.ROLLED_BACK


def test_audit_and_status_find_commits_files_and_rows(world: HudiWorld) -> None:
    table = world.open()
    view, file = claim_table(table), world.write_file(1)
    after = require_landed(commit(table, view, record(1, 1, 3), file))
    world.append_foreign(7)
    reader = HudiFormat().reader(world.wanted, SinkName("sink"))

    history = reader.history()
    assert [each.record for each in history.commits] == [record(1, 0), record(1, 1, 3)]
    assert [each.added_records for each in history.foreign] == [3]
    assert history.complete
    assert history.tag == after.tag
    (brought,) = reader.added_files(history.commits[1]) or []
    assert brought == (file.path, 3)
    assert sum(each.records for each in reader.live_files()) == 6
    assert {each.added_by for each in reader.live_files()} == {after.tag, history.head}
    count, scanned = reader.scan(["number"])
    numbers = [
        n for each in scanned for batch in each.batches() for n in batch.column(0).to_pylist()
    ]
    assert (count, sorted(numbers)) == (2, [1, 1, 1, 7, 7, 7])
    assert not reader.has_table_changed()


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_rows_of_partitions_that_others_drop_or_overwrite_count_as_deleted(
    make: MakeWorld, kind: str
) -> None:
    """Hudi completes these as it does a clustering, which moves rows."""
    properties = {"hoodie.table.type": kind}
    world = make(properties=properties, columns=PARTITIONED, partition_by=("city",))
    table = world.open()
    stamp, view = table.new_token(), claim_table(table)
    written = pa.table({"number": range(10), "row": range(10), "city": list("aaaabbbccd")})
    require_landed(commit(table, view, record(1, 1, 10), *world.write(written, stamp)))

    def change(operation: str, *rows: tuple[int, int, str], dropped: str = "") -> None:
        options = {
            "hoodie.table.name": "trips",
            "hoodie.datasource.write.operation": operation,
            "hoodie.datasource.write.partitionpath.field": "city",
            "hoodie.datasource.write.hive_style_partitioning": "true",
            "hoodie.datasource.write.partitionpath.urlencode": "true",
            "hoodie.datasource.write.partitions.to.delete": dropped,
            **world.place.settings,
        }
        frame = world.spark.createDataFrame(list(rows), "number long, row long, city string")
        frame.write.format("hudi").options(**options).mode("append").save(world.place.base_path)

    def history_of_live_rows(numbers: list[int]) -> History:
        reader = world.reader()
        live = reader.live_files()
        assert sorted(row.number for row in world.read().collect()) == numbers
        assert sum(file.records for file in live) == len(numbers)
        assert check_row_count(reader.history(), live).findings == []
        return reader.history()

    change("delete_partition", dropped="city=a")
    assert history_of_live_rows([4, 5, 6, 7, 8, 9]).foreign_removed_row_count == 4
    change("insert_overwrite", (10, 10, "b"))
    assert history_of_live_rows([7, 8, 9, 10]).foreign_removed_row_count == 4 + 3
    world.compact()
    assert history_of_live_rows([7, 8, 9, 10]).foreign_removed_row_count == 4 + 3
    change("insert_overwrite_table", (11, 11, "e"))
    removed = [each.removed_row_count for each in history_of_live_rows([11]).foreign]
    assert removed[-4:] == [4, 3, 0, 4]


def rows_of(found: Any) -> list[tuple[int, int]]:
    return sorted(map(tuple, found.select("row", "number").collect()))


def files_read(found: Any) -> int:
    """How many files Spark opens for it."""
    found.collect()
    scan = found._jdf.queryExecution().executedPlan().collectLeaves().head()
    return int(scan.metrics().get("numFiles").get().value())


def racing(world: HudiWorld, first: Callable[[], object]) -> HudiSinkTable:
    """A table between whose look and whose commit somebody does something, once."""
    waiting = [first]

    def answer(call: Callable[[], None]) -> None:
        while waiting:
            waiting.pop()()
        call()

    return HudiSinkTable(world.place, SinkName("sink"), answer)


def pending(world: HudiWorld) -> set[str]:
    """Instants that were begun and not completed."""
    begun = {path.stem for path in world.timeline("*.inflight") if path.stem.isdecimal()}
    return begun - {path.name[:17] for path in world.timeline("*_*commit")}
