"""Many commits: manifests are merged, rows are not; storage keeps what the table asks for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from integration.iceberg.sink_commits import SinkOnTable, record
from integration.readers import IcebergSpark, read_with_duckdb, read_with_pyiceberg
from pyiceberg.catalog import Catalog
from pyiceberg.table.update import SetSnapshotRefUpdate
from support.local_catalog import LocalCatalog

from headgate.control_protocol.errors import StopSink, TableChanged
from headgate.control_protocol.identifiers import tag_name
from headgate.control_protocol.ports import CommitAttempt, Refused
from headgate.tables.iceberg.data_file import FileDetail

pytestmark = pytest.mark.integration

COLUMNS = {"id": "long", "zone": "string"}


@pytest.fixture
def catalog(sqlite_catalog: LocalCatalog) -> Catalog:
    return sqlite_catalog.catalog


def rows(*ids: int) -> pa.Table:
    zones = ["north" if number % 2 else "south" for number in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "zone": zones})


def manifests(sink: SinkOnTable) -> list[tuple[int, int, int]]:
    """Per manifest of the newest snapshot: spec, added files, existing files."""
    table = sink.load()
    snapshot = table.current_snapshot()
    assert snapshot
    return [
        (m.partition_spec_id, m.added_files_count or 0, m.existing_files_count or 0)
        for m in snapshot.manifests(table.io)
    ]


def live_files(sink: SinkOnTable) -> list[str]:
    return [task.file.file_path for task in sink.load().scan().plan_files()]


def assert_rows(sink: SinkOnTable, ids: list[int]) -> None:
    location = sink.load().metadata_location
    for read in (read_with_pyiceberg, read_with_duckdb):
        assert sorted(read(location)["id"].to_pylist()) == ids
    assert max(Counter(live_files(sink)).values()) == 1


def test_manifests_are_merged_at_the_tables_count(catalog: Catalog) -> None:
    properties = {"commit.manifest.min-count-to-merge": "5"}
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=properties)
    counts = []
    for number in range(12):
        sink.commit(rows(number))
        counts.append(len(manifests(sink)))
    assert counts == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]
    assert_rows(sink, list(range(12)))


def test_files_keep_their_sequence_numbers_through_a_merge(catalog: Catalog) -> None:
    properties = {"commit.manifest.min-count-to-merge": "4"}
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=properties)
    seen = [sink.commit(rows(number)).head for number in range(4)]
    table = sink.load()
    snapshot = table.current_snapshot()
    assert snapshot
    (manifest,) = snapshot.manifests(table.io)
    entries = manifest.fetch_manifest_entry(table.io)
    by_snapshot = {entry.snapshot_id: entry for entry in entries}
    assert list(by_snapshot) == seen[::-1]
    for snapshot_id, entry in by_snapshot.items():
        owner = table.metadata.snapshot_by_id(snapshot_id)
        assert owner
        assert entry.sequence_number == entry.file_sequence_number == owner.sequence_number
    assert manifest.min_sequence_number == table.metadata.snapshots[1].sequence_number


def test_a_merge_stops_at_the_tables_size(catalog: Catalog) -> None:
    properties = {
        "commit.manifest.min-count-to-merge": "2",
        "commit.manifest.target-size-bytes": "8000",
    }
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=properties)
    for number in range(30):
        sink.commit(rows(number))
    table = sink.load()
    snapshot = table.current_snapshot()
    assert snapshot
    lengths = [manifest.manifest_length for manifest in snapshot.manifests(table.io)]
    assert len(lengths) > 1
    assert max(lengths) < 16_000
    assert_rows(sink, list(range(30)))


def test_merging_can_be_off(catalog: Catalog) -> None:
    properties = {
        "commit.manifest-merge.enabled": "false",
        "commit.manifest.min-count-to-merge": "2",
    }
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=properties)
    for number in range(4):
        sink.commit(rows(number))
    assert manifests(sink) == [(0, 1, 0)] * 4


def test_specs_are_merged_apart(catalog: Catalog) -> None:
    properties = {"commit.manifest.min-count-to-merge": "3"}
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=properties)
    for number in range(2):
        sink.commit(rows(number))
    with sink.load().update_spec() as update:
        update.add_identity("zone")
    sink.view = sink.table.read()
    for number in range(2, 5):
        sink.commit(rows(number))
    assert sorted(manifests(sink)) == [(0, 1, 0), (0, 1, 0), (1, 1, 2)]
    assert_rows(sink, list(range(5)))


def test_manifests_of_a_spec_whose_column_is_gone_are_left_alone(catalog: Catalog) -> None:
    properties = {"commit.manifest.min-count-to-merge": "2"}
    sink = SinkOnTable.claimed(catalog, COLUMNS, ["zone"], properties)
    sink.commit(rows(1))
    late = sink.attempt(rows(9))
    with sink.load().update_spec() as update:
        update.remove_field("zone")
    with sink.load().update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("zone")
    sink.view = sink.table.read()
    for number in (2, 3):
        sink.commit(rows(number).select(["id"]))
    assert sorted(read_with_pyiceberg(sink.load().metadata_location)["id"].to_pylist()) == [
        *(1, 2, 3)
    ]
    with pytest.raises(TableChanged, match="partition spec 0"):
        sink.table.commit(CommitAttempt(sink.view, late.record, late.files))


def test_manifests_without_a_live_file_are_left_behind(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS)
    sink.commit(rows(1))
    sink.load().delete("id = 1")
    assert manifests(sink) == [(0, 0, 0)]
    sink.view = sink.table.read()
    sink.commit(rows(2))
    assert manifests(sink) == [(0, 1, 0)]
    assert_rows(sink, [2])


@pytest.mark.wide
@pytest.mark.spark
def test_compaction_by_the_reference_between_merging_commits(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark
) -> None:
    properties = {"commit.manifest.min-count-to-merge": "3"}
    sink = SinkOnTable.claimed(sqlite_catalog.catalog, COLUMNS, ["zone"], properties)
    name, database = sqlite_catalog.name, sqlite_catalog.database
    for number in range(0, 12, 4):
        sink.commit(rows(number, number + 1))
        attempt = sink.attempt(rows(number + 2, number + 3))
        iceberg_spark.sql(
            name,
            database,
            f"CALL {name}.system.rewrite_data_files("
            "table => 'db.t', options => map('rewrite-all', 'true'))",
        )
        assert isinstance(sink.table.commit(attempt), Refused)
        again = CommitAttempt(sink.table.read(), attempt.record, attempt.files)
        sink.land(sink.table.commit(again))
        assert_rows(sink, list(range(number + 4)))
    theirs = iceberg_spark.read(name, database, "db.t")
    assert sorted(theirs["id"].to_pylist()) == list(range(12))


@pytest.mark.wide
@pytest.mark.spark
def test_expiry_by_the_reference_keeps_state_and_rows(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark
) -> None:
    properties = {"commit.manifest.min-count-to-merge": "3", "history.expire.max-ref-age-ms": "1"}
    sink = SinkOnTable.claimed(sqlite_catalog.catalog, COLUMNS, properties=properties)
    name, database = sqlite_catalog.name, sqlite_catalog.database
    for number in range(5):
        sink.commit(rows(number))
    iceberg_spark.sql(
        name,
        database,
        f"CALL {name}.system.expire_snapshots("
        "table => 'db.t', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)",
    )
    assert len(sink.load().snapshots()) == 1
    view = sink.table.read()
    assert (view.record, view.lineage) == (sink.view.record, sink.view.lineage)
    sink.view = view
    sink.commit(rows(5))
    assert_rows(sink, list(range(6)))


def test_the_summary_counts_right(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, ["zone"])
    sink.commit(rows(1, 2, 3))
    sink.commit(None)
    sink.commit(rows(4))
    snapshot = sink.load().current_snapshot()
    assert snapshot
    assert snapshot.summary
    said = snapshot.summary.additional_properties
    assert {key: said[key] for key in said if "records" in key and "headgate" not in key} == {
        "added-records": "1",
        "total-records": "4",
    }
    assert (said["added-data-files"], said["total-data-files"]) == ("1", "3")
    assert said["changed-partition-count"] == "1"
    assert int(said["total-files-size"]) > int(said["added-files-size"]) > 0


def test_old_metadata_files_go_when_the_table_asks_for_it(catalog: Catalog) -> None:
    properties = {"write.metadata.previous-versions-max": "3"}
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=properties)
    for number in range(8):
        sink.commit(rows(number))
    folder = Path(sink.load().location().removeprefix("file://")) / "metadata"
    assert len(list(folder.glob("*.metadata.json"))) == 4


def test_old_metadata_files_stay_when_it_does_not(catalog: Catalog) -> None:
    properties = {
        "write.metadata.previous-versions-max": "3",
        "write.metadata.delete-after-commit.enabled": "false",
    }
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=properties)
    for number in range(8):
        sink.commit(rows(number))
    folder = Path(sink.load().location().removeprefix("file://")) / "metadata"
    assert len(list(folder.glob("*.metadata.json"))) == 10


def test_a_branchs_own_retention_is_kept_and_the_tags_is_without_end(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS)
    keep = SetSnapshotRefUpdate(
        ref_name="main",
        type="branch",
        snapshot_id=sink.view.head,
        min_snapshots_to_keep=7,
        max_snapshot_age_ms=1_000_000,
        max_ref_age_ms=None,
    )
    catalog.commit_table(sink.load(), (), (keep,))
    sink.commit(rows(1))
    refs = sink.load().metadata.refs
    assert (refs["main"].min_snapshots_to_keep, refs["main"].max_snapshot_age_ms) == (7, 1_000_000)
    assert refs[tag_name(record(1, 0).sink)].max_ref_age_ms == 2**63 - 1


def test_a_bad_file_stops_the_sink_and_commits_nothing(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, ["zone"])
    attempt = sink.attempt(rows(1))
    (file,) = attempt.files
    detail = FileDetail.decode(file.detail)
    spoiled = (
        replace(detail, spec_id=7).encode(),
        replace(detail, partition=()).encode(),
        replace(detail, file_format="csv").encode(),
        file.detail[:-1],
        b"",
    )
    for files in ((file, file), *((replace(file, detail=said),) for said in spoiled)):
        with pytest.raises(StopSink):
            sink.table.commit(replace(attempt, files=files))
    assert sink.table.read() == sink.view


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "zstd", "gzip"])
def test_manifests_are_written_whatever_packs_the_tables_avro_files(
    catalog: Catalog, codec: str
) -> None:
    """The property is that of data files, too, and pyiceberg does not know all of its values."""
    properties = {"write.avro.compression-codec": codec}
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=properties)
    sink.commit(rows(1))
    assert_rows(sink, [1])
