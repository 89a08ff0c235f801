"""Readers, stamps and new columns that are wrong do not pass the shipped contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import able_folder
import folder_kind
import pytest
from contract.stamped_folder import StampedWorld
from contract.test_folder_table import FolderWorld

from headgate.control_protocol.ports import Refused
from headgate.control_protocol.stamps import ANY
from headgate.control_protocol.testing.contract import (
    EvolutionContract,
    ReaderContract,
    StampContract,
)

Lie = Callable[[pytest.MonkeyPatch, Any], None]


def passes(contract: type, world: Callable[[], Any]) -> bool:
    """Run the contract's tests that take a world alone, each with a new one."""
    for name in dir(contract):
        if not name.startswith("test_") or hasattr(getattr(contract, name), "pytestmark"):
            continue
        try:
            getattr(contract(), name)(world())
        except AssertionError:
            return False
    return True


def answers(method: str, changed: Callable[[Any, Any], Any]) -> Lie:
    """A reader whose method returns something else: given the reader, and what is right."""

    def lie(monkeypatch: pytest.MonkeyPatch, page: Any) -> None:
        right = getattr(page.FolderReader, method)
        monkeypatch.setattr(
            page.FolderReader, method, lambda self, *given: changed(self, right(self, *given))
        )

    return lie


def commits(changed: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Lie:
    return answers("history", lambda _, history: replace(history, commits=changed(history.commits)))


def foreign(changed: Callable[[Any], Any]) -> Lie:
    def told(_: Any, history: Any) -> Any:
        return replace(history, foreign=tuple(map(changed, history.foreign)))

    return answers("history", told)


def live(changed: Callable[[list[Any]], list[Any]]) -> Lie:
    return answers("live_files", lambda _, files: changed(files))


def newest_is_oldest(monkeypatch: pytest.MonkeyPatch, page: Any) -> None:
    right = page.FolderReader.history

    def history(self: Any, newest: Any = None) -> Any:
        whole = right(self)
        kept = whole.commits[: newest.snapshots] if newest else whole.commits
        return replace(whole, commits=kept, complete=newest is None)

    monkeypatch.setattr(page.FolderReader, "history", history)


def reads_late(monkeypatch: pytest.MonkeyPatch, page: Any) -> None:
    """It shows the table as it is, not as it was."""
    monkeypatch.setattr(
        page.FolderReader,
        "versions",
        property(lambda self: self.folder.versions(), lambda *_: None),
        raising=False,
    )
    monkeypatch.setattr(page.FolderReader, "moved", lambda _: True)


READERS: dict[str, Lie] = {
    "newest first": commits(lambda each: each[::-1]),
    "one is left out": commits(lambda each: each[:-1]),
    "rows not counted": commits(lambda each: tuple(replace(c, added_records=0) for c in each)),
    "one file each": commits(lambda each: tuple(replace(c, added_files=1) for c in each)),
    "no numbers": commits(lambda each: tuple(replace(c, snapshot_id=1) for c in each)),
    "newest is oldest": newest_is_oldest,
    "no tag": answers("history", lambda _, history: replace(history, tag=None, claimed=False)),
    "others not told": answers("history", lambda _, history: replace(history, foreign=())),
    "others' rows not counted": foreign(lambda each: replace(each, added_records=0)),
    "others took rows away": foreign(lambda each: replace(each, row_deletes=1)),
    "others without topics": foreign(lambda each: replace(each, topic_ids={})),
    "adds nothing": answers("added", lambda *_: []),
    "never known": answers("added", lambda *_: None),
    "added twice": answers("added", lambda _, files: files * 2),
    "a live file left out": live(lambda files: files[1:]),
    "a live file twice": live(lambda files: [*files, *files[:1]]),
    "files of one commit": live(lambda files: [replace(file, added_by=1) for file in files]),
    "sizes": answers("size_and_rows", lambda _, found: (found[0] + 1, found[1])),
    "rows": answers("size_and_rows", lambda _, found: (found[0], found[1] + 1)),
    "no rows": answers("scan", lambda *_: (0, iter(()))),
    "a file not read": answers("scan", lambda _, found: (found[0], iter(list(found[1])[1:]))),
    "files miscounted": answers("scan", lambda _, found: (found[0] + 1, found[1])),
    "never moves": answers("moved", lambda *_: False),
    "always moves": answers("moved", lambda *_: True),
    "reads late": reads_late,
    "columns": answers("columns", lambda *_: []),
    "view of nothing": answers("view", lambda _, view: replace(view, record=None)),
}


@pytest.mark.parametrize("lie", READERS.values(), ids=READERS)
def test_a_reader_that_tells_something_else_does_not_pass(
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lie: Lie,
) -> None:
    page = folder_kind.install(tmp_path, monkeypatch)

    def world() -> FolderWorld:
        return FolderWorld(tmp_path_factory.mktemp("world"), page)

    assert passes(ReaderContract, world)
    lie(monkeypatch, page)
    assert not passes(ReaderContract, world)


class StampedTwice(StampedWorld):
    """Every transaction has the same stamp."""

    def open(self, sink: str = "sink") -> Any:
        table = super().open(sink)
        table.stamp = lambda: f"{table.folder.root}/{ANY}_0.parquet"
        return table


class StampsUnheeded(StampedWorld):
    """Whatever the files bear, they land."""

    def open(self, sink: str = "sink") -> Any:
        table = super().open(sink)
        table.commit = super(type(table), table).commit
        return table


class RefusedForNow(StampedWorld):
    """Files of a former transaction are refused as if they might land with the next try."""

    def open(self, sink: str = "sink") -> Any:
        table = super().open(sink)
        right = table.commit

        def commit(attempt: Any) -> Any:
            outcome = right(attempt)
            return replace(outcome, for_good=False) if isinstance(outcome, Refused) else outcome

        table.commit = commit
        return table


class TestStampedFolder(StampContract):
    @pytest.fixture
    def world(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StampedWorld:
        return StampedWorld(tmp_path, folder_kind.install(tmp_path, monkeypatch))


@pytest.mark.parametrize("broken", [StampedTwice, StampsUnheeded, RefusedForNow])
def test_stamps_that_promise_less_do_not_pass(
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: type[StampedWorld],
) -> None:
    page = folder_kind.install(tmp_path, monkeypatch)
    assert not passes(StampContract, lambda: broken(tmp_path_factory.mktemp("world"), page))


def test_a_table_that_changes_its_columns_for_whoever_was_overtaken_does_not_pass(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = able_folder.install(tmp_path, monkeypatch)
    right = page.FolderTable.evolve

    def world() -> FolderWorld:
        return FolderWorld(tmp_path_factory.mktemp("world"), page)

    assert passes(EvolutionContract, world)
    monkeypatch.setattr(
        page.FolderTable, "evolve", lambda self, _, columns: right(self, self.read(), columns)
    )
    assert not passes(EvolutionContract, world)
