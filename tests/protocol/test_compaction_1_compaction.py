"""COMPACTION-1: small files of a sink become fewer beside its commits; a lost race is the
maintenance's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from integration.readers import read_with_duckdb
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import EqualTo
from pyiceberg.types import LongType, StringType
from support.delete_files import delete_by_equality, delete_first_row
from support.local_catalog import local_catalog
from support.maintained import COLUMNS, SINK, Maintained, settings

from headgate.control_protocol.commit_record_codec import sink_in_summary
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, Landed, Lineage, Refused
from headgate.operations.audit.audit import audit
from headgate.operations.audit.files import check_files_of_commits, check_live_files
from headgate.operations.audit.table_checks import check_commit_chain
from headgate.runtime.maintenance.table_maintenance import Round
from headgate.tables.iceberg.history import read_history
from headgate.tables.iceberg.maintenance.compaction_commit import Replacement, Written
from headgate.tables.iceberg.maintenance.compaction_plan import (
    CandidateFile,
    CompactionLimits,
    choose_files_to_compact,
    choose_size_tier,
)
from headgate.tables.iceberg.maintenance.maintenance_commit import Settled
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.tag_lineage import summary_properties_of

VERSION_3 = {"format-version": "3"}

Make = Callable[..., Maintained]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    local = local_catalog(tmp_path)

    def made(more: str = "", **table: Any) -> Maintained:
        return Maintained(local.catalog, settings(tmp_path, more), **table)

    yield made
    local.catalog.close()


@pytest.fixture
def sink(make: Make) -> Maintained:
    return make()


def written(sink: Maintained) -> Written:
    """What a compaction has written, and not committed."""
    one = sink.round()
    table = sink.table
    found = one._new_rewriting(table).rewrite(one._choose_files(table), lambda *_: None)
    assert found.written is not None
    return found.written


def replacement(sink: Maintained, found: Written, **more: Any) -> Replacement:
    named: dict[str, Any] = {"age_max_s": 3600.0, **more}
    return Replacement(sink.catalog, "db.trips", (SinkName("trips"), "main"), found, **named)


# ------------------------------------------------------------------------------- what becomes fewer


def test_small_files_become_one_and_every_row_stays(sink: Maintained) -> None:
    sink.commits(6)
    one = sink.round()

    one.compact()

    assert (one.done.compacted_files, one.done.into_files, one.done.left) == (6, 1, [])
    assert len(sink.live()) == 1
    assert sink.snapshots()[0] == "replace"
    sink.assert_whole()
    sink.commits(2)
    sink.assert_whole()


def test_the_sink_goes_on_as_after_any_foreign_commit(sink: Maintained) -> None:
    sink.commits(4)
    stale = sink.view
    sink.round().compact()
    files = sink.write_files(5)

    first = sink.sink.commit(CommitAttempt(stale, sink._record(5), files))
    view = sink.sink.read()
    again = sink.sink.commit(CommitAttempt(view, sink._record(5), files))

    assert isinstance(first, Refused)
    assert (view.lineage, view.tag, view.record) == (
        Lineage.CONTAINS_TAG,
        stale.tag,
        stale.record,
    )
    assert isinstance(again, Landed)
    sink.assert_whole()


def test_each_partition_by_itself_and_few_files_stay(make: Make) -> None:
    sink = make(partition_by=["day"])
    sink.commits(5, day=1)
    sink.commits(3, day=2)
    sink.commits(4, day=3)

    sink.round().compact()

    by_day = sorted(path.parent.name for path in sink.live())
    assert by_day == ["day=1", "day=2", "day=2", "day=2", "day=3"]
    sink.assert_whole()


def test_a_table_of_many_commits_has_few_files_and_each_row_is_rewritten_seldom(
    sink: Maintained,
) -> None:
    rewritten = 0
    for _ in range(4):
        sink.commits(4)
        one = sink.round()
        one.compact()
        rewritten += one.done.compacted_files
        assert len(sink.live()) <= 4 + 3
    sink.assert_whole()
    assert rewritten <= 16 + 4, "as often as the logarithm of a file's size"


def test_a_tier_ends_where_a_file_is_larger_than_all_smaller_ones() -> None:
    def sizes(*given: int) -> list[int]:
        files = [CandidateFile(str(n), 0, (), 1, size, 1) for n, size in enumerate(given)]
        return sorted(file.size_bytes for file in choose_size_tier(files, 4))

    assert sizes(1, 1, 1) == []
    assert sizes(1, 1, 1, 1) == [1, 1, 1, 1]
    assert sizes(1, 1, 1, 100) == []
    assert sizes(1, 1, 1, 1, 4, 100) == [1, 1, 1, 1, 4]
    assert sizes(1, 1, 1, 1, 5) == [1, 1, 1, 1]


def test_files_of_an_older_partition_spec_stay(sink: Maintained) -> None:
    sink.commits(4)
    before = sink.live()
    with sink.table.update_spec() as update:
        update.add_identity("day")
    sink.commits(4)
    one = sink.round()

    one.compact()

    assert one.done.left == ["4 small files are of an older partition spec"]
    assert (one.done.compacted_files, one.done.into_files) == (4, 1)
    assert set(before) < set(sink.live())
    sink.assert_whole()


def test_files_of_a_sink_whose_name_begins_alike_are_anothers(sink: Maintained) -> None:
    sink.commits(4)
    wanted = CompactionLimits(target_bytes=1 << 20, files_min=2)
    chosen = [
        choose_files_to_compact(sink.table, SinkName(name), "main", wanted)
        for name in ("trip", SINK)
    ]
    assert [sum(map(len, each.portions)) for each in chosen] == [0, 4]


def test_only_what_the_sink_wrote_itself(sink: Maintained) -> None:
    sink.commits(4)
    foreign = {name: [None] * 2 for name in COLUMNS}
    for _ in range(4):
        sink.table.append(pa.table(foreign, schema=sink.table.schema().as_arrow()))

    sink.round().compact()

    assert len(sink.live()) == 1 + 4


def test_a_sorted_table_stays_sorted(make: Make) -> None:
    sink = make()
    with sink.table.update_sort_order() as update:
        from pyiceberg.transforms import IdentityTransform

        update.desc("offset", IdentityTransform())
    sink.commits(5)

    sink.round().compact()

    (path,) = sink.live()
    offsets = [row["offset"] for row in sink.rows_in(path)]
    assert offsets == sorted(offsets, reverse=True)
    (file,) = [task.file for task in sink.table.scan().plan_files()]
    assert file.sort_order_id == sink.table.sort_order().order_id


def test_rows_that_died_while_they_were_sorted_are_dead(make: Make) -> None:
    sink = make()
    with sink.table.update_sort_order() as update:
        from pyiceberg.transforms import IdentityTransform

        update.desc("offset", IdentityTransform())
    sink.commits(4)
    delete_first_row(sink.table, sink.paths()[1], named=True)
    found = written(sink)
    delete_first_row(sink.table, sink.paths()[0], named=True)
    before = sink.offsets()

    assert replacement(sink, found).try_commit() is Settled.LANDED

    assert (len(sink.live()), len(before)) == (1, 18)
    assert sink.offsets() == before


def test_a_dry_run_says_it_and_does_nothing(sink: Maintained) -> None:
    sink.commits(5)
    before = (sink.table.metadata_location, sink.stored_files())
    one = sink.round(dry_run=True)

    one.compact()

    assert (one.done.compacted_files, one.done.into_files) == (5, 1)
    assert (sink.table.metadata_location, sink.stored_files()) == before


# -------------------------------------------------------------------------------- columns and rows


def test_columns_are_found_by_their_ids(sink: Maintained) -> None:
    sink.commits(2)
    with sink.table.update_schema() as update:
        update.rename_column("day", "weekday")
        update.update_column("partition", LongType())
    with sink.table.update_schema() as update:
        update.add_column("day", StringType())
    sink.commits(2, weekday=[7] * 5, day="x")

    sink.round().compact()

    (path,) = sink.live()
    rows = sink.rows_in(path)
    assert [row["weekday"] for row in rows] == [1] * 10 + [7] * 10
    assert [row["day"] for row in rows] == [None] * 10 + ["x"] * 10
    assert pq.ParquetFile(path).schema_arrow.field("partition").type == pa.int64()
    sink.assert_whole()


def test_null_lists_of_structs_stay_null(make: Make) -> None:
    sink = make(columns={**COLUMNS, "tags": "list<struct<name: string>>"})
    told = [None, [], [{"name": "a"}], [None], [{"name": None}]]
    sink.commits(4, tags=told)

    sink.round().compact()

    (path,) = sink.live()
    assert [row["tags"] for row in sink.rows_in(path)] == told * 4


def test_files_with_other_fields_inside_of_a_column_stay(make: Make) -> None:
    sink = make(columns={**COLUMNS, "at": "struct<x: long>"})
    sink.commits(4, at=[{"x": 1}] * 5)
    with sink.table.update_schema() as update:
        update.add_column(("at", "y"), LongType())
    one = sink.round()

    one.compact()

    assert one.done.left == ["1 small file: column at had other fields"]
    assert len(sink.live()) == len(sink.stored_files()) == 4, "three are too few"
    sink.commits(4, at=[{"x": 1, "y": 2}] * 5)
    one.compact()
    assert one.done.left == ["4 small files: column at had other fields"]
    assert len(sink.live()) == 4 + 1
    assert len(sink.stored_files()) == 8 + 1


def test_rows_of_version_3_keep_their_ids_twice_over(make: Make) -> None:
    sink = make(properties=VERSION_3)

    sink.commits(5)
    before = ids_by_offset(sink)
    sink.round().compact()
    assert ids_by_offset(sink) == before
    sink.commits(4)
    before = ids_by_offset(sink)
    sink.round().compact()

    assert len(sink.live()) == 1
    assert ids_by_offset(sink) == before
    assert len({row_id for row_id, _ in before.values()}) == 45
    sink.assert_whole()


def ids_by_offset(sink: Maintained) -> dict[int, tuple[int, int]]:
    """Row id and last change of each row, as the specification says they are read."""
    from headgate.tables.iceberg.maintenance.compaction_plan import (
        _FIRST_ROW,
        read_data_files_and_deletes,
    )

    table = sink.table
    head = table.current_snapshot()
    assert head is not None
    found = {}
    for entry in read_data_files_and_deletes(table, head)[0]:
        path = Path(entry.data_file.file_path.removeprefix("file://"))
        for place, row in enumerate(sink.rows_in(path)):
            row_id = row.get("_row_id")
            changed = row.get("_last_updated_sequence_number")
            found[row["offset"]] = (
                entry.data_file[_FIRST_ROW] + place if row_id is None else row_id,
                entry.sequence_number if changed is None else changed,
            )
    return found


# ----------------------------------------------------------------------------------------- deletes


@pytest.mark.parametrize("named", [True, False])
def test_rows_that_others_marked_as_deleted_stay_dead(sink: Maintained, named: bool) -> None:
    sink.commits(5)
    delete_first_row(sink.table, sink.paths()[0], named=named)
    before = sink.offsets()
    one = sink.round()

    one.compact()

    assert (one.done.compacted_files, one.done.into_files, one.done.left) == (5, 1, [])
    assert sum(pq.ParquetFile(path).metadata.num_rows for path in sink.live()) == 24
    assert sink.offsets() == before
    assert sorted(read_with_duckdb(sink.table.metadata_location)["offset"].to_pylist()) == before


def test_rows_that_died_meanwhile_are_dead_in_the_new_file(sink: Maintained) -> None:
    sink.commits(4)
    found = written(sink)
    delete_first_row(sink.table, sink.paths()[0], named=True)
    expected = sink.offsets()

    assert replacement(sink, found).try_commit() is Settled.LANDED

    assert len(sink.live()) == 1
    assert sink.offsets() == expected
    assert len(expected) == 19
    found_there = read_with_duckdb(sink.table.metadata_location)["offset"].to_pylist()
    assert sorted(found_there) == expected


def test_a_delete_that_was_taken_back_meanwhile_ends_it(sink: Maintained) -> None:
    sink.commits(4)
    whole = sink.table.current_snapshot()
    assert whole is not None
    delete_first_row(sink.table, sink.paths()[0], named=True)
    found = written(sink)
    sink.table.manage_snapshots().rollback_to_snapshot(whole.snapshot_id).commit()
    late = replacement(sink, found)

    assert late.try_commit() is Settled.GONE, "its files lack a row that lives again"
    assert late.delete_new_files_unless_doubtful()
    sink.assert_whole()


def test_equality_deletes_without_a_partition_may_hide_rows_of_every_partition(
    sink: Maintained,
) -> None:
    with sink.table.update_spec() as update:
        update.add_identity("day")
    sink.commits(5)
    delete_by_equality(sink.table, "offset", 3)
    one = sink.round()

    one.compact()

    assert one.done.left == ["5 small files have rows that others deleted by equality"]
    seen = read_with_duckdb(sink.table.metadata_location)["offset"].to_pylist()
    assert sorted(seen) == [offset for offset in range(25) if offset != 3]


def test_equality_deletes_leave_all_that_they_may_hide_alone(sink: Maintained) -> None:
    sink.commits(5)
    found = written(sink)
    delete_by_equality(sink.table, "offset", 3)
    late, one = replacement(sink, found), sink.round()

    assert late.try_commit() is Settled.GONE, "the new files would show the row again"
    one.compact()

    assert one.done.left == ["5 small files have rows that others deleted by equality"]
    seen = read_with_duckdb(sink.table.metadata_location)["offset"].to_pylist()
    assert sorted(seen) == [offset for offset in range(25) if offset != 3]


# -------------------------------------------------------------------------------------------- races


def test_a_lost_race_settles_at_the_newer_head_without_rewriting(sink: Maintained) -> None:
    sink.commits(4)
    found = written(sink)
    late = replacement(sink, found)
    before_the_next_call(sink, sink.commit)

    assert late.try_commit() is Settled.REFUSED
    stored = sink.stored_files()
    assert late.try_commit() is Settled.LANDED
    assert sink.stored_files() == stored
    assert len(sink.live()) == 2
    sink.assert_whole()


def before_the_next_call(sink: Maintained, act: Callable[[], object]) -> None:
    """Somebody is faster, in the very moment of the call."""
    real = sink.catalog.commit_table

    def commit_table(*call: Any) -> Any:
        sink.catalog.commit_table = real  # type: ignore[method-assign]
        act()
        return real(*call)

    sink.catalog.commit_table = commit_table  # type: ignore[method-assign]


def test_sources_that_are_gone_end_it_and_its_files_go(sink: Maintained) -> None:
    sink.commits(4)
    found = written(sink)
    sink.round().compact()
    live = set(sink.live())
    late = replacement(sink, found)

    assert late.try_commit() is Settled.GONE
    assert late.delete_new_files_unless_doubtful()
    assert live <= sink.stored_files()
    assert len(sink.stored_files()) == 4 + 1
    sink.assert_whole()


def test_rows_deleted_meanwhile_do_not_come_back(sink: Maintained) -> None:
    sink.commits(4)
    found = written(sink)
    sink.table.delete(EqualTo("offset", value=3))

    assert replacement(sink, found).try_commit() is Settled.GONE
    assert 3 not in sink.offsets()


def test_an_unknown_outcome_leaves_its_files(sink: Maintained) -> None:
    sink.commits(4)
    found = written(sink)
    late = replacement(sink, found)
    real = sink.catalog.commit_table

    def lost(*call: Any) -> Any:
        real(*call)
        raise ConnectionError("the answer was lost")

    sink.catalog.commit_table = lost  # type: ignore[method-assign]
    assert late.try_commit() is Settled.UNKNOWN
    sink.catalog.commit_table = real  # type: ignore[method-assign]
    assert late.try_commit() is Settled.LANDED
    assert not late.delete_new_files_unless_doubtful()
    sink.assert_whole()


def test_without_a_tag_nothing_is_compacted(sink: Maintained) -> None:
    sink.commits(4)
    found = written(sink)
    sink.table.manage_snapshots().remove_tag("headgate-trips").commit()

    assert replacement(sink, found).try_commit() is Settled.GONE


def test_files_that_waited_too_long_are_not_committed(sink: Maintained) -> None:
    sink.commits(4)
    found = written(sink)
    late = replacement(sink, found, age_max_s=10.0, clock_s=lambda: found.since_s + 11)

    assert late.try_commit() is Settled.GONE


def test_a_table_created_anew_takes_none(sink: Maintained) -> None:
    sink.commits(4)
    found = written(sink)
    sink.catalog.drop_table("db.trips")
    again = Maintained(sink.catalog, sink.settings)
    again.commits(1)

    assert replacement(sink, found).try_commit() is Settled.GONE
    again.assert_whole()


def refuses(sink: Maintained, *, landing: bool = False) -> list[Callable[[], object]]:
    """The catalog says that it refused the next call, and perhaps has let it in; else it may."""
    real = sink.catalog.commit_table
    held: list[Callable[[], object]] = []

    def commit_table(*call: Any) -> Any:
        sink.catalog.commit_table = real  # type: ignore[method-assign]
        held.append(lambda: real(*call))
        if landing:
            held[0]()
        raise CommitFailedException("refused")

    sink.catalog.commit_table = commit_table  # type: ignore[method-assign]
    return held


def loose(sink: Maintained) -> set[str]:
    """Manifests and lists on storage that no snapshot refers to."""
    table = sink.table
    used = {snapshot.manifest_list for snapshot in table.snapshots()}
    for snapshot in table.snapshots():
        used |= {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
    folder = Path(table.metadata.location.removeprefix("file://")) / "metadata"
    return {f"file://{path}" for path in folder.glob("*.avro")} - used


def test_what_landed_and_was_refused_the_second_time_has_landed(sink: Maintained) -> None:
    """Its number is taken by itself: what it wrote is not taken back."""
    sink.commits(4)
    late = replacement(sink, written(sink))
    refuses(sink, landing=True)

    assert late.try_commit() is Settled.LANDED
    assert not late.delete_new_files_unless_doubtful()
    sink.assert_whole()


def test_a_refusal_that_the_table_does_not_bear_out_is_unknown(sink: Maintained) -> None:
    """It may still land, and finds all that it needs."""
    sink.commits(4)
    late = replacement(sink, written(sink))
    held = refuses(sink)

    assert late.try_commit() is Settled.UNKNOWN
    assert not late.delete_new_files_unless_doubtful()
    held[0]()
    assert len(sink.live()) == 1
    sink.assert_whole()


def test_a_proven_refusal_leaves_nothing_behind(sink: Maintained) -> None:
    sink.commits(4)
    late = replacement(sink, written(sink))
    before_the_next_call(sink, sink.commit)

    assert late.try_commit() is Settled.REFUSED
    assert loose(sink) == set()
    stored = sink.stored_files()
    assert late.delete_new_files_unless_doubtful()
    assert len(stored - sink.stored_files()) == 1
    sink.assert_whole()


def test_a_later_refusal_does_not_settle_an_earlier_doubt(sink: Maintained) -> None:
    sink.commits(4)
    late = replacement(sink, written(sink))
    refuses(sink)
    assert late.try_commit() is Settled.UNKNOWN
    before_the_next_call(sink, sink.commit)

    assert late.try_commit() is Settled.REFUSED
    assert not late.delete_new_files_unless_doubtful()


def test_what_is_too_old_leaves_no_manifest(sink: Maintained) -> None:
    sink.commits(4)
    found = written(sink)
    late = replacement(sink, found, age_max_s=10.0, clock_s=lambda: found.since_s + 11)

    assert late.try_commit() is Settled.GONE
    assert loose(sink) == set()


# ------------------------------------------------------------------------------------- the audit


def test_the_audits_sentences_stay_true(sink: Maintained) -> None:
    for _ in range(3):
        sink.commits(5)
        sink.round().compact()
    reader = IcebergReader(sink.table, SinkName("trips"), "main")
    history, files = reader.history(), reader.live_files()

    assert check_commit_chain(history) == []
    assert check_files_of_commits(reader, history, lambda *_: None) == []
    assert check_live_files(reader, files, lambda *_: None)[0] == []
    assert sum(file.records for file in files) == sink.next_offset
    assert [found.sink for found in history.foreign] == [None] * 3
    assert sum(found.removed_row_count for found in history.foreign) == 0


def test_the_audit_compares_rows_and_finds_a_compaction_that_lost_one(
    sink: Maintained,
) -> None:
    sink.commits(5)
    sink.round().compact()

    report = audit(sink.settings, with_source=False)
    assert (report.findings, report.rows, report.distinct) == ((), 25, 25)
    assert any("no record is in the table twice" in text for text in report.proven)

    (path,) = sink.live()
    pq.write_table(pq.read_table(path).slice(1), path)
    assert {finding.what for finding in audit(sink.settings, with_source=False).findings} >= {
        "file-size"
    }


def test_a_rollback_takes_the_sinks_own_compaction_for_its_own(sink: Maintained) -> None:
    sink.commits(5)
    sink.round().compact()

    head = sink.table.current_snapshot()

    assert head is not None
    assert sink_in_summary(summary_properties_of(head)) == SinkName("trips")


def test_another_sinks_audit_knows_whose_rows_were_compacted(sink: Maintained) -> None:
    sink.commits(5)
    sink.round().compact()

    history = read_history(sink.table, SinkName("other"), "main")

    assert {found.sink for found in history.foreign} == {SinkName("trips")}


def test_expired_snapshots_leave_the_compacted_rows(make: Make) -> None:
    sink = make("expire_after_ms = 1\n")
    sink.nobody_asks_for_retention()
    sink.commits(6)
    one = sink.round()
    one.compact()
    sink.commit()

    one.expire_snapshots()

    assert one.done.expired_snapshots > 0
    assert sink.sink.read().lineage is Lineage.CONTAINS_TAG
    assert len(sink.stored_files()) == len(sink.live()) == 2
    sink.assert_whole()


def test_nothing_small_is_chosen_twice(sink: Maintained) -> None:
    sink.commits(8)
    one: Round = sink.round()
    one.compact()
    head = sink.table.metadata.current_snapshot_id

    sink.round().compact()

    assert sink.table.metadata.current_snapshot_id == head


# ------------------------------------------------------------------------- mutants, planted here


def test_planted_without_head_and_number_a_commit_is_lost(
    sink: Maintained, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.commits(4)
    late = replacement(sink, written(sink))
    right = Replacement._commit_snapshot

    def on_any_head(self: Replacement, table: Any, snapshot: Any, *rest: Any) -> Settled:
        sink.commit()  # in between
        monkeypatch.setattr(Replacement, "_requirements", lambda *_: ())
        number = sink.table.metadata.next_sequence_number()
        renumbered = snapshot.model_copy(update={"sequence_number": number})
        return right(self, table, renumbered, *rest)

    monkeypatch.setattr(Replacement, "_commit_snapshot", on_any_head)

    assert late.try_commit() is Settled.LANDED
    assert len(sink.offsets()) == 20, "five rows are gone: what the requirements are for"


def test_planted_taking_back_after_an_unknown_outcome_loses_rows(sink: Maintained) -> None:
    sink.commits(4)
    late = replacement(sink, written(sink))
    real = sink.catalog.commit_table

    def lost(*call: Any) -> Any:
        real(*call)
        raise ConnectionError("the answer was lost")

    sink.catalog.commit_table = lost  # type: ignore[method-assign]
    assert late.try_commit() is Settled.UNKNOWN
    late._doubtful = False

    assert late.delete_new_files_unless_doubtful()
    with pytest.raises(FileNotFoundError):
        sink.offsets()
