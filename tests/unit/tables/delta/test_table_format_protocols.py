"""Delta tables of any protocol: a sink can fill them, or is refused by name before it starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from contract.delta_table_world import DeltaWorld

from headgate.control_protocol.errors import HeadgateError, LogUnreadable, TableUnfit
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.delta import open_table, protocol_support_trial
from headgate.tables.delta.table_format import DeltaFormat

COLUMN = {"type": "long", "nullable": True, "metadata": {}}
READER = ("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck")
NEWER = ("catalogManaged", "typeWidening", "variantType", "icebergCompatV3", "not-invented-yet")
WRITER = (
    *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
    *("identityColumns", "allowColumnDefaults", "domainMetadata", "clustering", "rowTracking"),
    *("inCommitTimestamp", "icebergCompatV1", "icebergCompatV2", "materializePartitionColumns"),
)
PROTOCOLS: dict[str, dict[str, Any]] = {
    **{
        name: {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [name]}
        | {"writerFeatures": [name]}
        for name in (*READER, *NEWER)
    },
    **{
        name: {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [name]}
        for name in WRITER
    },
    **{f"writer {n}": {"minReaderVersion": 1, "minWriterVersion": n} for n in (2, 3, 4, 8, 99)},
    "reader 2": {"minReaderVersion": 2, "minWriterVersion": 5},
    "reader 4": {"minReaderVersion": 4, "minWriterVersion": 7},
    "no features": {"minReaderVersion": 3, "minWriterVersion": 7}
    | {"readerFeatures": [], "writerFeatures": []},
    "writer 6": {"minReaderVersion": 2, "minWriterVersion": 6},
}
TAKEN = {"no features", "reader 2", "writer 2", "writer 3", "writer 4", "appendOnly"}
REFUSED = {
    *("vacuumProtocolCheck", "domainMetadata", "clustering", "catalogManaged", "not-invented-yet"),
    *("writer 8", "writer 99", "reader 4", "icebergCompatV3"),
}


def made(folder: Path, protocol: dict[str, Any], **properties: str) -> DeltaWorld:
    """A table of that protocol, as another writer has made it."""
    world = DeltaWorld(folder)
    fields = [{"name": name, **COLUMN} for name in ("number", "row")]
    metadata = {
        "id": "made",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": properties,
        "createdTime": 0,
    }
    path = world.place.open_folder().location.removeprefix("file://") + "/_delta_log"
    for old in Path(path).iterdir():
        old.unlink()
    lines = [json.dumps({"protocol": protocol}), json.dumps({"metaData": metadata})]
    (Path(path) / f"{0:020}.json").write_text("\n".join(lines))
    return world


@pytest.mark.parametrize("name", PROTOCOLS)
def test_hg153_a_table_is_refused_by_name_or_a_commit_to_it_lands(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_table, "_PAUSE_S", 0)
    world = made(tmp_path, PROTOCOLS[name])
    try:
        DeltaFormat().file_schema(world.wanted)
    except HeadgateError as error:
        assert isinstance(error, TableUnfit), error
        assert name not in TAKEN
        return
    assert name not in REFUSED
    table = world.open()
    require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    assert len(world.table().file_uris()) == 1  # delta-rs reads rows of fewer protocols


def test_hg153_names_the_feature_and_the_version_of_the_library(tmp_path: Path) -> None:
    world = made(tmp_path, PROTOCOLS["vacuumProtocolCheck"])
    with pytest.raises(TableUnfit, match=r"delta-rs \d.* does not commit .*VacuumProtocolCheck"):
        DeltaFormat().file_schema(world.wanted)


def test_hg153_a_newer_protocol_is_no_damage_and_is_found_in_a_checkpoint_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(open_table, "_PAUSE_S", 0)
    world = made(tmp_path, PROTOCOLS["catalogManaged"])
    log = next(tmp_path.rglob("_delta_log"))
    with pytest.raises(TableUnfit, match="catalog"):
        DeltaFormat().file_schema(world.wanted)
    protocol = pa.array([PROTOCOLS["catalogManaged"]])
    pq.write_table(pa.table({"protocol": protocol}), log / f"{0:020}.checkpoint.parquet")
    (log / f"{0:020}.json").unlink()
    (log / "_last_checkpoint").write_text('{"version":0,"size":1}')
    with pytest.raises(TableUnfit, match="catalog"):
        DeltaFormat().file_schema(world.wanted)


def test_hg256_damage_is_damage_whatever_the_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_table, "_PAUSE_S", 0)
    world = made(tmp_path, PROTOCOLS["writer 2"])
    log = next(tmp_path.rglob("_delta_log"))
    (log / f"{1:020}.json").write_text('{"add":')
    with pytest.raises(LogUnreadable):
        DeltaFormat().file_schema(world.wanted)


def test_hg256_a_checkpoint_with_a_damaged_footer_is_damage_and_no_storage_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow raises ``OSError`` for it, though it has the bytes."""
    monkeypatch.setattr(open_table, "_PAUSE_S", 0)
    world = DeltaWorld(tmp_path)
    claim_table(world.open())
    world.table().create_checkpoint()
    (checkpoint,) = tmp_path.rglob("*.checkpoint.parquet")
    whole = checkpoint.read_bytes()
    length = int.from_bytes(whole[-8:-4], "little")
    checkpoint.write_bytes(whole[: -length - 8] + b"\xff" * length + whole[-8:])
    with pytest.raises(LogUnreadable):
        world.place.load_table()


def test_a_full_disk_does_not_count_as_a_protocol_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("Generic LocalFileSystem error: No space left on device")

    world = made(tmp_path, PROTOCOLS["writer 2"], unlike="any other trial")
    monkeypatch.setattr(protocol_support_trial.DeltaTable, "create_write_transaction", full)
    assert DeltaFormat().file_schema(world.wanted)


def test_hg153_a_running_sink_stops_by_name_when_the_protocol_is_raised(tmp_path: Path) -> None:
    world = made(tmp_path, PROTOCOLS["writer 2"])
    table = world.open()
    view = require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    log = next(tmp_path.rglob("_delta_log"))
    raised = json.dumps({"protocol": PROTOCOLS["vacuumProtocolCheck"]})
    (log / f"{view.head + 1:020}.json").write_text(raised)
    with pytest.raises(TableUnfit, match="VacuumProtocolCheck"):
        table.read()
