"""What a removal of snapshots asks of a catalog, and what it takes for proven afterwards
(RETENTION-1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import LongType, NestedField
from support.local_catalog import local_catalog
from support.server_checks import ServerChecks, as_on_the_wire

from headgate.tables.iceberg.maintenance import snapshot_removal
from headgate.tables.iceberg.maintenance.snapshot_removal import SnapshotRemoval

NAME = "db.t"
Send = Callable[[], CommitTableResponse]


class Desk(ServerChecks):
    """A table of five snapshots, of which the two oldest are to go, and what its catalog was asked.

    ``answered`` turns a catalog's answer into another one. Where it is ``its_own``, it is asked the
    requirements themselves, as a SQL catalog is.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(local_catalog(folder).catalog)
        self.asked: list[tuple[Any, Any]] = []
        self.its_own = False
        self.answered: Callable[[TableMetadata], TableMetadata] = lambda metadata: metadata
        table = self.create_table(NAME, Schema(NestedField(1, "id", LongType())))
        for number in range(5):
            table.append(pa.table({"id": [number]}))
        self.read = self.load_table(NAME)
        self.due: list[Snapshot] = self.read.snapshots()[:2]
        self.removal = SnapshotRemoval(self, self.read, self.due)  # type: ignore[arg-type]

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> CommitTableResponse:
        self.asked.append((requirements, updates))
        if self.its_own:
            return self._real.commit_table(table, requirements, updates)
        response = super().commit_table(table, requirements, updates)
        return response.model_copy(update={"metadata": self.answered(response.metadata)})

    def call(self) -> bool:
        return self.removal.try_removal_and_prove_exact(self.load_table(NAME))

    def tag(self, name: str, position: int) -> None:
        table = self.load_table(NAME)
        snapshot_id = self.read.snapshots()[position].snapshot_id
        table.manage_snapshots().create_tag(snapshot_id, name).commit()

    def untag(self, name: str) -> None:
        self.load_table(NAME).manage_snapshots().remove_tag(name).commit()

    @property
    def now(self) -> TableMetadata:
        found: TableMetadata = self.load_table(NAME).metadata
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def refused(requirements: Any, metadata: TableMetadata) -> bool:
    try:
        for requirement in requirements:
            requirement.validate(metadata)
    except CommitFailedException:
        return True
    return False


def with_another_uuid(metadata: TableMetadata) -> TableMetadata:
    return metadata.model_copy(update={"table_uuid": UUID(int=7)})


def test_a_removal_requires_the_table_and_every_ref_as_read(desk: Desk) -> None:
    """Of a server as far as it can be asked; a catalog of pyiceberg's is asked of new refs too."""
    assert desk.call()
    ((requirements, _),) = desk.asked
    wire = as_on_the_wire(requirements)
    assert not refused(requirements, desk.read.metadata)
    for asked in (requirements, wire):
        assert refused(asked, with_another_uuid(desk.read.metadata))
        desk.load_table(NAME).append(pa.table({"id": [9]}))
        assert refused(asked, desk.now)
    desk.tag("new", 4)
    unmoved = {"main": desk.read.metadata.refs["main"], "new": desk.now.refs["new"]}
    tagged = desk.read.metadata.model_copy(update={"refs": unmoved})
    assert refused(requirements, tagged)
    assert not refused(wire, tagged)


@pytest.mark.parametrize(
    "more", ["a snapshot", "a ref", "another version", "no version", "nothing"]
)
def test_proven_is_a_removal_of_the_very_version_that_was_judged(desk: Desk, more: str) -> None:
    """Whatever else is different: what it means for the files is not known."""

    def answered(metadata: TableMetadata) -> TableMetadata:
        log = metadata.metadata_log
        last = log[-1].model_copy(update={"metadata_file": "another.json"})
        changes: dict[str, dict[str, Any]] = {
            "a snapshot": {"snapshots": metadata.snapshots[1:]},
            "a ref": {"refs": {}},
            "another version": {"metadata_log": [*log[:-1], last]},
            "no version": {"metadata_log": []},
            "nothing": {},
        }
        return metadata.model_copy(update=changes[more])

    desk.answered = answered
    assert desk.call() is (more == "nothing")


def test_a_removal_has_landed_in_its_own_table_and_whole(desk: Desk) -> None:
    before = desk.read.metadata
    assert not desk.removal.has_landed(before)
    part = before.model_copy(update={"snapshots": before.snapshots[1:]})
    assert not desk.removal.has_landed(part)
    whole = before.model_copy(update={"snapshots": before.snapshots[2:]})
    assert desk.removal.has_landed(whole)
    assert not desk.removal.has_landed(with_another_uuid(whole))


def test_it_is_decided_when_it_has_landed_or_a_ref_has_moved(desk: Desk) -> None:
    before = desk.read.metadata
    assert not desk.removal.is_decided(before)
    assert desk.removal.is_decided(before.model_copy(update={"refs": {}}))
    assert desk.removal.is_decided(before.model_copy(update={"snapshots": before.snapshots[2:]}))


def lost_answer(desk: Desk, *, then: Callable[[], None] = lambda: None) -> None:
    """A tag is set on a due snapshot, the removal takes it along, and nobody hears of it."""

    def around(send: Send) -> CommitTableResponse:
        desk.tag("just-now", 1)
        desk.tag("other", 3)
        send()
        then()
        raise ConnectionError("the answer was lost")

    desk.around = around
    assert not desk.call()


def test_only_refs_that_the_removal_took_along_are_set_again(desk: Desk) -> None:
    """What somebody removed since stays removed."""
    lost_answer(desk, then=lambda: desk.untag("other"))
    refs = desk.now.refs
    assert set(refs) == {"main", "just-now"}
    again = desk.now.snapshot_by_id(refs["just-now"].snapshot_id)
    assert again is not None
    assert again.snapshot_id != desk.due[1].snapshot_id
    assert again.manifest_list == desk.due[1].manifest_list
    assert again.timestamp_ms >= desk.read.metadata.last_updated_ms


def test_a_ref_that_somebody_else_has_set_again_is_theirs(desk: Desk) -> None:
    lost_answer(desk, then=lambda: desk.tag("just-now", 4))
    assert desk.now.refs["just-now"].snapshot_id == desk.read.snapshots()[4].snapshot_id
    assert len(desk.asked) == 1


def test_setting_again_requires_the_table_and_that_nobody_was_faster(desk: Desk) -> None:
    lost_answer(desk)
    _, (requirements, _) = desk.asked
    wire = as_on_the_wire(requirements)
    without = desk.now.model_copy(update={"refs": {"main": desk.now.refs["main"]}})
    assert not refused(wire, without)
    assert refused(wire, with_another_uuid(without))
    assert refused(wire, desk.now)


def test_it_is_tried_again_on_the_table_as_it_is_then(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody takes the sequence number that the copy was to have."""
    right = snapshot_removal._snapshot_of_same_files

    def copied(snapshot: Snapshot, metadata: TableMetadata) -> Snapshot:
        if not overtaken:
            overtaken.append(1)
            desk.load_table(NAME).append(pa.table({"id": [7]}))
        return right(snapshot, metadata)

    overtaken: list[int] = []
    monkeypatch.setattr(snapshot_removal, "_snapshot_of_same_files", copied)

    def its_own() -> None:
        desk.its_own = True

    lost_answer(desk, then=its_own)
    assert "just-now" in desk.now.refs
    assert desk.now.last_sequence_number == 7
    assert len(desk.asked) == 3


@pytest.mark.parametrize("clock", ["behind", "ahead"])
def test_the_copy_is_younger_than_all_that_the_table_has(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    """Catalogs refuse time that runs backwards, and age is what snapshots expire by."""
    last_ms = desk.read.metadata.last_updated_ms
    wall_s = last_ms / 1_000 + (-3_600 if clock == "behind" else 3_600)
    monkeypatch.setattr(snapshot_removal.time, "time", lambda: wall_s)
    at_ms = snapshot_removal._snapshot_of_same_files(desk.due[0], desk.read.metadata).timestamp_ms
    assert at_ms == max(last_ms, int(wall_s * 1_000))


def test_snapshots_that_went_one_by_one_took_nothing_along_that_is_not_known(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """Others have removed them; every version since the judged one is known."""

    def around(_: Send) -> CommitTableResponse:
        table: Table = desk.load_table(NAME)
        for snapshot in desk.due:
            table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
        raise ConnectionError("no answer")

    desk.around = around
    assert not desk.call()
    assert "does not tell any more" not in caplog.text


def test_a_version_that_was_deleted_meanwhile_is_not_read(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    def gone() -> None:
        for entry in desk.now.metadata_log:
            if entry.metadata_file != desk.read.metadata_location:
                Path(entry.metadata_file.removeprefix("file://")).unlink(missing_ok=True)

    lost_answer(desk, then=gone)
    assert "just-now" not in desk.now.refs
