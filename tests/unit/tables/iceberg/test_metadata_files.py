"""A catalog's metadata files: as pyiceberg would write them, with what it does not know kept."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    update_table_metadata,
)
from support.local_catalog import LocalCatalog

from headgate.tables.iceberg import metadata_files
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.metadata_files import MetadataFiles
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

NAME = "db.t"


def made(catalog: Catalog, version: int = 2, **properties: str) -> Table:
    asked = {"format-version": str(version), **properties}
    create_table_if_missing(catalog, NAME, TableDeclaration({"id": "long"}, properties=asked))
    return catalog.load_table(NAME)


def append(metadata: TableMetadata, dice: random.Random) -> list[TableUpdate]:
    head = metadata.current_snapshot()
    number = metadata.next_sequence_number()
    snapshot = Snapshot(
        snapshot_id=dice.randrange(10**15),
        parent_snapshot_id=head.snapshot_id if head else None,
        sequence_number=number,
        timestamp_ms=metadata.last_updated_ms + dice.randrange(3),
        manifest_list=f"s3://b/{number}.avro",
        summary=Summary(Operation.APPEND, **{"headgate.é": f'"{number}"\n'}),
        schema_id=0,
        first_row_id=metadata.next_row_id if metadata.format_version == 3 else None,
        added_rows=dice.randrange(9) if metadata.format_version == 3 else None,
    )
    return [AddSnapshotUpdate(snapshot=snapshot), set_ref("main", snapshot.snapshot_id)]


def set_ref(name: str, snapshot_id: int) -> TableUpdate:
    kind = SnapshotRefType.BRANCH if name == "main" else SnapshotRefType.TAG
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=kind,
        snapshot_id=snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def some_updates(metadata: TableMetadata, dice: random.Random) -> tuple[TableUpdate, ...]:
    updates = append(metadata, dice)
    old = [s.snapshot_id for s in metadata.snapshots]
    kept = {ref.snapshot_id for ref in metadata.refs.values()}
    gone = [number for number in old if number not in kept and dice.random() < 0.5]
    if dice.random() < 0.5:
        updates.append(SetPropertiesUpdate(updates={f"p{dice.randrange(3)}": str(dice.random())}))
    if dice.random() < 0.2 and "p0" in metadata.properties:
        updates.append(RemovePropertiesUpdate(removals=["p0"]))
    if old and dice.random() < 0.3:
        updates.append(set_ref(f"tag-{dice.randrange(3)}", dice.choice(old)))
    if gone and dice.random() < 0.3:
        updates = [RemoveSnapshotsUpdate(snapshot_ids=gone)]
    return tuple(updates)


def commit(catalog: Catalog, *updates: TableUpdate) -> Table:
    table = catalog.load_table(NAME)
    same = AssertTableUUID(uuid=table.metadata.table_uuid)
    catalog.commit_table(table, (same,), updates or tuple(append(table.metadata, DICE)))
    return catalog.load_table(NAME)


DICE = random.Random(5)


def as_pyiceberg_reads(table: Table) -> TableMetadata:
    return FromInputFile.table_metadata(PyArrowFileIO().new_input(table.metadata_location))


def timeless(metadata: TableMetadata) -> dict[str, Any]:
    return metadata.model_dump() | {"last-updated-ms": 0}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_any_commits_make_what_pyiceberg_makes(
    sqlite_catalog: LocalCatalog, version: int, seed: int
) -> None:
    dice = random.Random(seed)
    table = made(sqlite_catalog.catalog, version)
    for _ in range(40):
        before = as_pyiceberg_reads(table)
        updates = some_updates(before, dice)
        wanted = update_table_metadata(before, updates, metadata_location=table.metadata_location)
        if dice.random() < 0.2:  # a coordinator that has just started
            sqlite_catalog.catalog.close()
            object.__setattr__(
                sqlite_catalog, "catalog", load_catalog("local", sqlite_catalog.properties)
            )
        table = commit(sqlite_catalog.catalog, *updates)
        written = as_pyiceberg_reads(table)
        assert timeless(written) == timeless(wanted)
        assert table.metadata.model_dump() == written.model_dump()


def document_of(table: Table) -> dict[str, Any]:
    octets = Path(table.metadata_location.removeprefix("file://")).read_bytes()
    if table.metadata_location.endswith(".gz.metadata.json"):
        octets = gzip.decompress(octets)
    found: dict[str, Any] = json.loads(octets)
    return found


def rewritten_by_another(
    sqlite_catalog: LocalCatalog, table: Table, document: dict[str, Any]
) -> None:
    """Another writer commits this."""
    folder = Path(table.metadata_location.removeprefix("file://")).parent
    path = folder / f"{len(list(folder.iterdir())):05}-another.metadata.json"
    path.write_text(json.dumps(document))
    with sqlite3.connect(sqlite_catalog.database) as database:
        database.execute("update iceberg_tables set metadata_location = ?", (path.as_uri(),))


def test_what_another_writer_put_there_stays_though_pyiceberg_does_not_know_it(
    sqlite_catalog: LocalCatalog,
) -> None:
    made(sqlite_catalog.catalog)
    commit(sqlite_catalog.catalog)
    table = commit(sqlite_catalog.catalog)
    document = document_of(table)
    document["encryption-keys"] = [{"key-id": "k"}]
    document["schemas"][0]["of-another"] = 1
    document["refs"]["main"]["of-another"] = 2
    for number, snapshot in enumerate(document["snapshots"]):
        snapshot["key-id"] = f"k{number}"
    rewritten_by_another(sqlite_catalog, table, document)
    first, second = (snapshot["snapshot-id"] for snapshot in document["snapshots"])
    commit(sqlite_catalog.catalog)
    commit(sqlite_catalog.catalog, set_ref("kept", second))
    commit(sqlite_catalog.catalog, RemoveSnapshotsUpdate(snapshot_ids=[first]))
    found = document_of(sqlite_catalog.catalog.load_table(NAME))
    assert found["encryption-keys"] == [{"key-id": "k"}]
    assert found["schemas"][0]["of-another"] == 1
    assert found["refs"]["main"]["of-another"] == 2
    kept, newest = found["snapshots"]
    assert (kept["snapshot-id"], kept["key-id"]) == (second, "k1")
    assert "parent-snapshot-id" not in kept, "it was removed"
    assert "key-id" not in newest


def test_what_another_writer_committed_is_read_though_the_last_file_is_known(
    sqlite_catalog: LocalCatalog,
) -> None:
    made(sqlite_catalog.catalog)
    table = commit(sqlite_catalog.catalog)
    document = document_of(table)
    document["properties"]["theirs"] = "1"
    rewritten_by_another(sqlite_catalog, table, document)
    assert commit(sqlite_catalog.catalog).properties["theirs"] == "1"


def test_a_file_is_parsed_once(
    sqlite_catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    parse = metadata_files.TableMetadataUtil.parse_raw

    def counted(text: str) -> TableMetadata:
        parsed.append(text)
        return parse(text)

    made(sqlite_catalog.catalog)
    monkeypatch.setattr(metadata_files.TableMetadataUtil, "parse_raw", counted)
    for _ in range(5):
        commit(sqlite_catalog.catalog)
    assert not parsed, "all were written here"
    with load_catalog("local", sqlite_catalog.properties) as another:
        for _ in range(3):
            another.load_table(NAME)
    assert len(parsed) == 1


class Remote:
    """A file on a store. ``octets``: ``None`` where nobody may ask for it again."""

    def __init__(self, octets: bytes | None) -> None:
        self.location = "s3://bucket/t/metadata/00001-a.metadata.json"
        self._octets = octets

    def open(self) -> BytesIO:
        assert self._octets is not None
        return BytesIO(self._octets)


def test_a_file_that_was_edited_in_place_is_read_again_on_this_machine_alone(
    sqlite_catalog: LocalCatalog,
) -> None:
    table = made(sqlite_catalog.catalog)
    path = Path(table.metadata_location.removeprefix("file://"))
    octets = path.read_bytes()
    files = MetadataFiles()
    one = files.read(Remote(octets))  # type: ignore[arg-type]
    assert files.read(Remote(None)) is one  # type: ignore[arg-type]
    document = document_of(table)
    document["properties"]["edited"] = "1"
    path.write_text(json.dumps(document))
    assert commit(sqlite_catalog.catalog).properties["edited"] == "1"


def test_compressed_metadata_stays_compressed(sqlite_catalog: LocalCatalog) -> None:
    table = made(sqlite_catalog.catalog)
    document = document_of(table)
    folder = Path(table.metadata_location.removeprefix("file://")).parent
    path = folder / "00001-packed.gz.metadata.json"
    path.write_bytes(gzip.compress(json.dumps({**document, "of-another": 1}).encode()))
    files, io = MetadataFiles(), PyArrowFileIO()
    metadata = files.read(io.new_input(path.as_uri()))
    again = (folder / "00002-packed.gz.metadata.json").as_uri()
    log = [{"metadata-file": path.as_uri(), "timestamp-ms": 1}]
    changed = metadata.model_validate({**metadata.model_dump(), "metadata-log": log})
    # By one that does not know the file before: others' fields are looked for in it.
    MetadataFiles().write(changed, io, again)
    found = json.loads(gzip.decompress(Path(again.removeprefix("file://")).read_bytes()))
    assert found == {**document, "metadata-log": log, "of-another": 1}


def test_requirements_are_checked_as_before(sqlite_catalog: LocalCatalog) -> None:
    made(sqlite_catalog.catalog)
    commit(sqlite_catalog.catalog)
    table = commit(sqlite_catalog.catalog)
    wrong = AssertRefSnapshotId(ref="main", snapshot_id=7)
    updates = tuple(append(table.metadata, DICE))
    with pytest.raises(Exception, match="has changed: expected id 7"):
        sqlite_catalog.catalog.commit_table(table, (wrong,), updates)
    known = table.metadata.snapshots[0]
    with pytest.raises(ValueError, match="already exists"):
        sqlite_catalog.catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=known),))


class Torn(PyArrowFileIO):
    def new_output(self, location: str) -> Any:
        raise OSError(f"no room for {location}")


def test_a_file_that_could_not_be_written_is_not_known(sqlite_catalog: LocalCatalog) -> None:
    metadata = made(sqlite_catalog.catalog).metadata
    files, at = MetadataFiles(), f"{metadata.location}/metadata/00009-x.metadata.json"
    with pytest.raises(OSError, match="no room"):
        files.write(metadata, Torn(), at)
    with pytest.raises(FileNotFoundError):
        files.read(PyArrowFileIO().new_input(at))


def test_of_the_files_that_were_read_those_are_remembered_that_have_room(
    sqlite_catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(sqlite_catalog.catalog)
    io = PyArrowFileIO()
    of_1_to_4_snapshots = [
        io.new_input(commit(sqlite_catalog.catalog).metadata_location) for _ in range(4)
    ]
    monkeypatch.setattr(metadata_files, "_BYTES_MAX", sum(map(len, of_1_to_4_snapshots[2:])))
    files = MetadataFiles()
    read = [files.read(file) for file in of_1_to_4_snapshots]
    again = [files.read(file) for file in reversed(of_1_to_4_snapshots)]
    assert [one is other for one, other in zip(read, reversed(again), strict=True)] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("ending", [".metadata.json", ".gz.metadata.json"])
def test_files_that_were_written_are_bounded_though_they_have_no_snapshot(
    sqlite_catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    metadata, files, io = made(sqlite_catalog.catalog).metadata, MetadataFiles(), PyArrowFileIO()
    at = [f"{metadata.location}/metadata/0000{number}-x{ending}" for number in range(3)]
    size = len(json.dumps(json.loads(metadata.model_dump_json())))
    monkeypatch.setattr(metadata_files, "_BYTES_MAX", size)
    written = [metadata.model_copy() for _ in at]
    for each, path in zip(written, at, strict=True):
        files.write(each, io, path)
    assert files.read(io.new_input(at[-1])) is written[-1]
    assert files.read(io.new_input(at[0])) is not written[0]
