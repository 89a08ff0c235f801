"""What secondary tables without manifests are pending, as small files say it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.ports import Lineage, Staging, TableView
from headgate.tables.staged_file_lists import StagedFileLists

ROWS = WrittenFile("file:///t/rows.parquet", 3, 30)
MORE = WrittenFile("file:///t/more.parquet", 4, 40)
KEYS = WrittenFile("file:///t/keys.parquet", 2, 20, FileKind.KEYS)


def table_at(folder: Path) -> TableView:
    return TableView(
        table="db.orders",
        uuid="u",
        location=folder.as_uri(),
        schema_id=0,
        spec_id=0,
        head=None,
        tag=None,
        record=None,
        lineage=Lineage.FRESH,
        branch_record=None,
    )


def test_rows_and_deletes_are_pending_apart(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    transaction = TransactionId(Epoch(1), TransactionNumber(2))

    def written(*files: WrittenFile) -> list[tuple[int, int, list[WrittenFile]]]:
        draft = Staging(table, transaction, Sender("member", "i"), files, since_ms=7)
        drafts = StagedFileLists({}, table.location, SinkName("sink"))
        pending_commits = drafts.stage_pending_commits(draft)
        return [
            (pending_commit.rows, pending_commit.deletes, drafts.read_list(pending_commit.manifest))
            for pending_commit in pending_commits
        ]

    assert written(ROWS, KEYS, MORE) == [(7, 0, [ROWS, MORE]), (0, 2, [KEYS])]
    assert written(KEYS) == [(0, 2, [KEYS])]
    assert written(ROWS) == [(3, 0, [ROWS])]
    left = [path for path in tmp_path.rglob("*.json") if path.is_file()]
    assert len(left) == 4  # what is staged again overwrites nothing
    old = StagedFileLists({}, table.location, SinkName("sink"), kept_ms=0)
    old.delete_old_unpending_lists(table, Epoch(2), frozenset())
    assert not any(path.exists() for path in left)


def test_pending_7_what_is_pending_stays_however_old_its_epoch_is(tmp_path: Path) -> None:
    drafts = StagedFileLists({}, tmp_path.as_uri(), SinkName("sink"), kept_ms=0)
    one, other = (
        drafts.stage_pending_commits(
            Staging(
                table_at(tmp_path),
                TransactionId(Epoch(1), TransactionNumber(number)),
                Sender("member", "i"),
                (ROWS,),
            )
        )[0]
        for number in (2, 3)
    )
    drafts.delete_old_unpending_lists(table_at(tmp_path), Epoch(2), frozenset({one.manifest}))
    assert drafts.read_list(one.manifest) == [ROWS]
    with pytest.raises(FileNotFoundError):
        drafts.read_list(other.manifest)


def test_pending_2_lists_of_another_table_in_the_same_location_stay(tmp_path: Path) -> None:
    """A format's UUIDs need not be names of folders; lists that were staged before tables had
    folders go as before."""
    drafts = StagedFileLists({}, tmp_path.as_uri(), SinkName("sink"), kept_ms=0)
    transaction = TransactionId(Epoch(1), TransactionNumber(2))
    one, other = (replace(table_at(tmp_path), uuid=uuid) for uuid in ("cluster/1", "cluster/2"))
    theirs, mine = (
        Path(pending_commit.manifest.removeprefix("file://"))
        for table in (other, one)
        for pending_commit in drafts.stage_pending_commits(
            Staging(table, transaction, Sender("member", "i"), (ROWS,))
        )
    )
    former = tmp_path / "metadata/headgate/sink/1-i/2.json"
    former.parent.mkdir()
    former.write_bytes(mine.read_bytes())
    assert theirs != mine
    drafts.delete_old_unpending_lists(one, Epoch(2), frozenset())
    assert [path.exists() for path in (theirs, mine, former)] == [True, False, False]
