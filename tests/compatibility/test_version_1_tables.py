"""Table and quarantine with version 1 of the record can be read, and filled further.

``tables_v1.json`` was written by the program as it was before decision 0011: at rest, and when its
coordinator had died between its two commits, of which the quarantine's came first. Every third
record is bad.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from protocol.quarantining import exactly_once, offsets_in
from protocol.test_upgrade import old_form
from scenarios.stage import COORDINATORS, SINK, Stage

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import TopicPartition, tag_name
from headgate.control_protocol.testing import FakeCatalog, SourceRecord
from headgate.tables.iceberg.data_file import FileDetail

WORLDS: dict[str, Any] = json.loads(Path(__file__).with_name("tables_v1.json").read_text())
TOPIC = "trips"


def stage_of(world: dict[str, Any]) -> Stage:
    stage = Stage(settings=COORDINATORS)
    stage.keep_bad_records()
    assert stage.quarantine is not None
    stage.produce(*(world["produced"][number] for number in sorted(world["produced"])))
    restored(stage, stage.catalog, world["table"])
    restored(stage, stage.quarantine, world["quarantine"])
    for partition, offset, note in world["group"]:
        stage.source.committed[TopicPartition(TOPIC, partition)] = (offset, note)
    return stage


def restored(stage: Stage, catalog: FakeCatalog, told: dict[str, Any]) -> None:
    assert catalog.uuid == told["uuid"]
    catalog.properties.update(told["properties"])
    head = 0
    for snapshot in told["snapshots"]:
        known = {file.path for file in catalog.files()}
        new = [file for file in snapshot["files"] if file["path"] not in known]
        head = catalog.append_foreign([data_file(stage, file) for file in new])
        catalog.snapshots[head] = replace(catalog.snapshots[head], summary=snapshot["summary"])
    catalog.tags[tag_name(SINK)] = head


def data_file(stage: Stage, told: dict[str, Any]) -> WrittenFile:
    topic_id = stage.source.topic_ids[TOPIC]
    rows = [SourceRecord(topic_id, TOPIC, *place) for place in told["rows"]]
    stage.catalog.storage.files[told["path"]] = rows
    return FileDetail(told["spec"]).to_written_file(told["path"], len(rows), 100 * len(rows))


def goes_on(stage: Stage) -> None:
    stage.enter("bob")
    stage.until("bob:    START")
    stage.settles()
    exactly_once(stage)
    stage.produce(3, 3)
    stage.settles()
    exactly_once(stage)


def test_what_version_1_left_at_rest_is_gone_on_with() -> None:
    stage = stage_of(WORLDS["at rest"])
    stage.produce(4, 4)
    goes_on(stage)


def test_what_version_1_left_between_its_two_commits_is_there_once() -> None:
    stage = stage_of(WORLDS["between its two commits"])
    assert stage.quarantine is not None
    kept = offsets_in(stage.quarantine)
    goes_on(stage)
    assert kept < offsets_in(stage.quarantine)
    assert any("quarantine C=0:9,1:8" in line for line in stage.lines), "START says where"


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("table", ["table", "quarantine"])
def test_its_records_are_what_tests_of_the_upgrade_take_them_for(world: str, table: str) -> None:
    for snapshot in WORLDS[world][table]["snapshots"]:
        record = commit_record_codec.decode_record(SINK, snapshot["summary"])
        assert isinstance(record, CommitRecord)
        assert (record.pending_commits, record.primary) == ((), None)
        aside = WORLDS[world]["quarantine"]["uuid"] if table == "table" else None
        assert old_form(record, aside) == snapshot["summary"]
