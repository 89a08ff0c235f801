"""Every row of a table of version 3 has an id of its own, and keeps it whatever is merged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from integration.iceberg.sink_commits import SinkOnTable, record
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.metadata import TableMetadataV3
from support.iceberg_files import write_files

from headgate.control_protocol.errors import StopSink
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, Landed, Refused
from headgate.tables.iceberg import manifests_v3
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table import IcebergTable

COLUMNS = {"id": "long", "zone": "string"}
VERSION_3 = {"format-version": "3", "commit.manifest.min-count-to-merge": "3"}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    with load_catalog("test", properties) as catalog:
        yield catalog


def rows(*ids: int) -> pa.Table:
    zones = ["north" if number % 2 else "south" for number in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "zone": zones})


def first_row_ids(sink: SinkOnTable) -> dict[str, tuple[int | None, int]]:
    """Per live file of the newest snapshot its first row id, and how many rows it has."""
    table = sink.load()
    snapshot = table.current_snapshot()
    assert snapshot
    return {
        entry.data_file.file_path: (entry.data_file[16], entry.data_file.record_count)
        for manifest in manifests_v3.read_manifest_list(table.io, snapshot.manifest_list)
        if manifest.content == ManifestContent.DATA
        for entry in manifests_v3.read_live_entries(table.io, manifest)
    }


def assert_numbered(sink: SinkOnTable) -> None:
    """No id belongs to two rows, and the table's next one is higher than all."""
    metadata = sink.load().metadata
    assert isinstance(metadata, TableMetadataV3)
    taken: list[int] = []
    for first, count in first_row_ids(sink).values():
        assert first is not None
        taken += range(first, first + count)
    assert len(set(taken)) == len(taken)
    assert metadata.next_row_id is not None
    assert metadata.next_row_id > max(taken, default=-1)


def upgrade(sink: SinkOnTable) -> None:
    """As an engine does that knows version 3; pyiceberg refuses to."""
    file = Path(sink.load().metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text()) | {"format-version": 3, "next-row-id": 0}
    file.write_text(json.dumps(metadata))


def test_rows_keep_their_ids_through_merges(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, ["zone"], VERSION_3)
    seen: dict[str, tuple[int | None, int]] = {}
    for number in range(0, 24, 3):
        sink.commit(rows(number, number + 1, number + 2))
        now = first_row_ids(sink)
        assert {path: now[path] for path in seen} == seen
        seen = now
        assert_numbered(sink)
    assert len(seen) == 16


def test_snapshots_say_which_ids_they_gave_out(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=VERSION_3)
    for many in (rows(1, 2), None, rows(3), rows(4)):
        sink.commit(many)
    metadata = sink.load().metadata
    assert isinstance(metadata, TableMetadataV3)
    given = [(s.first_row_id, s.added_rows) for s in metadata.snapshots]
    # The last one merges: its manifest is new, and has room for the three rows that have ids.
    assert given == [(0, 0), (0, 2), (2, 0), (2, 1), (3, 4)]
    assert metadata.next_row_id == 7


def test_an_upgraded_table_numbers_the_rows_that_it_has(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, ["zone"])
    sink.commit(rows(1, 2))
    upgrade(sink)
    assert {first for first, _ in first_row_ids(sink).values()} == {None}
    sink.commit(None)
    assert_numbered(sink)
    before = first_row_ids(sink)
    sink.commit(rows(3))
    assert before.items() < first_row_ids(sink).items()
    assert_numbered(sink)


def test_what_others_deleted_from_a_manifest_is_not_live(catalog: Catalog) -> None:
    """Java leaves both in one manifest; merged as live, deleted rows would come back."""
    sink = SinkOnTable.claimed(catalog, COLUMNS, ["zone"], VERSION_3)
    sink.commit(rows(1, 2))
    table = sink.load()
    snapshot = table.current_snapshot()
    assert snapshot
    (manifest,) = manifests_v3.read_manifest_list(table.io, snapshot.manifest_list)
    gone, kept = manifests_v3.read_live_entries(table.io, manifest)
    output = table.io.new_output(f"{table.location()}/metadata/by-others.avro")
    spec, schema = table.spec(), table.schema()
    with manifests_v3.ManifestWriter(spec, schema, output, snapshot.snapshot_id, "null") as writer:
        writer.delete(gone)
        writer.existing(kept)
    listed = writer.to_manifest_file()
    listed.sequence_number = snapshot.sequence_number

    live = list(manifests_v3.read_live_entries(table.io, listed))

    assert [entry.data_file.file_path for entry in live] == [kept.data_file.file_path]
    assert kept.data_file[16] is not None
    assert live[0].data_file[16] is None, "a manifest without a number gives its files none"


def test_a_list_says_its_version_and_numbers_data_alone(catalog: Catalog) -> None:
    """A delete manifest has no rows of its own: Java refuses one with a first row id."""
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=VERSION_3)
    sink.commit(rows(1, 2))
    table = sink.load()
    snapshot = table.current_snapshot()
    assert snapshot
    (data,) = manifests_v3.read_manifest_list(table.io, snapshot.manifest_list)
    anew, deletes = (manifests_v3.manifest_without_first_row_id(data) for _ in range(2))
    deletes[3] = ManifestContent.DELETES
    output = table.io.new_output(f"{table.location()}/metadata/list.avro")
    with manifests_v3.ManifestListWriter(
        output, snapshot.snapshot_id, None, 9, first_row_id=40, compression="null"
    ) as writer:
        writer.add_manifests([deletes, anew, data])
    assert writer.next_row_id == 42
    place = manifests_v3._OF_MANIFEST
    numbers = [
        manifest[place] for manifest in manifests_v3.read_manifest_list(table.io, output.location)
    ]
    assert numbers == [None, 40, 0]
    with AvroFile[ManifestFile](output.to_input_file()) as reader:
        said = reader.header.meta
    assert (said["format-version"], said["first-row-id"]) == ("3", "40")
    assert (said["snapshot-id"], said["sequence-number"]) == (str(snapshot.snapshot_id), "9")


def test_a_snapshot_of_another_branch_takes_the_number_first(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=VERSION_3)
    sink.commit(rows(1))
    aside = IcebergTable(catalog, "db.t", SinkName("other"), "aside")
    attempt = CommitAttempt(sink.view, record(1, 2, 2), write_files(sink.load(), rows(2)))

    class Overtaken:
        """Between the reading of the table and the call, another sink claims its branch."""

        def __getattr__(self, name: str) -> object:
            if name == "commit_table":
                claim = CommitAttempt(aside.read(), record(1, 0, sink="other"))
                assert isinstance(aside.commit(claim), Landed)
            return getattr(catalog, name)

    table = IcebergTable(Overtaken(), "db.t", SinkName("sink"))  # type: ignore[arg-type]
    assert isinstance(table.commit(attempt), Refused)
    numbers = [snapshot.sequence_number for snapshot in sink.load().metadata.snapshots]
    assert len(set(numbers)) == len(numbers)
    sink.land(sink.table.commit(CommitAttempt(sink.table.read(), attempt.record, attempt.files)))
    assert_numbered(sink)


def test_a_catalog_that_cannot_write_version_3_stops_the_sink(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=VERSION_3)

    class Refusing:
        def commit_table(self, *_: object) -> None:
            raise NotImplementedError("Writing V3 is not yet supported")

        def __getattr__(self, name: str) -> object:
            return getattr(catalog, name)

    table = IcebergTable(Refusing(), "db.t", SinkName("sink"))  # type: ignore[arg-type]
    with pytest.raises(StopSink, match="its catalog cannot write what was proposed"):
        table.commit(CommitAttempt(sink.view, record(1, 1)))


@pytest.mark.parametrize("properties", [{}, VERSION_3], ids=["v2", "v3"])
def test_a_commit_that_names_a_file_twice_is_a_stop(
    catalog: Catalog, properties: dict[str, str]
) -> None:
    """Admission lets none in; its rows would be there twice all the same."""
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=properties)
    files = write_files(sink.load(), rows(1))
    attempt = CommitAttempt(sink.view, record(1, 1, 1), (*files, *files))
    with pytest.raises(StopSink, match="names a data file twice"):
        sink.table.commit(attempt)
    assert sink.table.read().head == sink.view.head
