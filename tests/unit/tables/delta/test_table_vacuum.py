"""Files that others remove before they are committed: no version may name them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from contract.delta_table_world import DeltaWorld
from deltalake import DeltaTable
from many_tables_of_a_kind import ONE, PLACES

from headgate.config.load import parse
from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import StopSink
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Landed, Refused, Staging
from headgate.control_protocol.testing.contract.secondaries import delivery_record
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.operations.audit.audit import audit
from headgate.tables.delta.table import DeltaSinkTable
from headgate.tables.staged_file_lists import StagedFileLists
from headgate.tables.unstaged_secondary_table import FileListSecondaryTable, FixedColumns
from headgate.testing.contract.world import BEGIN, COLUMNS, source_coordinates
from headgate.testing.contract.world import sometimes_bad_value as value
from headgate.testing.sink_in_process import SinkInProcess

_DAY_S = 24 * 3600

Removal = Callable[[DeltaWorld, WrittenFile], None]


def path_of(world: DeltaWorld, file: WrittenFile) -> Path:
    return Path(world.uri) / file.path.removeprefix(f"{world.place.location}/")


def aged(path: Path, days: int) -> None:
    at_s = time.time() - days * _DAY_S
    os.utime(path, (at_s, at_s))


def everything(world: DeltaWorld, _: WrittenFile) -> None:
    """Vacuum whatever no version names, however young it is."""
    vacuum_all(world.table())


def vacuum_all(table: DeltaTable) -> None:
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


def what_is_old(world: DeltaWorld, file: WrittenFile) -> None:
    """Vacuum with the default retention of a week, behind a sink that waited for longer."""
    aged(path_of(world, file), 8)
    world.table().vacuum(dry_run=False, full=True)


def by_hand(world: DeltaWorld, file: WrittenFile) -> None:
    path_of(world, file).unlink()


def cut_off(world: DeltaWorld, file: WrittenFile) -> None:
    path_of(world, file).write_bytes(b"PAR1")


@pytest.mark.parametrize("remove", [everything, what_is_old, by_hand, cut_off])
def test_a_file_that_is_gone_is_refused_for_good(tmp_path: Path, remove: Removal) -> None:
    world = DeltaWorld(tmp_path)
    table = world.open()
    view, file, sound = claim_table(table), world.write_file(1), world.write_file(2)
    remove(world, file)
    outcome = commit(table, view, record(1, 1, 3), sound, file)
    if isinstance(outcome, Refused) and not outcome.for_good:  # vacuums write versions as well
        view = table.read()
        outcome = commit(table, view, record(1, 1, 3), sound, file)
    assert isinstance(outcome, Refused)
    assert outcome.for_good
    assert "is gone" in outcome.reason
    require_landed(commit(table, view, record(1, 1, 3), world.write_file(3)))
    assert world.visible_file_numbers() == [3]


@pytest.mark.parametrize("days", [0, 6])
def test_the_default_retention_spares_what_is_not_committed_yet(tmp_path: Path, days: int) -> None:
    world = DeltaWorld(tmp_path)
    table = world.open()
    view, file = claim_table(table), world.write_file(1)
    aged(path_of(world, file), days)
    world.table().vacuum(dry_run=False, full=True)
    require_landed(commit(table, view, record(1, 1, 3), file))
    assert world.visible_file_numbers() == [1]


def followed(world: DeltaWorld) -> FileListSecondaryTable:
    table = world.open()
    drafts = StagedFileLists({}, world.place.location, SinkName("sink"), kept_ms=0)
    return FileListSecondaryTable(table, FixedColumns(table), drafts)


def drafted(
    secondary: FileListSecondaryTable, number: int, *files: WrittenFile
) -> tuple[PendingCommit, ...]:
    transaction = TransactionId(Epoch(1), TransactionNumber(number))
    return secondary.stage(Staging(secondary.read(), transaction, Sender("member", "1"), files))


def deliver(
    secondary: FileListSecondaryTable, number: int, *pending_commits: PendingCommit
) -> CommitOutcome:
    return secondary.commit(
        CommitAttempt(secondary.read(), delivery_record(1, number), pending_commits=pending_commits)
    )


def test_a_pending_commit_whose_file_is_gone_is_not_delivered_and_others_are(
    tmp_path: Path,
) -> None:
    world = DeltaWorld(tmp_path)
    secondary = followed(world)
    file = world.write_file(1)
    lost = drafted(secondary, 1, file)
    by_hand(world, file)
    refused = deliver(secondary, 1, *lost)
    assert isinstance(refused, Refused)
    assert file.path in refused.reason
    assert isinstance(deliver(secondary, 2, *drafted(secondary, 2, world.write_file(2))), Landed)
    assert world.visible_file_numbers() == [2]


def test_a_file_that_is_gone_is_not_decided(tmp_path: Path) -> None:
    world = DeltaWorld(tmp_path)
    file = world.write_file(1)
    by_hand(world, file)
    with pytest.raises(StopSink, match="is gone"):
        drafted(followed(world), 1, file)


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[SinkInProcess]:
    text = (BEGIN + ONE).replace("LAKE", str(tmp_path / "lake")).replace("COLUMNS", COLUMNS)
    sink = SinkInProcess(parse(text), value)
    yield sink
    sink.end_lives()


def places(lake: Path) -> list[tuple[Any, ...]]:
    """Where the records of the table and of its quarantine are from."""
    return sorted(
        tuple(row[place] for place in PLACES)
        for name in ("orders", "orders_quarantine")
        for row in DeltaTable(lake / name).to_pyarrow_table(columns=list(PLACES)).to_pylist()
    )


def test_records_of_files_that_a_vacuum_removed_are_written_again(
    sink: SinkInProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, commits = tmp_path / "lake", DeltaSinkTable.commit
    vacuumed: list[str] = []

    def interrupted(table: DeltaSinkTable, attempt: CommitAttempt) -> CommitOutcome:
        if attempt.files and not vacuumed:
            vacuumed.extend(file.path for file in attempt.files)
            vacuum_all(DeltaTable(lake / "orders"))
        return commits(table, attempt)

    monkeypatch.setattr(DeltaSinkTable, "commit", interrupted)
    sink.begin_life()
    sink.produce(30)
    sink.run_until_settled()
    assert vacuumed
    assert places(lake) == source_coordinates(sink)
    assert not audit(sink.settings, with_source=False).findings


def test_pending_8_a_pending_commit_whose_file_is_gone_expires_and_later_ones_are_delivered(
    sink: SinkInProcess, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    aside = lake / "orders_quarantine"
    sink.begin_life()
    sink.produce(30)
    sink.run_until_settled()
    place = aside / "_delta_log" / f"{DeltaTable(aside).version() + 1:020}.json"
    place.mkdir()  # nobody can deliver to it
    sink.produce(30)
    sink.run_until(lambda: sink.lag() == 0 and bool(sink.tables_with_pending_commits()))
    place.rmdir()
    named = {Path(unquote(urlparse(uri).path)) for uri in DeltaTable(aside).file_uris()}
    for file in set(aside.glob("data/**/*.parquet")) - named:
        file.unlink()
    sink.produce(30)
    sink.run_until(lambda: sink.lag() == 0)
    assert sink.tables_with_pending_commits() == {"db.orders_quarantine"}
    sink.clock.advance(sink.settings.coordinator.claim_age_max_ms)
    sink.produce(30)
    sink.run_until_settled()
    missing = sorted(set(source_coordinates(sink)) - set(places(lake)))
    assert 9 <= len(missing) <= 18
    found = {each.what for each in audit(sink.settings, with_source=False).findings}
    assert found == {"rows-expired"}
